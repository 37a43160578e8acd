"""Recorded steps give the numbers of plain ones, whichever client and round replays them."""

import gc
import weakref

import pytest
import torch

from fedran_bench.methods.protocol import Spec
from fedran_bench.methods.registry import make_method
from fedran_bench.methods.trained import recorded
from fedran_bench.methods.trained.local_training import Schedule, cross_entropy, fit
from fedran_bench.methods.trained.messages import pack_tensors
from fedran_bench.methods.trained.networks import build
from fedran_bench.methods.trained.recorded import RecordedStep, Replays
from fedran_bench.methods.trained.rows import Rows
from fedran_bench.methods.trained.weights import copy_weights
from helpers.bench.toy_training import Rounds, make_images, make_tasks, quick, same, saved

KEYS = ("finetune", "fedlwf", "fedewc", "fedicarl", "target")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def on_cpu(monkeypatch):
    """Recording that warms up and then repeats the step itself; the number of recordings."""
    recordings = []

    def record(step, pool):
        recordings.append(pool)
        step()
        step()
        return step

    monkeypatch.setattr(recorded, "record_graph", record)
    monkeypatch.setattr(recorded, "_kept", {})
    return recordings


def dumped(key, execution, more, device=None):
    data = make_images(n=45)
    method = quick(key, device, **more)
    rounds = Rounds(method, data, make_tasks(data, n_clients=2))
    object.__setattr__(method, "execution", execution)  # after the check of the device
    rounds.run(2)
    return rounds, [saved(rounds), *(pack_tensors("c", {}, c) for c in rounds.cstates.values())]


@pytest.mark.parametrize("key", KEYS)
def test_recorded_steps_give_the_same_bits_as_plain_ones(key, on_cpu):
    """Two clients of different size, two tasks; every batch size is recorded once per task."""
    more = {"network": "small", "augment": True, "batch": 4}
    _, plain = dumped(key, "eager", more)
    assert not on_cpu
    _, replayed = dumped(key, "recorded", more)
    assert replayed == plain
    sizes = 2  # 4, and the last batch of the client with fewer rows
    clients = 2 if key in ("fedewc", "fedicarl") else 1
    assert 2 <= len(on_cpu) <= 2 * sizes * clients


def test_recording_leaves_weights_statistics_and_momentum_unchanged(on_cpu):
    network = build("head", 3)
    network.head.resize(2)
    rows = Rows(torch.randn(6, 3), torch.tensor([0, 1] * 3))

    def loss(X, codes):
        return cross_entropy(network(X), codes)

    step = RecordedStep(network, loss, Schedule(batch=3), "cpu")
    step.momentum[0].fill_(0.5)
    before = copy_weights(network)
    with step.replays.unchanged():
        step.step(*(rows.X, rows.codes))
        assert not same(copy_weights(network), before)
    assert same(copy_weights(network), before)
    assert bool((step.momentum[0] == 0.5).all())
    step.restart({})
    assert not any(bool(m.any()) for m in step.momentum)
    fit(network, rows, loss, Schedule(batch=3), torch.Generator(), "cpu", step=step)
    assert not same(copy_weights(network), before)


def test_few_recorded_steps_are_kept_and_the_others_hold_no_memory(on_cpu, monkeypatch):
    made = weakref.WeakSet()
    begin = Replays.__init__

    def count(self, *args):
        begin(self, *args)
        made.add(self)

    monkeypatch.setattr(Replays, "__init__", count)
    gc.disable()  # as between two collections of a long run
    try:
        for seed in range(recorded.MOST_STEPS + 2):
            changed = {"n_rounds": 1, "lr": 0.01 + seed / 99}
            dumped("finetune", "recorded", {"network": "small", **changed})
    finally:
        gc.enable()
    assert len(made) == len(recorded._kept) == recorded.MOST_STEPS


def test_only_a_gpu_records_steps():
    method = make_method("finetune", {"network": "small", "execution": "recorded"})
    with pytest.raises(ValueError, match="execution = 'recorded' needs a CUDA device, got cpu"):
        method.init(Spec(3, ((0, 1),), ("a",), None, 8), 0)
    params = make_method("finetune", {"network": "small"}).params()
    assert method.params() == params


@needs_gpu
@pytest.mark.parametrize("key", KEYS)
def test_a_recorded_step_learns_what_a_plain_one_learns_on_a_gpu(key):
    more = {"network": "small", "batch": 4, "n_rounds": 3}
    if key == "target":  # rounding grows in the generator, so it makes a single step
        more |= {"synthesis_rounds": 1, "generator_steps": 1, "distillation_steps": 0}
    if key == "fedicarl":  # after more rounds, rounding changes which rows are its exemplars
        more |= {"n_rounds": 1}
    plain, _ = dumped(key, "eager", more, "cuda")
    other, _ = dumped(key, "recorded", more, "cuda")
    for name, weights in plain.state.weights.items():
        torch.testing.assert_close(other.state.weights[name], weights, rtol=0.02, atol=0.02)
