"""The journal keeps acknowledged records, drops an incomplete last one, and detects damage."""

import errno
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedran.federation.server import journal as module
from fedran.federation.server.journal import HEADER, MAGIC, Journal, StoreDamaged


def filled(path, records):
    journal = Journal(path)
    for record in records:
        journal.append(record)
    journal.close()
    return path.read_bytes()


RECORDS = [b"one", b"", b"x" * 5000, b"four"]


def test_records_are_read_in_order(tmp_path):
    filled(tmp_path / "j", RECORDS)
    again = Journal(tmp_path / "j")
    assert again.count == 4
    assert list(again.records()) == RECORDS
    assert list(again.records(2)) == RECORDS[2:]
    assert again.append(b"five") == 4
    assert list(again.records(3)) == [b"four", b"five"]
    again.close()


def test_only_the_owner_can_read_the_journal(tmp_path):
    filled(tmp_path / "j", RECORDS)
    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o600


@given(st.lists(st.binary(max_size=60), max_size=5), st.integers(0, 400))
@settings(max_examples=150, deadline=None)
def test_a_journal_cut_anywhere_keeps_its_whole_records(tmp_path_factory, records, cut):
    path = tmp_path_factory.mktemp("j") / "j"
    whole = filled(path, records)
    cut = min(cut, len(whole))
    path.write_bytes(whole[:cut])
    journal = Journal(path)
    kept, end = 0, len(MAGIC)
    for record in records:
        end += HEADER + len(record)
        kept += end <= cut
    assert list(journal.records()) == records[:kept]
    journal.append(b"next")
    assert list(journal.records()) == [*records[:kept], b"next"]
    journal.close()


@pytest.mark.parametrize("zeros", [1, HEADER - 1, HEADER, 500])
def test_zeros_at_the_end_are_an_incomplete_record(zeros, tmp_path):
    whole = filled(tmp_path / "j", RECORDS)
    (tmp_path / "j").write_bytes(whole + bytes(zeros))
    journal = Journal(tmp_path / "j")
    assert journal.count == 4
    assert (tmp_path / "j.torn").read_bytes() == bytes(zeros)
    assert (tmp_path / "j").read_bytes() == whole
    journal.close()


def test_a_last_record_with_missing_pages_is_removed(tmp_path):
    whole = filled(tmp_path / "j", [b"a" * 10, b"b" * 9000])
    (tmp_path / "j").write_bytes(whole[:-4096] + bytes(4096))
    journal = Journal(tmp_path / "j")
    assert list(journal.records()) == [b"a" * 10]
    journal.close()


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_an_altered_byte_before_the_last_record_is_detected(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("j") / "j"
    whole = bytearray(filled(path, [b"first" * 9, b"second" * 9, b"last"]))
    at = data.draw(st.integers(0, len(whole) - 1 - HEADER - 4))
    whole[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    with pytest.raises(StoreDamaged, match=r"restore the folder|a fedran journal"):
        Journal(path)


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path, monkeypatch):
    whole = filled(tmp_path / "j", RECORDS)
    journal = Journal(tmp_path / "j")
    real, room = os.write, [HEADER + 10]

    def write(file, data):
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = real(file, data[: room[0]])
        room[0] -= done
        return done

    monkeypatch.setattr(module.os, "write", write)
    with pytest.raises(OSError, match="No space left"):
        journal.append(b"z" * 100)
    assert (tmp_path / "j").read_bytes() == whole
    room[0] = 10**6
    journal.append(b"later")
    assert list(journal.records(3)) == [b"four", b"later"]
    journal.close()


def test_a_file_that_is_not_a_journal_is_refused(tmp_path):
    (tmp_path / "j").write_bytes(b"something else entirely")
    with pytest.raises(StoreDamaged, match="expected a fedran journal"):
        Journal(tmp_path / "j")
