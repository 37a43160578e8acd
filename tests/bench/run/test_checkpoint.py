"""A run that was interrupted continues bit for bit; a damaged checkpoint starts it anew."""

import numpy as np
import pytest

from fedran.wire.container import pack
from fedran_bench.methods.registry import make_method
from fedran_bench.run.checkpoint import Checkpoint
from fedran_bench.run.runner import PreparedJob, run
from helpers.wanderer import ROUNDS, Wanderer, stopping, timeless


@pytest.mark.parametrize("after", range(0, 30, 3))
def test_a_run_interrupted_anywhere_goes_on_bit_for_bit(after, dataset, stream, result, tmp_path):
    """Thirty steps: three tasks of three rounds of three clients, and a test each."""
    job = PreparedJob("wanderer", Wanderer(), dataset, stream, seed=2)
    assert job.steps == 30
    checkpoint = Checkpoint(tmp_path / "c", seconds=0)
    with pytest.raises(KeyboardInterrupt):
        run(job, progress=stopping(after), checkpoint=checkpoint)
    assert checkpoint.path.exists() == (after >= ROUNDS)
    resumed = run(job, checkpoint=Checkpoint(checkpoint.path))
    assert timeless(resumed) == timeless(result)


def test_a_resumed_run_repeats_at_most_the_round_it_was_in(dataset, stream, tmp_path):
    """Interrupted in round 2 of task 2, at its second client."""
    method = Wanderer()
    job = PreparedJob("wanderer", method, dataset, stream, seed=2)
    with pytest.raises(KeyboardInterrupt):
        run(job, progress=stopping(10 + 3 + 1), checkpoint=Checkpoint(tmp_path / "c", 0))
    assert len(method.carried) == 9 + 3 + 2
    method.carried.clear()
    run(job, checkpoint=Checkpoint(tmp_path / "c", 0))
    assert len(method.carried) == 2 * 3 + 9


def test_a_run_interrupted_twice_goes_on_too(dataset, stream, result, tmp_path):
    job = PreparedJob("wanderer", Wanderer(), dataset, stream, seed=2)
    for after in (5, 16):
        with pytest.raises(KeyboardInterrupt):
            run(job, progress=stopping(after), checkpoint=Checkpoint(tmp_path / "c", 0))
    resumed = run(job, checkpoint=Checkpoint(tmp_path / "c", 0))
    assert timeless(resumed) == timeless(result)


def test_a_resumed_run_reports_as_many_steps_as_it_announced(dataset, stream, tmp_path):
    job = PreparedJob("wanderer", Wanderer(), dataset, stream, seed=2)
    with pytest.raises(KeyboardInterrupt):
        run(job, progress=stopping(14), checkpoint=Checkpoint(tmp_path / "c", 0))
    said = []
    run(job, progress=said.append, checkpoint=Checkpoint(tmp_path / "c", 0))
    assert len(said) == job.steps


def test_a_short_run_leaves_nothing_on_disk(dataset, stream, tmp_path):
    job = PreparedJob("wanderer", Wanderer(), dataset, stream)
    with pytest.raises(KeyboardInterrupt):
        run(job, progress=stopping(20), checkpoint=Checkpoint(tmp_path / "c"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut off", "a flipped bit", "empty", "something else"])
def test_a_damaged_checkpoint_starts_anew(damage, dataset, stream, result, tmp_path):
    job = PreparedJob("wanderer", Wanderer(), dataset, stream, seed=2)
    path = tmp_path / "c"
    with pytest.raises(KeyboardInterrupt):
        run(job, progress=stopping(14), checkpoint=Checkpoint(path, 0))
    blob = bytearray(path.read_bytes())
    blob[-9] ^= 1
    damaged = {
        "cut off": path.read_bytes()[:-5],
        "a flipped bit": blob,
        "empty": b"",
        "something else": b"hello" * 100,
    }
    path.write_bytes(damaged[damage])
    said = []
    again = run(job, progress=said.append, checkpoint=Checkpoint(path, 0))
    assert timeless(again) == timeless(result)
    assert not any("already done" in s for s in said)


@pytest.mark.parametrize("other", ["kind", "method"])
def test_a_checkpoint_that_is_something_else_starts_anew(other, dataset, stream, result, tmp_path):
    path = tmp_path / "c"
    if other == "kind":
        path.write_bytes(pack("upload", {}, {"x": np.zeros(3)}))
    else:
        fed = PreparedJob("fedncm", make_method("fedncm"), dataset, stream)
        with pytest.raises(KeyboardInterrupt):
            run(fed, progress=stopping(4), checkpoint=Checkpoint(path, 0))
    job = PreparedJob("wanderer", Wanderer(), dataset, stream, seed=2)
    assert timeless(run(job, checkpoint=Checkpoint(path, 0))) == timeless(result)


def test_a_crash_while_saving_leaves_the_last_checkpoint(
    dataset, stream, result, tmp_path, monkeypatch
):
    checkpoint = Checkpoint(tmp_path / "c", 0)
    job = PreparedJob("wanderer", Wanderer(), dataset, stream, seed=2)
    with pytest.raises(KeyboardInterrupt):
        run(job, progress=stopping(14), checkpoint=checkpoint)
    before = checkpoint.path.read_bytes()

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("fedran.wire.files.os.replace", full)
    with pytest.raises(OSError, match="no space"):
        run(job, checkpoint=Checkpoint(tmp_path / "c", 0))
    monkeypatch.undo()
    assert checkpoint.path.read_bytes() == before
    said = []
    again = run(job, progress=said.append, checkpoint=Checkpoint(tmp_path / "c", 0))
    assert timeless(again) == timeless(result)
    assert any("already done" in s for s in said)
    checkpoint.remove()
    assert list(tmp_path.iterdir()) == []
