"""Results name everything needed to repeat a run; unusual clients and labels run too."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedran
from fedran.data.catalogue import digits
from fedran.data.dataset import Dataset
from fedran_bench.methods.registry import make_method
from fedran_bench.results.result import Result, code_hash
from fedran_bench.run.runner import PreparedJob, run
from fedran_bench.streams import Stream, Task, make_stream
from helpers.bench import wanderer
from helpers.bench.wanderer import CLIENTS, Wanderer


def test_a_result_holds_everything_needed_to_repeat_the_run(dataset, stream):
    job = PreparedJob(
        *("wanderer", Wanderer(), dataset, stream, 2, "label"),
        study="runtime",
        config="c.toml",
    )
    found = run(job)
    assert found.run_id == job.run_id
    assert (found.key, found.label, found.config) == ("wanderer", "label", "c.toml")
    assert found.study == "runtime"
    assert (found.family, found.params) == ("trained", {"step": 0.3})
    assert found.seeds == {"order": 3, "partition": 3, "mask": 3, "projection": 2}
    code = hashlib.sha256(Path(wanderer.__file__).read_bytes()).hexdigest()
    assert found.hashes == {"stream": stream.hash, "features": dataset.hash, "method": code}
    assert found.stream == stream.settings
    assert found.versions["fedran"] == f"{fedran.__version__}+{code_hash()}"
    assert found.side_by_side == 1
    assert Result.from_json(found.to_json()) == found


def test_the_run_id_depends_on_method_settings_seeds_and_data(dataset, stream):
    base = PreparedJob("wanderer", Wanderer(), dataset, stream)
    others = [
        replace(base, key="other"),
        replace(base, method=Wanderer(0.4)),
        replace(base, seed=1),
        replace(base, dataset=replace(dataset, source={"weights": "abc"})),
        replace(base, dataset=replace(dataset, X_train=dataset.X_train + 1)),
        replace(base, stream=make_stream(dataset.y_train, n_tasks=3, n_clients=3, beta=1, seed=3)),
    ]
    assert len({base.run_id, *(o.run_id for o in others)}) == len(others) + 1
    assert replace(base, label="x", config="y", study="rank").run_id == base.run_id


def test_clients_without_rows_take_part(dataset):
    rows = np.flatnonzero(np.isin(dataset.y_train, [0, 1]))
    empty = np.zeros(0, dtype=np.int64)
    found = run(
        PreparedJob("wanderer", Wanderer(), dataset, Stream((Task((0, 1), (rows, empty)),), {}))
    )
    assert found.tasks[0].label_rate == [1.0, None]
    assert found.tasks[0].seconds.extraction == [0.5 * len(rows), 0.0]
    assert all(b > 0 for b in found.tasks[0].bytes_up)


def test_string_labels_run_like_numbers(dataset, stream):
    names = np.array(["ant", "bee", "cat", "dog", "eel", "fly"])
    named = replace(dataset, y_train=names[dataset.y_train], y_test=names[dataset.y_test])
    again = make_stream(
        named.y_train, n_tasks=3, n_clients=CLIENTS, beta=1.0, seed=3, label_rate=0.6
    )
    method = make_method("fedran", {"out_features": 32, "rank": 8})
    by_name = run(PreparedJob("fedran", method, named, again))
    by_number = run(PreparedJob("fedran", method, dataset, stream))
    assert by_name.acc == by_number.acc
    assert by_name.classes == [str(names[c]) for c in by_number.classes]
    assert Result.from_json(by_name.to_json()) == by_name


@pytest.mark.parametrize("key", ["exact", "fedran", "fedran-margin", "fedran-prototype", "fedcof"])
def test_a_client_whose_rows_all_lack_labels_takes_part(key, dataset, stream):
    first = stream.tasks[0]
    hidden = (np.zeros(len(first.rows[0]), dtype=bool), *first.labelled[1:])
    odd = replace(stream, tasks=(replace(first, labelled=hidden), *stream.tasks[1:]))
    params = {"out_features": 32} if key != "fedcof" else {}
    found = run(PreparedJob(key, make_method(key, params), dataset, odd))
    assert found.tasks[0].label_rate[0] == 0.0
    assert found.A_T > 60


def test_natural_clients_run(dataset):
    stream = make_stream(
        dataset.y_train, n_tasks=2, seed=0, partitioner="natural", groups=dataset.groups
    )
    found = run(PreparedJob("fedncm", make_method("fedncm"), dataset, stream))
    assert len(found.tasks[0].bytes_up) == 4


def test_a_task_that_cannot_be_tested_is_refused_before_it_starts(dataset):
    seen = dataset.y_test > 0
    untested = replace(dataset, X_test=dataset.X_test[seen], y_test=dataset.y_test[seen])
    rows = [np.flatnonzero(dataset.y_train == c) for c in (0, 1)]
    stream = Stream((Task((0,), (rows[0],)), Task((1,), (rows[1],))), {})
    with pytest.raises(ValueError, match="task 1 cannot be tested"):
        PreparedJob("fedncm", make_method("fedncm"), untested, stream)


def test_a_method_for_images_does_not_run_on_features():
    d = digits()
    images = Dataset("i", "images", d.X_train, d.y_train, d.X_test, d.y_test)
    stream = make_stream(d.y_train, n_tasks=2, n_clients=2, beta=1.0, seed=0)
    with pytest.raises(ValueError, match="takes features, but i holds images"):
        PreparedJob("fedncm", make_method("fedncm"), images, stream)


@pytest.mark.parametrize("key", ["fedran", "fedran-margin", "exact", "send-features"])
@pytest.mark.parametrize("declared", [True, False, None])
def test_the_kind_of_random_features_is_the_datasets_unless_it_was_named(key, declared, dataset):
    data = replace(dataset, X_train=abs(dataset.X_train), X_test=abs(dataset.X_test))
    data = replace(data, nonnegative=declared)
    stream = make_stream(data.y_train, n_tasks=1, n_clients=1, beta=1.0, seed=0)
    chosen = PreparedJob(key, make_method(key), data, stream)
    kind = "hellinger" if declared else "cosine"
    assert chosen.method.params()["kind"] == kind
    assert chosen.method.feature_map(4, seed=0).kind == kind
    named = PreparedJob(key, make_method(key, {"kind": "relu"}), data, stream)
    assert named.method.params()["kind"] == "relu"
    assert named.run_id != chosen.run_id


def test_methods_of_papers_keep_their_relu(dataset):
    data = replace(dataset, X_train=abs(dataset.X_train), X_test=abs(dataset.X_test))
    data = replace(data, nonnegative=True)
    stream = make_stream(data.y_train, n_tasks=1, n_clients=1, beta=1.0, seed=0)
    for key in ("stsa", "ranpac"):
        job = PreparedJob(key, make_method(key), data, stream)
        assert job.method.feature_map(4, seed=0).kind == "relu"
