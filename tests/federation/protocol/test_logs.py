"""The log file: no line can be forged, none is lost, and only the owner can read it."""

import json
import logging
import os
import re
import stat
import warnings

import pytest

pytest.importorskip("cryptography")

from fedran.federation.protocol import logs
from fedran.federation.protocol.logs import Tail, log_file, log_to

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (INFO|WARNING|ERROR) .*")


@pytest.fixture
def logger():
    """The logger of the package, restored after the test."""
    found = logging.getLogger("fedran")
    level, handlers = found.level, list(found.handlers)
    yield found
    for handler in found.handlers:
        if handler not in handlers:
            handler.close()
    found.handlers[:] = handlers
    found.setLevel(level)


BREAKS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
FORGED = "2026-01-01 00:00:00 INFO site-9, may: accepted"


@pytest.mark.parametrize("end", BREAKS)
def test_no_foreign_text_can_forge_a_line(end, logger, tmp_path):
    path = log_to(tmp_path)
    logger.warning("told the server: %s", f"harmless{end}{FORGED}{end}{FORGED}")
    lines = path.read_text().split("\n")
    assert [bool(LINE.fullmatch(line)) for line in lines] == [True, False, False, False]
    assert lines[1] == lines[2] == "    " + FORGED
    assert len(path.read_text().splitlines()) == 3


def test_control_characters_in_a_log_line_are_escaped(logger, tmp_path):
    path = log_to(tmp_path)
    logger.error("%s", "a\x1b[2J\x07\x00\b\u202eb\x9b31m")
    text = path.read_text()
    assert text.endswith(" ERROR a\\x1b[2J\\x07\\x00\\x08\\u202eb\\x9b31m\n")


def test_a_traceback_in_the_log_is_indented_and_escaped(logger, tmp_path):
    path = log_to(tmp_path)
    try:
        raise ValueError(f"bad\n{FORGED}\x1b[31m")
    except ValueError as reason:
        logger.exception("the run failed: %s", reason)
    first, *rest = path.read_text().splitlines()
    assert LINE.fullmatch(first)
    assert any("Traceback" in line for line in rest)
    assert all(line.startswith("    ") for line in rest)
    assert "\x1b" not in path.read_text()


def test_a_very_long_log_line_is_cut(logger, tmp_path):
    path = log_to(tmp_path)
    logger.info("x" * 10**6)
    assert path.stat().st_size < 2100


def test_a_second_call_moves_the_log_to_the_new_folder(logger, tmp_path):
    log_to(tmp_path / "first")
    before = len(logger.handlers)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for name in ("a", "a", "b"):
            log_to(tmp_path / name)
        assert len(logger.handlers) == before
    logging.getLogger("fedran.federation.anything").info("here")
    assert log_file(tmp_path / "a").read_text() == ""
    assert log_file(tmp_path / "b").read_text().count("here") == 1


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_only_the_owner_can_read_the_log(logger, tmp_path):
    before = os.umask(0)
    try:
        path = log_to(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_large_log_file_is_rotated(logger, tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "MAX_LOG_BYTES", 100)
    path = log_to(tmp_path)
    logger.info("old %s", "x" * 100)
    log_to(tmp_path)
    logger.info("new")
    assert "old" in path.with_suffix(".log.1").read_text()
    assert path.read_text().endswith("new\n")
    assert "old" not in path.read_text()


def test_a_running_program_follows_the_rotation_by_another_process(logger, tmp_path):
    """The process of every run calls ``log_to`` and may rotate the file of the server."""
    path = log_to(tmp_path)
    logger.info("before")
    path.replace(path.with_suffix(".log.1"))
    path.touch(0o600)
    logger.info("after")
    assert path.read_text().endswith("after\n")


def put(path, text):
    with path.open("a", encoding="utf-8", newline="") as file:
        file.write(text)


def test_a_tail_returns_each_new_line_once(tmp_path):
    path = tmp_path / "x.log"
    put(path, "old\n")
    tail = Tail(path)
    assert list(tail.lines()) == []
    put(path, "one\ntw")
    assert list(tail.lines()) == ["one"]
    assert list(tail.lines()) == []
    put(path, "o\nthree\n")
    assert list(tail.lines()) == ["two", "three"]


def test_a_tail_can_wait_for_a_file_that_does_not_exist(tmp_path):
    tail = Tail(tmp_path / "x.log")
    assert list(tail.lines()) == []
    put(tmp_path / "x.log", "first\n")
    assert list(tail.lines()) == ["first"]


def test_a_tail_continues_in_a_rotated_file(tmp_path):
    path = tmp_path / "x.log"
    put(path, "a long line before the file is put by\nand a torn one")
    tail = Tail(path)
    put(path, "...")
    list(tail.lines())
    path.replace(tmp_path / "x.log.1")
    assert list(tail.lines()) == []
    put(path, "new\n")
    assert list(tail.lines()) == ["new"]


def test_a_tail_notices_a_new_file_that_is_larger(tmp_path):
    path = tmp_path / "x.log"
    put(path, "old\n")
    tail = Tail(path)
    path.replace(tmp_path / "x.log.1")
    put(path, "the first line of the new file\n")
    assert list(tail.lines()) == ["the first line of the new file"]


def test_a_tail_replaces_bytes_that_are_not_text(tmp_path):
    path = tmp_path / "x.log"
    tail = Tail(path)
    path.write_bytes(b"\xff\xfe\x00\nnext\n")
    assert list(tail.lines())[-1] == "next"


def test_a_tail_returns_a_half_written_character_when_it_is_complete(tmp_path):
    path = tmp_path / "x.log"
    tail = Tail(path)
    letter = "ü".encode()
    path.write_bytes(b"f" + letter[:1])
    assert list(tail.lines()) == []
    with path.open("ab") as file:
        file.write(letter[1:] + b"r\n")
    assert list(tail.lines()) == ["für"]


def test_lines_are_json_on_request(tmp_path, monkeypatch, logger):
    monkeypatch.setenv("FEDRAN_LOG", "json")
    path = log_to(tmp_path)
    logger = logging.getLogger("fedran.test")
    told = {
        "site": "a\n",
        "task": "may",
        "decision": "accepted",
        "code": "accepted",
        "seconds": 0.5,
    }
    logger.warning("site %s:\x1b[31m\nforged", "a", extra=told)
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("it failed")
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first["message"] == "site a:\\x1b[31m\\nforged"
    assert (first["level"], first["logger"]) == ("WARNING", "fedran.test")
    assert first["time"].endswith("+00:00")
    assert {name: first[name] for name in told} == {**told, "site": "a\\n"}
    assert "ValueError: broken" in second["exception"]
    assert not second.keys() & told.keys()
