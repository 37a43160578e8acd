"""``fedran federation`` in a folder of its own."""

import pytest


@pytest.fixture
def call(cli, tmp_path, monkeypatch):
    """``fedran federation ...`` in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return cli("federation", *map(str, arguments))

    return run


@pytest.fixture
def trial(call):
    """A trial without rows, in the folder ``t``."""
    assert call("init", "t", "--in-features", "6")[0] == 0
    return "t"
