"""The files in deploy/: a proxy that forwards only what sites need, units and a container."""

import http.server
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytest.importorskip("cryptography")

from fedran.federation.flower.programs import free_port
from fedran.federation.ops.scaffold import make_federation
from fedran.federation.protocol.keys import make_certificates
from fedran.federation.status.metrics import render_metrics
from fedran.federation.status.reader import Reader

DEPLOY = Path(__file__).parents[1] / "deploy"
if not DEPLOY.is_dir():
    pytest.skip("no deploy/ beside the tests", allow_module_level=True)
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
AS_ROOT = "user root;" if os.geteuid() == 0 else ""
"""Workers of nginx write to the folder of the test, which is ours."""
HTTP = """
daemon off;
{user}
worker_rlimit_nofile 4096;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/fedran.conf;
}}
"""


class Upstream(http.server.BaseHTTPRequestHandler):
    """Answers as a SuperLink does that has every interface."""

    connections = 0

    def setup(self):
        Upstream.connections += 1
        super().setup()

    def do_HEAD(self):
        self.do_GET()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self):
        body = f"upstream {self.path}".encode()
        known = self.path != "/v1/fleet/known" or self.headers.get("flwr-signature") == "ours"
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def proxy(tmp_path):
    """nginx with our file, in front of a TLS server on loopback; a function that asks it."""
    if NGINX is None:
        pytest.skip("nginx is not installed")
    make_certificates(tmp_path / "tls")
    Upstream.connections = 0
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls" / "server.crt", tmp_path / "tls" / "server.key")
    upstream.socket = context.wrap_socket(upstream.socket, server_side=True)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    port = free_port()
    text = (DEPLOY / "nginx" / "fedran.conf").read_text()
    changes = {
        "listen 9444 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "listen [::]:9444 ssl;": "",
        "/etc/fedran/tls": str(tmp_path / "tls"),
        "https://127.0.0.1:9443": f"https://127.0.0.1:{upstream.server_address[1]}",
    }
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    (tmp_path / "fedran.conf").write_text(text)
    (tmp_path / "nginx.conf").write_text(HTTP.format(folder=tmp_path, user=AS_ROOT))
    arguments = [NGINX, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    tested = subprocess.run([*arguments, "-t"], capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stderr
    process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
    trust = ssl.create_default_context(cafile=tmp_path / "tls" / "ca.crt")

    def ask(path, data=None, signature=""):
        try:
            url = f"https://localhost:{port}{path}"
            request = urllib.request.Request(url, data, {"flwr-signature": signature})
            with urllib.request.urlopen(request, timeout=10, context=trust) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""

    ask.port, ask.trust, ask.upstream = port, trust, lambda: Upstream.connections
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield ask
    finally:
        process.terminate()
        process.wait(20)
        upstream.shutdown()
        upstream.server_close()


def test_the_proxy_forwards_only_the_interface_of_the_sites(proxy):
    assert proxy("/v1/fleet/pull-messages") == (200, "upstream /v1/fleet/pull-messages")
    hidden = ["/", "/docs", "/openapi.json", "/v1/control/start-run", "/v1/runtime/acquire-task"]
    hidden += ["/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run"]
    for path in hidden:
        status, body = proxy(path)
        assert (status in (301, 403), "upstream" in body) == (True, False), path


def test_the_proxy_limits_bodies_and_connections(proxy):
    assert proxy("/v1/fleet/pull-messages", b"x" * 1000)[0] == 200
    assert proxy("/v1/fleet/pull-messages", b"x" * 100_000)[0] == 413
    assert proxy("/v1/fleet/push-object", b"x" * 6_000_000, "ours")[0] == 200
    assert proxy("/v1/fleet/push-object", b"x" * 9_000_000, "ours")[0] == 413
    assert proxy("/v1/fleet/push-object", b"x" * 1000, "forged")[0] == 401
    held = []
    try:
        answers = []
        for _ in range(40):
            plain = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
            held.append(proxy.trust.wrap_socket(plain, server_hostname="localhost"))
            # The first half of a request: such connections are counted, and closed after 10 s.
            held[-1].sendall(b"POST /v1/fleet/x HTTP/1.1\r\nHost: localhost\r\n")
            held[-1].sendall(b"Content-Length: 10\r\n\r\n")
            held[-1].settimeout(0.2)
            try:
                answers.append(held[-1].recv(20))
            except TimeoutError:
                answers.append(b"")
        assert sum(b"429" in answer for answer in answers) == 40 - 32
    finally:
        for connection in held:
            connection.close()


def test_idle_connections_do_not_reach_the_server(proxy):
    idle = [socket.create_connection(("127.0.0.1", proxy.port), timeout=10) for _ in range(300)]
    try:
        assert proxy("/v1/fleet/pull-messages")[0] == 200
    finally:
        for connection in idle:
            connection.close()
    assert proxy.upstream() <= 2


@pytest.mark.parametrize("name", ["fedran-server.service", "fedran-site@.service"])
def test_units_can_be_enabled_at_boot_and_are_valid(name, tmp_path):
    text = (DEPLOY / "systemd" / name).read_text()
    for line in ("WantedBy=multi-user.target", "Restart=always", "After=network-online.target"):
        assert line in text.splitlines()
    assert re.search(r"^LimitNOFILE=\d{5}$", text, re.M)
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    executable = tmp_path / "fedran"
    executable.write_text("#!/bin/sh\n")
    executable.chmod(0o755)
    unit = tmp_path / name.replace("@", "@trial")
    unit.write_text(
        text.replace("/opt/fedran/bin/fedran", str(executable)).replace("User=fedran", "User=root")
    )
    done = subprocess.run(
        [analyze, "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    problems = [x for x in done.stderr.splitlines() if unit.name in x]
    assert (done.returncode, problems) == (0, []), done.stderr


def test_commands_in_units_and_compose_file_exist(cli):
    text = "".join(p.read_text() for p in DEPLOY.rglob("*") if p.is_file())
    for command in ("server", "client"):
        assert f"federation {command}" in text
        assert cli("federation", command, "--help")[0] == 0


def test_the_compose_file_names_the_image_and_files_that_exist():
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"server", "proxy", "site"}
    assert (DEPLOY / ".." / services["server"]["build"]["dockerfile"]).is_file()
    mounted = [volume.rsplit(":", 2) for volume in services["proxy"]["volumes"]]
    assert {mode for *_, mode in mounted} == {"ro"}
    assert all((DEPLOY / here).is_file() for here, *_ in mounted if here.startswith("."))
    tls = {there.rsplit("/", 1)[1] for _, there, _ in mounted if "/tls/" in there}
    assert tls == {"ca.crt", "server.crt", "server.key"}
    for service in services.values():
        assert service["restart"] == "always"
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"]


def test_the_container_file_copies_files_that_exist():
    text = (DEPLOY / "Containerfile").read_text()
    copied = re.findall(r"^COPY (.*) \S+$", text, re.M)
    names = [name for line in copied for name in line.split()]
    assert names
    for name in names:
        assert (DEPLOY.parent / name).exists(), name
    assert text.index("USER 10001") > text.index("pip install") > text.index("--uid 10001")


def test_every_dependency_of_the_image_is_pinned_within_its_range_and_has_a_hash():
    """`make pins` writes the file again."""
    text = (DEPLOY / "requirements.txt").read_text()
    assert "://" not in text
    assert len(text) < 2**20
    pinned = {}
    for name, version, hashes in re.findall(
        r"^(\S+)==(\S+)((?: \\\n    --hash=\S+)+)$", text, re.M
    ):
        assert re.fullmatch(r"( \\\n    --hash=sha256:[0-9a-f]{64})+", hashes), name
        pinned[canonicalize_name(name)] = version
    assert len(pinned) == text.count("==")
    declared = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    direct = declared["project"]["dependencies"] + declared["build-system"]["requires"]
    for line in direct + declared["project"]["optional-dependencies"]["flower"]:
        needed = Requirement(line)
        assert needed.specifier.contains(pinned[canonicalize_name(needed.name)]), line
    constraints = (DEPLOY.parent / "constraints.txt").read_text()
    tested = dict(re.findall(r"^([^#=\s]+)==(\S+)$", constraints, re.M))
    tested = {canonicalize_name(name): version for name, version in tested.items()}
    for name, version in pinned.items():
        assert tested.get(name, version) == version, name


def test_dashboard_and_alerts_use_metrics_that_the_server_has(tmp_path):
    make_federation(tmp_path / "t", n_sites=1)
    metrics = render_metrics(Reader(tmp_path / "t").read()).decode()
    known = set(re.findall(r"^# TYPE (\S+)", metrics, re.M))
    rules = (DEPLOY / "prometheus" / "fedran.rules.yml").read_text()
    panels = json.loads((DEPLOY / "grafana" / "fedran.json").read_text())["panels"]
    shown = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    for text in (shown, " ".join(re.findall(r"expr: (.*)", rules))):
        used = set(re.findall(r"fedran_[a-z_]+", text))
        assert len(used) > 8
        assert used <= known


def test_the_alert_rules_are_valid_and_fire(tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool of Debian's package prometheus is not installed")
    rules = DEPLOY / "prometheus" / "fedran.rules.yml"
    series = {"fedran_disk_free_bytes": 1000, "fedran_up": 1, "fedran_set_aside": 0}
    series |= {"fedran_head_timestamp_seconds": 60, "fedran_last_task_timestamp_seconds": 120}
    series |= {"fedran_open_tasks": 0, 'fedran_site_connected{site="a"}': 0}
    fired = ("FedranDiskNearlyFull", "FedranNoNewHead", "FedranSiteSilent")
    test = {
        "interval": "1m",
        "input_series": [{"series": k, "values": f"{v}+0x1600"} for k, v in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "25h",
                "exp_samples": [{"labels": f'{{alertname="{n}"}}', "value": 1} for n in fired],
            }
        ],
    }
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(rules)], "tests": [test]}))
    for arguments in (("check", "rules", rules), ("test", "rules", file)):
        done = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
