"""Fixtures: sites with keys, and a server that runs rounds over nodes in memory."""

import time
from dataclasses import replace

import pytest


@pytest.fixture(scope="module")
def sites():
    from helpers.federation.fleet import NAMES
    from helpers.federation.made_federation import Sites

    return Sites(*NAMES)


@pytest.fixture
def store(sites, tmp_path):
    """An empty store of these sites."""
    found = sites.store(tmp_path / "state")
    yield found
    found.close()


@pytest.fixture
def sums(sites, tmp_path):
    """An empty store of secure sums of these sites."""
    from helpers.federation.made_federation import SUMS

    found = sites.store(tmp_path / "state", **SUMS)
    yield found
    found.close()


@pytest.fixture
def short_waits(monkeypatch):
    """A round that polls quickly, in a process that Flower would have started for a run."""
    from helpers.federation.fleet import shorten_waits

    shorten_waits(monkeypatch)


@pytest.fixture
def server(sites, short_waits, tmp_path):
    """A function that runs one round over nodes; the store's folder outlives it."""
    from fedran.federation.flower.serverapp import FlowerNetwork
    from fedran.federation.server.round.messenger import Messenger
    from fedran.federation.server.round.round import Round
    from helpers.federation.fleet import Fleet
    from helpers.federation.made_federation import SETTINGS

    made = []

    def run(task, nodes, deadline=0.2, owners=None, **changes):
        settings = replace(SETTINGS, **changes)
        # Shorter than a file may say: most of these tests wait for it.
        object.__setattr__(settings, "deadline", deadline)
        if not made:
            made.append(sites.store(tmp_path / "state"))
        run.store = made[0]
        run.store.settings = settings
        run.grid = Fleet(nodes) if isinstance(nodes, dict) else nodes
        run.round = Round(Messenger(FlowerNetwork(run.grid)), made[0], None, owners)
        start = time.monotonic()
        verdict = run.round.run(task)
        run.seconds = time.monotonic() - start
        return verdict

    def close():
        """The next round opens the store again."""
        while made:
            made.pop().close()

    run.folder, run.close = tmp_path / "state", close
    yield run
    close()
