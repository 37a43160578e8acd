"""A classifier that is held back, and the accuracy without each site, in status and page."""

import io
import json
import time

import pytest

pytest.importorskip("flwr")

from rich.console import Console

from fedran.federation.status.reader import Reader
from fedran.federation.status.terminal import print_status
from fedran.federation.status.web import render_page
from helpers.recorded_federation import RecordedFederation

HOSTILE = "<b>worse</b>"


@pytest.fixture
def recorded(tmp_path):
    found = RecordedFederation(tmp_path)
    held = {"at": time.time(), "task": "june", "digest": "d" * 64, "reason": f"{HOSTILE} [red]x"}
    uploads = [["site-2", "june", 12.3], ["site-3", "june", 3.0]]
    found.database.set_fact("held", json.dumps({**held, "uploads": uploads}))
    line = {"client": "site-2", "task": "", "rows": 1234, "without": 0.974, "gain": 97.37}
    other = {**line, "client": "site-1", "without": 0.0, "gain": -0.04, "replayed": None}
    table = {"at": time.time(), "accuracy": 0.0003, "lines": [{**line, "replayed": 0.973}, other]}
    found.database.set_fact("influence", json.dumps(table))
    yield found
    found.database.close()


def test_the_terminal_shows_both(recorded):
    console = Console(file=io.StringIO(), width=80, highlight=False)
    print_status(Reader(recorded.folder).read(), console)
    out = console.file.getvalue()
    assert "The newest classifier is held back" in out
    assert f"{HOSTILE} [red]x" in out
    for command in ("site-2 --task june", "site-3 --task june"):
        assert f"fedran federation forget {recorded.folder} {command}\n" in out
    assert f"fedran federation rollback {recorded.folder} --release\n" in out
    words = " ".join(out.split())
    assert "sends them again with `fedran federation revise`. `forget` is final" in words
    assert "site-2 all 1,234 97.4 % +97.4 97.3 %" in words
    assert "(nobody) 0.0 %" in words


def test_the_page_shows_both(recorded):
    text = render_page(Reader(recorded.folder).read()).decode()
    assert "The newest classifier is held back" in text
    assert HOSTILE not in text
    assert "Accuracy without each site" in text
    assert "+97.4" in text


def test_without_them_nothing_is_shown(recorded):
    recorded.database.set_fact("held", "")
    recorded.database.set_fact("influence", "")
    status = Reader(recorded.folder).read()
    assert (status.held, status.influence) == (None, None)
    text = render_page(status).decode()
    assert "held back" not in text
    assert "Accuracy without" not in text
