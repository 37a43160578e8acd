"""The same seed gives the same bits, also after an interruption."""

from dataclasses import replace

import pytest
import torch

from fedran.wire.container import unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.trained.training.messages import pack_tensors, unpack_tensors
from fedran_bench.run.checkpoint import Checkpoint
from fedran_bench.run.runner import PreparedJob, run
from fedran_bench.streams.stream import Stream
from helpers.toy_training import Rounds, make_tasks, quick

KEYS = ("finetune", "fedlwf", "fedewc", "fedicarl", "target")
RUNS = [(key, {}) for key in KEYS] + [
    (key, {"network": "small"}) for key in ("finetune", "fedewc", "fedicarl")
]


@pytest.fixture(scope="module")
def stream(dataset):
    return make_tasks(dataset)


def model(blob, kind="local-model"):
    return unpack_tensors(kind, blob, "cpu")


def method_dump(rounds):
    return rounds.method.dump(rounds.state)


def kept(path):
    """The states of the server and of all clients in a checkpoint."""
    file = unpack(path.read_bytes(), FILE_LIMITS)
    assert "state" in file.tensors
    return {name: file.stream(name) for name in file.tensors}


@pytest.mark.parametrize(("key", "more"), RUNS)
def test_an_interrupted_run_resumes_with_the_same_result(dataset, stream, tmp_path, key, more):
    short = Stream(stream.tasks[:2], {})
    job = PreparedJob(key, quick(key, epochs=1, **more), dataset, short)
    straight = run(job, checkpoint=Checkpoint(tmp_path / "straight", seconds=0))
    rounds, n = job.method.rounds(0), short.n_clients
    for at in (n + 1, rounds * n + 1, job.steps - 2):
        count = [0]

        def stop(_, at=at, count=count):
            count[0] += 1
            if count[0] == at:
                raise KeyboardInterrupt

        checkpoint = Checkpoint(tmp_path / "other", seconds=0)
        with pytest.raises(KeyboardInterrupt):
            run(job, progress=stop, checkpoint=checkpoint)
        assert checkpoint.path.exists()
        said = []
        resumed = run(job, progress=said.append, checkpoint=checkpoint)
        assert any("already done" in s for s in said)
        assert len(said) == job.steps
        assert kept(checkpoint.path) == kept(tmp_path / "straight")
        assert (resumed.acc, resumed.drift) == (straight.acc, straight.drift)
        assert [t.bytes_up for t in resumed.tasks] == [t.bytes_up for t in straight.tasks]
        assert [t.bytes_down for t in resumed.tasks] == [t.bytes_down for t in straight.tasks]
        checkpoint.remove()


@pytest.mark.parametrize(("key", "more"), RUNS)
def test_results_depend_on_the_seed_alone(dataset, stream, key, more):
    found = []
    for seed, world in ((0, 1), (0, 2), (1, 1)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(world)
            rounds = Rounds(quick(key, epochs=1, **more), dataset, stream, seed)
            found.append(method_dump(rounds.run(2)))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("network", ["head", "small"])
def test_random_numbers_of_a_client_depend_on_seed_task_round_and_name(dataset, stream, network):
    method = quick("finetune", network=network, batch=2)
    rounds = Rounds(method, dataset, stream)
    found = model(method.broadcast(rounds.state, 0, 0), "global-model")
    fields = {n: v for n, v in found.header.fields.items() if n != "kind"}

    def sent(name="client-0", seed=0, **more):
        message = pack_tensors("global-model", {**fields, **more}, found.tensors)
        return method.client(None, message, replace(rounds.rows(0, 0), client=name), seed)[1]

    others = [sent(), sent("client-1"), sent(seed=1), sent(task=1), sent(round=1)]
    assert len(set(others)) == 5
    assert sent() == others[0]


def test_the_order_of_uploads_does_not_matter(dataset, stream):
    method = quick("finetune", network="small")
    rounds = Rounds(method, dataset, stream)
    sent = rounds.uploads(0, 0)
    one = method.aggregate(rounds.state, 0, 0, sent).weights
    other = method.aggregate(rounds.state, 0, 0, dict(reversed(sent.items()))).weights
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-6, atol=1e-7)
