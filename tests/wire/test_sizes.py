"""Predicted sizes against real messages, and plans."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedran
from fedran.data.catalogue import load_dataset
from fedran.wire.sizes import (
    FRONT,
    kernel_head_bytes,
    parse_bytes,
    point_groups,
    points_bytes,
)


@pytest.fixture(scope="module", params=["pooled", "gaussian"])
def features(request):
    """Random features of clustered rows: pooled activations (non-negative), or plain normals."""
    pooled = request.param == "pooled"
    n, d, M = (800, 1280, 2048) if pooled else (800, 512, 1024)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, n)
    Z = rng.standard_normal((10, d))[y] / 2 + rng.standard_normal((n, d))
    phi = fedran.RandomFeatures(d, M, source={"backbone": "test", "weights": "0" * 64})
    return phi, phi(np.maximum(Z, 0) if pooled else Z), y


def test_a_summary_beyond_max_bytes_is_refused(features):
    phi, H, y = features
    s = fedran.summarize(H, y, rank=50, fingerprint=phi.fingerprint)
    whole = fedran.encode(s)
    assert fedran.encode(s, max_bytes=len(whole)) == whole
    with pytest.raises(ValueError, match=r"a summary of rank 50 takes \d+ bytes; summarize"):
        fedran.encode(s, max_bytes=len(whole) - 1)


def clustered(kind, seed):
    """Prepared rows of a site: clusters whose spread decays over directions, as of a network."""
    rng = np.random.default_rng(seed)
    n, d, n_classes = int(rng.integers(600, 1500)), int(rng.integers(100, 400)), 8
    y = rng.integers(0, n_classes, n)
    spread = rng.standard_normal((d, d)) / np.arange(1, d + 1)[:, None] ** 0.5
    Z = rng.standard_normal((n_classes, d))[y] + rng.standard_normal((n, d)) @ spread
    phi = fedran.KernelFeatures(d, kind, source="test")
    return phi(np.logaddexp(0, Z) if kind == "hellinger" else Z), y, phi.fingerprint


def check_sizes(X, y, fingerprint, tolerance):
    """Predicted sizes over real ones, given the bits per value of single rows at step 1."""
    whole = fedran.condense(X, y, fingerprint=fingerprint)
    value_bits = 8 * len(fedran.encode(whole)) / X.size
    for group_size in (1, 2, 3, 5, 8):
        points = fedran.condense(X, y, group_size, fingerprint=fingerprint)
        for step in (0.5, 1.0, 1.5, 2.0):
            sent = len(fedran.encode(points, step=step))
            stated = points_bytes(
                X.shape[1], len(X), len(points.classes), group_size, 1, step, value_bits
            )
            allowed = tolerance if group_size <= 3 else 2.5 * tolerance
            assert stated == pytest.approx(sent, rel=allowed), (group_size, step)


@pytest.mark.parametrize("kind", ["cosine", "hellinger"])
@pytest.mark.parametrize("seed", range(2))
def test_predicted_sizes_of_points_are_close_to_real_ones(kind, seed):
    check_sizes(*clustered(kind, seed), 0.2)


@pytest.mark.parametrize("name", ["cifar100-efficientnet_lite0", "cifar100-vit_ti16"])
def test_predicted_sizes_are_close_with_features_of_networks(name):
    try:
        data = load_dataset(name)
    except (FileNotFoundError, ValueError) as reason:
        pytest.skip(str(reason))
    rows = np.flatnonzero(data.y_train < 15)[::5]
    kind = "hellinger" if data.nonnegative else "cosine"
    phi = fedran.KernelFeatures(data.X_train.shape[1], kind, source=name)
    check_sizes(phi(data.X_train[rows]), data.y_train[rows], phi.fingerprint, 0.1)


@pytest.mark.parametrize("kind", ["cosine", "hellinger"])
@pytest.mark.parametrize(("size", "least"), [(1, 1), (4, 1), (1, 3), (3, 3), (6, 5), (12, 10)])
def test_predicted_numbers_of_groups_are_close_to_real_ones(kind, size, least):
    X, y, _ = clustered(kind, 3)
    made = len(fedran.condense(X, y, size, least).counts)
    assert point_groups(len(y), 8, size, least) == pytest.approx(made, rel=0.25)


@pytest.mark.parametrize("landmarks", [60, 300])
def test_predicted_sizes_of_kernel_heads_are_close_to_real_ones(landmarks):
    X, y, fingerprint = clustered("cosine", 4)
    agg = fedran.Aggregator(fingerprint=fingerprint)
    agg.absorb(fedran.condense(X, y, fingerprint=fingerprint), client="a", task="t")
    head = agg.solve(0.1, landmarks=landmarks)
    stated = kernel_head_bytes(X.shape[1], 8, len(head.landmarks))
    assert stated == pytest.approx(len(fedran.encode(head)), rel=0.3)


plans = {
    "budget_bytes": st.integers(1, 10**7),
    "in_features": st.integers(1, 2000),
    "n_classes": st.integers(1, 50),
    "rows": st.integers(1, 5000),
    "min_group": st.sampled_from([1, 2, 5, 7, 10]),
}


@settings(deadline=None, max_examples=150)
@given(**plans)
def test_the_first_points_of_the_front_that_fit_are_planned(
    budget_bytes, in_features, n_classes, rows, min_group
):
    given = budget_bytes, in_features, n_classes, rows
    p = fedran.plan(*given, min_group=min_group)

    def need(size, step):
        return points_bytes(in_features, rows, n_classes, size, min_group, step)

    least = [] if min_group in (1, 2, 5) else [(min_group, 1.0), (min_group, 1.5)]
    front = [*least, *(pair for pair in FRONT if pair[0] >= min_group)]
    front += [(size, 1.5) for size in range(max(10, min_group), max(rows, 10, min_group) + 1)]
    fitting = [pair for pair in front if need(*pair) <= budget_bytes]
    if rows < min_group * n_classes or not fitting:
        assert (p.group_size, p.step, p.upload) == (None, None, None)
    else:
        assert (p.group_size, p.step, p.upload) == (*fitting[0], need(*fitting[0]))
    assert p.all_rows_fit == (points_bytes(in_features, rows, n_classes) <= budget_bytes)


def test_more_bytes_never_give_a_coarser_plan():
    budgets = range(5_000, 800_000, 5_000)
    found = [fedran.plan(b, 1280, 20, 2000, min_group=1) for b in budgets]
    sizes = [p.upload or 0 for p in found]
    assert sizes == sorted(sizes)
    assert len({(p.group_size, p.step) for p in found}) > 10
    assert found[-1].all_rows_fit


def test_points_that_would_leave_out_most_classes_are_not_planned():
    assert fedran.plan(10**6, 10, n_classes=20, rows=99, min_group=5).group_size is None
    assert fedran.plan(10**6, 10, n_classes=20, rows=100, min_group=5).group_size == 5


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"budget_bytes": float("nan")}, "budget_bytes"),
        ({"budget_bytes": None}, "budget_bytes"),
        ({"rows": -1}, "rows"),
        ({"n_classes": None}, "n_classes"),
        ({"value_bits": 0}, "value_bits"),
    ],
)
def test_wrong_arguments_of_plan_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        fedran.plan(**{"budget_bytes": 9, "in_features": 4, "n_classes": 5, "rows": 9, **options})


@pytest.mark.parametrize("text", ["", "MB", "1.2.3", "5 parsecs", "-1"])
def test_text_that_is_no_size_in_bytes_is_refused(text):
    with pytest.raises(ValueError, match="expected a size"):
        parse_bytes(text)
