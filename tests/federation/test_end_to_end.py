"""Two sites and two tasks over TLS with a real SuperLink and real SuperNodes.

`make test-faults` kills one of the sites.
"""

import json
import os
import ssl
import threading
import urllib.error
import urllib.request

import pytest

pytest.importorskip("flwr")

from helpers.federation.real_federation import federation, wait_for

SITES = ("site-1", "site-2")


def open_routes(fed):
    """The routes of the SuperLink that answer to a user without any secret."""
    trust = ssl.create_default_context(cafile=str(fed.server.tls / "ca.crt"))
    url = f"https://{fed.server.settings().address}"

    def ask(path, data=None, **headers):
        headers["Content-Type"] = "application/protobuf"
        request = urllib.request.Request(url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=30, context=trust) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, b""

    assert ask("/openapi.json")[0] == 401
    secret = json.loads((fed.server.runtime / "owner.json").read_text())["secret"]
    paths = json.loads(ask("/openapi.json", Authorization=f"Bearer {secret}")[1])["paths"]
    assert any(path.startswith("/v1/fleet") for path in paths)
    posts = [path for path, verbs in paths.items() if "post" in verbs]
    return {path for path in posts if ask(path, b"")[0] != 401}


@pytest.mark.waits
@pytest.mark.skipif(os.name != "posix", reason="the federation runs on Linux")
@pytest.mark.parametrize(
    "killed", [False, pytest.param(True, marks=pytest.mark.faults, id="killed during an upload")]
)
def test_two_sites_learn_two_tasks(tmp_path, killed):
    with federation(tmp_path / "trial") as fed:
        made = fed.outbox("site-2").folder / "task-1.envelope"

        def kill():
            wait_for(made.is_file, made)
            fed.kill("site-2")

        killer = threading.Thread(target=kill) if killed else None
        if killer:
            killer.start()
        first = fed.task("task-1")
        if killer:
            killer.join()
        envelope = made.read_bytes()
        second = fed.task("task-2")

        assert open_routes(fed) == set()
        assert (first, second) == ("complete", "complete")
        for name in SITES:
            assert [fed.outbox(name).receipt(t).outcome for t in ("task-1", "task-2")] == [
                "accepted",
                "accepted",
            ]
            assert fed.head(name).classes == tuple(range(10))
            assert fed.accuracy(name) > 0.95
        assert made.read_bytes() == envelope, "the same upload is sent again"
        accepted = fed.events("upload", outcome="accepted")
        assert len(accepted) == 4, "each upload is accepted exactly once"
        for place in (fed.server, fed.site("site-1")):
            assert not place.folder.stat().st_mode & 0o077, "keys and state are private"
