"""Recorded steps equal plain ones. Without a GPU, recording is replaced by plain calls."""

import pytest
import torch

from fedran_bench.methods.prompted import base, steps
from fedran_bench.methods.registry import make_method
from fedran_bench.methods.trained import recorded
from helpers.bench.tiny_vit import tiny_vit
from helpers.bench.toy_training import Rounds, make_tasks

SIZES = {
    "fed-dualprompt": {"general_blocks": 1, "task_blocks": 1},
    "fed-codaprompt": {"blocks": 2, "components": 2, "length": 2},
    "fed-cprompt": {"blocks": 2, "components": 2, "length": 2},
    "pilora": {"rank": 2},
    "lorm": {"rank": 2, "n_rounds": 3},  # the third round has another resting factor than the first
}
KEYS = pytest.mark.parametrize("key", SIZES)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def method_of(key, device=None, **more):
    schedule = {"n_rounds": 2, "epochs": 2, "batch": 4, "lr": 0.01, "weights": tiny_vit()}
    return make_method(key, {**schedule, **SIZES[key], **more}, device)


@KEYS
def test_fixed_places_serve_all_clients_and_rounds_of_a_task(key, dataset, monkeypatch):
    """A recording that does the step once, as its warm-up, and leaves no trace."""
    plain = Rounds(method_of(key), dataset, make_tasks(dataset)).run(2)
    done = []

    def record(step, pool):
        done.append(step)
        step()
        return step

    monkeypatch.setattr(base, "Step", steps.recorded_step)
    monkeypatch.setattr(recorded, "record_graph", record)
    monkeypatch.setattr(recorded, "_kept", {})
    rounds = Rounds(method_of(key), dataset, make_tasks(dataset)).run(2)
    sizes = (5, 4, 2)  # clients with 5 or 6 rows, batches of 4, no batch of a single row
    assert len(done) == 2 * len(sizes) * (2 if key == "lorm" else 1)
    assert len(recorded._kept) == steps.MOST_STEPS
    for name, tensor in plain.state.weights.items():
        torch.testing.assert_close(rounds.state.weights[name], tensor, atol=1e-5, rtol=1e-4)


def test_a_recording_serves_one_method_only(dataset, monkeypatch):
    """Two methods with tensors of the same names and shapes, one after the other."""
    monkeypatch.setattr(base, "Step", steps.recorded_step)
    monkeypatch.setattr(recorded, "record_graph", lambda step, pool: step)
    monkeypatch.setattr(recorded, "_kept", {})
    first, other, again = (
        Rounds(method_of(key), dataset, make_tasks(dataset)).run(1).state.weights["keys"]
        for key in ("fed-codaprompt", "fed-cprompt", "fed-codaprompt")
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


@needs_gpu
@KEYS
def test_recorded_steps_equal_launched_ones_on_a_gpu(key, dataset):
    sent = {}
    for execution in ("eager", "recorded"):
        recorded._kept.clear()
        method = method_of(key, "cuda", execution=execution)
        rounds = Rounds(method, dataset, make_tasks(dataset)).run(2)
        sent[execution] = rounds.state.weights
    for name, tensor in sent["eager"].items():
        torch.testing.assert_close(sent["recorded"][name], tensor, atol=1e-4, rtol=1e-3)
