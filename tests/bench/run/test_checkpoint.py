"""A run that was interrupted continues bit for bit; a damaged checkpoint starts it anew."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from fedran.bench.run import checkpoint as module
from fedran.bench.run.checkpoint import Checkpoint, cut
from fedran.bench.run.runner import PreparedJob, run
from fedran.methods.registry import make_method
from fedran.wire.container import pack
from helpers.wanderer import ROUNDS, Wanderer, stopping, timeless


@pytest.mark.parametrize("after", range(0, 30))
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


@pytest.mark.parametrize("where", ["index", "part"])
@pytest.mark.parametrize("damage", ["cut off", "a flipped bit", "empty", "something else"])
def test_a_damaged_checkpoint_starts_anew(damage, where, dataset, stream, result, tmp_path):
    job = PreparedJob("wanderer", Wanderer(), dataset, stream, seed=2)
    path = tmp_path / "c"
    with pytest.raises(KeyboardInterrupt):
        run(job, progress=stopping(14), checkpoint=Checkpoint(path, 0))
    file = path if where == "index" else next(Checkpoint(path).parts.iterdir())
    blob = bytearray(file.read_bytes())
    blob[-9] ^= 1
    damaged = {
        "cut off": file.read_bytes()[:-5],
        "a flipped bit": blob,
        "empty": b"",
        "something else": b"hello" * 100,
    }
    file.write_bytes(damaged[damage])
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


def files(checkpoint):
    return {p.name: p.read_bytes() for p in [checkpoint.path, *checkpoint.parts.iterdir()]}


def test_a_checkpoint_in_many_small_parts_continues_bit_for_bit(
    dataset, stream, result, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "PART_BYTES", 300)
    job = PreparedJob("wanderer", Wanderer(), dataset, stream, seed=2)
    checkpoint = Checkpoint(tmp_path / "c", 0)
    with pytest.raises(KeyboardInterrupt):
        run(job, progress=stopping(14), checkpoint=checkpoint)
    sizes = [p.stat().st_size for p in checkpoint.parts.iterdir()]
    assert len(sizes) > 1
    assert max(sizes) <= 300
    assert timeless(run(job, checkpoint=Checkpoint(tmp_path / "c", 0))) == timeless(result)
    checkpoint.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", [True, False])
def test_a_crash_while_saving_leaves_the_last_checkpoint(
    part, dataset, stream, result, tmp_path, monkeypatch
):
    """The disk is full at the first new part, or when the index is replaced."""
    checkpoint = Checkpoint(tmp_path / "c", 0)
    job = PreparedJob("wanderer", Wanderer(), dataset, stream, seed=2)
    with pytest.raises(KeyboardInterrupt):
        run(job, progress=stopping(14), checkpoint=checkpoint)
    before, write = files(checkpoint), module.write_atomically

    def full(path, data):
        if (path.parent == checkpoint.parts) == part:
            raise OSError("no space left on device")
        write(path, data)

    monkeypatch.setattr(module, "write_atomically", full)
    with pytest.raises(OSError, match="no space"):
        run(job, checkpoint=Checkpoint(tmp_path / "c", 0))
    monkeypatch.undo()
    after = files(checkpoint)
    assert {n: after[n] for n in before} == before
    said = []
    again = run(job, progress=said.append, checkpoint=Checkpoint(tmp_path / "c", 0))
    assert timeless(again) == timeless(result)
    assert any("already done" in s for s in said)


def test_equal_tensors_are_stored_once_and_unchanged_parts_are_not_written_again(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "PART_BYTES", 5000)
    rng = np.random.default_rng(0)
    teacher = {f"teacher/{i}": rng.random(500) for i in range(3)}
    clients = {f"client {k}": save({**teacher, "own": rng.random(20)}) for k in range(4)}
    checkpoint = Checkpoint(tmp_path / "c", 0)
    checkpoint.parts.mkdir()
    written, write = [], module.write_atomically
    monkeypatch.setattr(
        module, "write_atomically", lambda path, data: written.append(path) or write(path, data)
    )
    blobs = {**clients, "state": save({"model": rng.random(500)})}
    layout = checkpoint._write_parts(blobs)
    assert checkpoint._read_parts(layout) == blobs
    assert sum(p.stat().st_size for p in checkpoint.parts.iterdir()) < 4 * 4000 + 4 * 600
    first = len(written)
    blobs["state"] = save({"model": rng.random(500)})
    layout = checkpoint._write_parts(blobs)
    assert checkpoint._read_parts(layout) == blobs
    assert len(written) - first < first


@given(st.binary(max_size=60), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_pieces_of_anything_join_to_the_whole(blob, limit):
    full, module.PART_BYTES = module.PART_BYTES, limit
    try:
        for whole in (blob, save({"a": np.frombuffer(blob, np.uint8), "b": np.arange(5)})):
            pieces = list(cut(whole))
            assert b"".join(pieces) == whole
            assert all(0 < len(p) <= limit for p in pieces)
    finally:
        module.PART_BYTES = full
