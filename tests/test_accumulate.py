"""States of bytes: any tree of merges gives the sums of all rows, also on Dask and Spark."""

import os
import re
import sys
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import fedran
from fedran import accumulate
from helpers.core.reference import quick


def merged(states, rng):
    """The states, merged in a random tree."""
    states = list(states)
    while len(states) > 1:
        a = states.pop(rng.integers(len(states)))
        b = states.pop(rng.integers(len(states)))
        states.append(accumulate.merge(a, b))
    return states[0]


@quick
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=7),
    st.sampled_from([8, 64]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_any_tree_of_merges_is_the_sum_of_all_rows(sizes, M, is_sparse, seed):
    rng = np.random.default_rng(seed)
    phi = fedran.RandomFeatures(5, M)
    Z = [rng.standard_normal((n, 5)) for n in sizes]
    y = [rng.choice(np.array(["a", "b", None], dtype=object), n) for n in sizes]
    given = [sparse.csr_array(rows) if is_sparse else rows for rows in Z]
    states = [accumulate.add(accumulate.start(phi), *part) for part in zip(given, y, strict=True)]
    one, two = merged(states, rng), merged(states, rng)
    chain = reduce(
        lambda s, part: accumulate.add(s, *part),
        zip(given, y, strict=True),
        accumulate.start(phi),
    )
    kept = np.array([label is not None for label in np.concatenate(y)], dtype=bool)
    H = phi(np.concatenate(Z)).astype(float)[kept]
    scale = np.sum(H**2)
    for state in (one, two, chain):
        total = fedran.decode(state, fedran.Aggregator)
        np.testing.assert_allclose(total.gram(), H.T @ H, atol=1e-5 * scale)
        assert total.accounts.n_rows == len(H)
        assert sum(accumulate.finish(state).counts) == len(H)
    grams = [fedran.decode(state, fedran.Aggregator).gram() for state in (one, two)]
    np.testing.assert_allclose(*grams, atol=1e-14 * scale)


def test_it_is_truncated_once_and_other_states_are_refused():
    rng = np.random.default_rng(0)
    phi, Z, y = fedran.RandomFeatures(6, 64), rng.standard_normal((300, 6)), np.arange(300) % 3
    parts = [accumulate.add(accumulate.start(phi), Z[i::4], y[i::4]) for i in range(4)]
    found = accumulate.finish(merged(parts, rng), rank=8)
    whole = fedran.summarize(phi(Z), y, rank=8, fingerprint=phi.fingerprint)
    assert found.accounts.parts == whole.accounts.parts == 1
    assert found.accounts.cut == pytest.approx(whole.accounts.cut, rel=1e-4)
    np.testing.assert_allclose(found.gram(), whole.gram(), atol=1e-5 * whole.accounts.energy)
    with pytest.raises(fedran.Refused, match="seed is"):
        accumulate.merge(parts[0], accumulate.start(fedran.RandomFeatures(6, 64, seed=1)))
    with pytest.raises(TypeError, match="RandomFeatures"):
        accumulate.start(fedran.KernelFeatures(6))


@pytest.fixture
def spark(monkeypatch):
    sql = pytest.importorskip("pyspark.sql", reason="pyspark and Java are not everywhere")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    session = (
        sql.SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.mark.filterwarnings("ignore")
def test_the_recipe_for_spark_gives_the_summary_of_all_rows(spark):
    page = (Path(__file__).parent.parent / "docs/how-to/large-data.md").read_text()
    (recipe,) = re.findall(r"^```py\n(.*?)^```", page, re.M | re.S)
    rng = np.random.default_rng(0)
    phi, Z, y = fedran.RandomFeatures(4, 32), rng.standard_normal((400, 4)), ["a", "b"] * 200
    table = [(row.tolist(), label) for row, label in zip(Z, y, strict=True)]
    frame = spark.createDataFrame(table, "features array<double>, label string").repartition(5)
    found = {"accumulate": accumulate, "phi": phi, "frame": frame}
    exec(recipe, found)
    expected = fedran.summarize(phi(Z), y, rank=256)
    assert found["summary"].counts == expected.counts
    np.testing.assert_allclose(found["summary"].gram(), expected.gram(), atol=0.1)
