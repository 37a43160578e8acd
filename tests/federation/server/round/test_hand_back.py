"""Heads go to the nodes that lack them."""

import pytest

pytest.importorskip("flwr")

from flwr.app import (
    Error,
    MessageType,
    RecordDict,
)

from helpers.federation.fleet import Deaf, honest, named, served, text


def test_a_head_that_a_node_holds_is_not_sent_again(server, sites):
    nodes = honest(sites)
    server("may", nodes)
    held = (server.folder / "head.fedran").read_bytes()
    for node in nodes.values():
        node.blobs = ()
    server("", nodes)
    assert sorted(served(server.folder)["nodes"]) == ["11", "12", "13"]
    sent = [m for m in server.grid.of(MessageType.QUERY) if len(m.content["blobs"])]
    assert (sent, nodes[11].head) == ([], held)


@pytest.mark.parametrize(
    "how",
    [
        None,
        Error(1, "x"),
        named(head="0" * 64),
        named(head=None),
        text("{"),
        RecordDict(),
        pytest.param(text("[" * 10**5)),
    ],
)
def test_only_nodes_that_hold_the_newest_head_are_served(how, server, sites, caplog):
    nodes = honest(sites)
    nodes[12] = Deaf("site-2", sites.envelope("site-2", "may"))
    nodes[12].how = how
    assert server("may", nodes) == "complete"
    assert sorted(served(server.folder)["nodes"]) == ["11", "13"]
    assert "1 of 3 nodes will be asked again" in caplog.text
    assert server.seconds < 5
