"""Reasons why a server cannot be reached, and the expiry of certificates."""

import socket
import ssl
import threading
import time
from contextlib import contextmanager

import pytest

pytest.importorskip("cryptography")

from fedran.federation.flower.programs import free_port
from fedran.federation.protocol import keys
from fedran.federation.protocol.connection import certificate_expiry, why_unreachable


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    keys.make_certificates(folder)
    return folder


@contextmanager
def listener(context=None):
    """Accepts one connection, with TLS if there is a context."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def accept():
            try:
                connection, _ = server.accept()
                with connection:
                    if context is None:
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    else:
                        context.wrap_socket(connection, server_side=True).close()
            except OSError:
                pass

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.fixture
def context(tls):
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(tls / "server.crt", tls / "server.key")
    return found


def test_a_server_with_the_right_certificate_is_reached(tls, context):
    with listener(context) as address:
        assert why_unreachable(address, tls / "ca.crt") == ("", "")


def test_reasons_are_named(tls, context, tmp_path):
    keys.make_certificates(tmp_path / "other")
    with listener(context) as address:
        found, remedy = why_unreachable(address, tmp_path / "other" / "ca.crt")
        assert found.startswith("its certificate is not valid here: ")
        assert "ask the server's owner for ca.crt again" in remedy
    with listener() as address:
        found, _ = why_unreachable(address, tls / "ca.crt")
        assert found.startswith("it does not speak TLS")
    address = f"127.0.0.1:{free_port()}"
    assert why_unreachable(address, tls / "ca.crt") == (
        "nothing listens there; the server or its proxy may be down",
        f"check that {address} is right (`server` in site.toml); ask the server's owner whether "
        "both run",
    )
    found, remedy = why_unreachable("no-such-host.invalid:9443", None)
    assert found.startswith("the name no-such-host.invalid is not known")
    assert "DNS" in remedy


def test_the_expiry_of_a_certificate_is_a_time(tls, tmp_path):
    left = (certificate_expiry(tls / "server.crt") - time.time()) / 86400
    assert keys.SERVER_DAYS - 1 < left <= keys.SERVER_DAYS
    assert certificate_expiry(tmp_path / "none.crt") is None
    (tmp_path / "odd.crt").write_text("nonsense")
    assert certificate_expiry(tmp_path / "odd.crt") is None
