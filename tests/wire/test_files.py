"""Files of summaries, heads and aggregators: verified, limited, crash-safe, named in errors."""

import os

import numpy as np
import pytest

import fedran
from fedran.wire import files
from helpers.wire.messages import half_done, solved_head, some_points, summary

THINGS = {
    fedran.Points: some_points(),
    fedran.Summary: summary(),
    fedran.Head: solved_head(),
    fedran.Aggregator: half_done("gram"),
}


@pytest.mark.parametrize("kind", THINGS)
def test_save_writes_the_bytes_of_encode_and_load_reads_them(kind, tmp_path):
    path = tmp_path / "upload.bin"
    obj = THINGS[kind]
    sent = kind is fedran.Summary
    for option in [{"bits": 8.0, "step": 2.0}, {"precision": "float32" if sent else None}]:
        assert fedran.save(obj, path, **option) == path.stat().st_size
        assert path.read_bytes() == fedran.encode(obj, **option)
        loaded = fedran.load(str(path))
        assert type(loaded) is type(fedran.decode(path.read_bytes())) is kind
        assert loaded.classes == obj.classes


@pytest.mark.parametrize("kind", THINGS)
def test_a_half_written_or_altered_file_is_refused_by_name(kind, tmp_path):
    path = tmp_path / "upload.bin"
    blob = fedran.encode(THINGS[kind])
    for damaged in (blob[: len(blob) // 2], blob[:-1] + bytes([blob[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        with pytest.raises(fedran.Refused, match=r"upload\.bin"):
            fedran.load(path)


@pytest.mark.parametrize("kind", THINGS)
def test_a_requested_kind_refuses_the_other_kinds(kind, tmp_path):
    for made, obj in THINGS.items():
        fedran.save(obj, tmp_path / "a")
        blob = fedran.encode(obj)
        if made is kind:
            assert type(fedran.decode(blob, kind)) is kind
            assert type(fedran.load(tmp_path / "a", kind)) is kind
            continue
        named = f"kind: expected {kind.__name__.lower()}, got {made.__name__.lower()}"
        with pytest.raises(fedran.Refused, match=named):
            fedran.decode(blob, kind)
        with pytest.raises(fedran.Refused, match=f"a: {named}"):
            fedran.load(tmp_path / "a", kind)


def test_decode_limits_an_aggregator_from_a_stranger_and_load_does_not(tmp_path):
    """A server's own state may hold more classes than one message."""
    agg = fedran.Aggregator(1)
    n = fedran.Limits().classes + 1
    agg.absorb(fedran.summarize(np.ones((n, 1)), list(range(n))), client="a", task="t")
    blob = fedran.encode(agg)
    fedran.save(agg, tmp_path / "a")
    with pytest.raises(fedran.Refused, match="classes"):
        fedran.decode(blob)
    with pytest.raises(fedran.Refused, match="classes"):
        fedran.load(tmp_path / "a", limits=fedran.Limits())
    for found in (fedran.decode(blob, fedran.Aggregator), fedran.load(tmp_path / "a")):
        assert len(found.classes) == n


@pytest.mark.parametrize("kind", [fedran.Summary, fedran.Head, None])
@pytest.mark.parametrize("limit", ["message", "header"])
def test_load_limits_summaries_and_heads_without_a_kind_too(kind, limit, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "DEFAULT_LIMITS", fedran.Limits(**{limit: 100}))
    fedran.save(THINGS[kind or fedran.Summary], tmp_path / "a")
    with pytest.raises(fedran.Refused, match=r"a: \w+: expected .*at most 100 bytes"):
        fedran.load(tmp_path / "a", kind)
    fedran.save(THINGS[fedran.Aggregator], tmp_path / "a")
    assert fedran.load(tmp_path / "a").classes == THINGS[fedran.Aggregator].classes


def test_large_files_are_refused_before_they_are_read(tmp_path, monkeypatch):
    fedran.save(summary(), tmp_path / "a")
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda path: pytest.fail("was read"))
    with pytest.raises(fedran.Refused, match="at most 10 bytes"):
        fedran.load(tmp_path / "a", limits=fedran.Limits(message=10))


def test_missing_files_and_folders_in_their_place_are_named(tmp_path):
    with pytest.raises(FileNotFoundError):
        fedran.load(tmp_path / "absent")
    with pytest.raises(FileNotFoundError):
        fedran.save(summary(), tmp_path / "absent" / "a")
    with pytest.raises(IsADirectoryError) as error:
        fedran.save(summary(), tmp_path)
    assert error.value.filename == str(tmp_path)


def test_a_link_stays_a_link_and_a_pipe_stays_a_pipe(tmp_path):
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "target")
    fedran.save(summary(), link)
    assert link.is_symlink()
    assert (tmp_path / "target").read_bytes() == fedran.encode(summary())
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="Not a regular file"):
        fedran.save(summary(), pipe)
    assert pipe.is_fifo()


@pytest.mark.parametrize("call", ["replace", "fsync"])
@pytest.mark.parametrize("crash", [OSError("disk full"), KeyboardInterrupt()])
def test_a_crash_leaves_the_old_file_and_nothing_else(call, crash, tmp_path, monkeypatch):
    path = tmp_path / "state"
    fedran.save(half_done("stack"), path)
    old = path.read_bytes()

    def fail(*_):
        raise crash

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(type(crash)):
        fedran.save(half_done("gram"), path)
    monkeypatch.undo()
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["state"]
