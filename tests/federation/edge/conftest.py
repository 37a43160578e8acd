"""Fixtures: an edge that can be opened again and again, its members and the server."""

import pytest


@pytest.fixture(scope="module")
def sites():
    from helpers.made_edge import MEMBERS
    from helpers.made_federation import Sites

    return Sites(*MEMBERS, "edge")


@pytest.fixture
def opened(sites, tmp_path):
    """A function that opens the edge's folder. The one before is closed, as after a crash."""
    from fedran.federation.edge.edge import Edge
    from fedran.federation.protocol.roster import Roster
    from fedran.federation.site.outbox import Outbox
    from fedran.federation.site.settings import SiteSettings
    from helpers.made_edge import MEMBERS

    current = []

    def open_it(name="edge", offer=None):
        close_all()
        settings = SiteSettings("trial", name, folder="data")
        members = Roster({m: sites.keys[m].public for m in MEMBERS}, {"inner": MEMBERS[:2]})
        folder = tmp_path / name
        found = Edge(folder, settings, sites.keys[name], members, Outbox(folder / "outbox"), offer)
        current.append(found)
        return found

    def close_all():
        while current:
            current.pop().close()

    yield open_it
    close_all()


@pytest.fixture
def server(sites, tmp_path):
    from fedran.federation.server.store import Store
    from helpers.made_federation import SETTINGS

    store = Store(tmp_path / "server", SETTINGS, sites.roster)
    yield store
    store.close()
