"""The server of the status page: for this machine only, read-only, three fixed paths."""

import json
import re

import pytest

pytest.importorskip("flwr")

from fedran.federation.status.reader import Reader
from fedran.federation.status.web import PortInUse, StatusServer, content_security_policy
from helpers.federation.status_page import request, serving


def test_the_page_its_sections_and_the_json_show_the_same_state(open_task):
    with serving(Reader(open_task.folder)) as server:
        assert server.server_address[0] == "127.0.0.1"
        code, body, headers = request(server)
        assert code == 200
        for words in ("Task may is open", "1 of 3 sites answered", "site-1", "cat"):
            assert words in body
        assert headers["Content-Security-Policy"] == content_security_policy()
        assert "unsafe" not in content_security_policy()
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert not re.search(r"(src|href)\s*=\s*[\"']?\s*(https?:)?//", body)
        assert request(server, "/sections")[1] in body
        found = json.loads(request(server, "/status.json")[1])
        assert found["tasks"][0]["missing"] == ["site-2", "site-3"]
        assert found["running"] is True


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", None, "[::1]"]
)
def test_a_request_for_another_host_name_is_refused(host, open_task):
    with serving(Reader(open_task.folder)) as server:
        code, body, _ = request(server, host=host)
        assert (code, "site-1" in body) == (403, False)
        twice = request(server, host="127.0.0.1", headers=[("Host", "evil.example")])
        assert twice[0] == 403
        assert request(server, host="localhost:9000")[0] == 200


def test_only_get_requests_are_answered(open_task):
    with serving(Reader(open_task.folder)) as server:
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE"):
            assert request(server, method=method)[0] == 501


@pytest.mark.parametrize(
    "path",
    ["/server.toml", "/../server.toml", "/%2e%2e/server.toml", "/state/store.db", "/?x", "*"],
)
def test_other_paths_and_files_are_not_found(path, open_task):
    with serving(Reader(open_task.folder)) as server:
        code, body, _ = request(server, path)
        assert (code, "federation" in body) == (404, False)


def test_a_port_in_use_is_an_error_with_advice(open_task):
    with (
        serving(Reader(open_task.folder)) as server,
        pytest.raises(PortInUse, match="--port 0 takes any"),
    ):
        StatusServer(Reader(open_task.folder), server.server_address[1])
