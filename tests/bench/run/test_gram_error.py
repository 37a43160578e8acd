"""The relative error of a method's Gram matrix."""

from itertools import pairwise

import numpy as np
import pytest

import fedran
from fedran_bench.methods.registry import make_method
from fedran_bench.run.config import parse_config
from fedran_bench.run.runner import PreparedJob, run
from fedran_bench.run.sweep import execute
from helpers.listener import Listener
from helpers.wanderer import Wanderer


def test_the_gram_error_is_zero_for_exact_and_falls_with_the_rank(dataset, stream):
    def errors(key, **params):
        method = make_method(key, {"out_features": 48, **params})
        return [
            t.gram_error
            for t in run(PreparedJob(key, method, dataset, stream, gram_error=True)).tasks
        ]

    assert errors("exact") == pytest.approx([0.0] * 3, abs=1e-6)
    by_rank = [errors("fedran", rank=r, precision="float64") for r in (1, 2, 4, 8, 48)]
    for lower, higher in pairwise(by_rank):
        assert all(a > b for a, b in zip(lower, higher, strict=True))
    assert by_rank[0][0] > 0.001
    assert by_rank[-1] == pytest.approx([0.0] * 3, abs=1e-5)


def test_the_gram_error_equals_its_definition(dataset, stream):
    method = make_method("fedran", {"out_features": 48, "rank": 2, "precision": "float64"})
    found = run(PreparedJob("fedran", method, dataset, stream, seed=5, gram_error=True))
    phi = fedran.RandomFeatures(5, 48, seed=5)
    exact, low = np.zeros((48, 48)), np.zeros((48, 48))
    for task, record in zip(stream.tasks, found.tasks, strict=True):
        for k, rows in enumerate(task.rows):
            H = phi(dataset.X_train[rows][task.has_label(k)]).astype(np.float64)
            exact += H.T @ H
            labels = dataset.y_train[rows][task.has_label(k)]
            for c in np.unique(labels):
                mean = H[labels == c].mean(axis=0)
                low += (labels == c).sum() * np.outer(mean, mean)
                H[labels == c] -= mean
            _, s, V = np.linalg.svd(H, full_matrices=False)
            low += (V[:2].T * s[:2] ** 2) @ V[:2]
        expected = np.linalg.norm(low - exact) / np.linalg.norm(exact)
        assert record.gram_error == pytest.approx(expected, rel=1e-3)


def test_the_gram_error_is_measured_only_if_requested_and_if_there_is_a_gram(dataset, stream):
    exact = make_method("exact", {"out_features": 16})
    assert run(PreparedJob("exact", exact, dataset, stream)).tasks[0].gram_error is None
    found = run(PreparedJob("wanderer", Wanderer(), dataset, stream, gram_error=True))
    assert found.tasks[0].gram_error is None


def test_a_finished_run_is_not_repeated_for_a_gram_that_its_method_lacks(tmp_path):
    pytest.importorskip("torch")
    experiment = parse_config(
        {
            "dataset": "digits",
            "stream": {"tasks": 2, "clients": 2, "beta": 0.5},
            "run": {"gram_error": True},
            "method": [{"key": "finetune", "network": "head", "n_rounds": 1}],
        }
    )
    assert execute(experiment, tmp_path, Listener()).done == 1
    again = execute(experiment, tmp_path, Listener())
    assert (again.done, again.skipped) == (0, 1)
