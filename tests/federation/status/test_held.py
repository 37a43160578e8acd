"""A classifier that is held back, in status and page."""

import io
import json
import time

import pytest

pytest.importorskip("flwr")

from rich.console import Console

from fedran.federation.status.reader import Reader
from fedran.federation.status.terminal import print_status
from fedran.federation.status.web import render_page
from helpers.federation.recorded_federation import RecordedFederation

HOSTILE = "<b>worse</b>"


@pytest.fixture
def recorded(tmp_path):
    found = RecordedFederation(tmp_path)
    held = {"at": time.time(), "task": "june", "digest": "d" * 64, "reason": f"{HOSTILE} [red]x"}
    uploads = [["site-2", "june", 12.3], ["site-3", "june", 3.0]]
    found.database.set_fact("held", json.dumps({**held, "uploads": uploads}))
    yield found
    found.database.close()


def test_the_terminal_shows_it_with_the_commands(recorded):
    console = Console(file=io.StringIO(), width=80, highlight=False)
    print_status(Reader(recorded.folder).read(), console)
    out = console.file.getvalue()
    assert "The newest classifier is held back" in out
    assert f"{HOSTILE} [red]x" in out
    for command in ("site-2 --task june", "site-3 --task june"):
        assert f"fedran federation forget {recorded.folder} {command}\n" in out
    assert f"fedran federation rollback {recorded.folder} --release\n" in out


def test_the_page_shows_it(recorded):
    text = render_page(Reader(recorded.folder).read()).decode()
    assert "The newest classifier is held back" in text
    assert HOSTILE not in text


def test_without_it_nothing_is_shown(recorded):
    recorded.database.set_fact("held", "")
    status = Reader(recorded.folder).read()
    assert status.held is None
    text = render_page(status).decode()
    assert "held back" not in text
