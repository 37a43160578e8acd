"""Node keys that Flower can read, and certificates that pass a real TLS handshake."""

import os
import socket
import ssl
import stat
import threading

import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedran.core.errors import Refused
from fedran.federation.protocol import keys
from fedran.federation.protocol.keys import (
    check_node_key,
    days_left,
    make_certificates,
    make_node_key,
    renew_server,
    server_hosts,
)


def test_flower_can_read_a_node_key_and_its_public_half(tmp_path):
    """As ``flower-supernode`` loads the private key, and ``flwr supernode register`` the other."""
    public = make_node_key(tmp_path / "node.key")
    assert stat.S_IMODE((tmp_path / "node.key").stat().st_mode) == 0o600
    private = load_ssh_private_key((tmp_path / "node.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    found = load_ssh_public_key(public.encode())
    found.verify(private.sign(b"x", ec.ECDSA(hashes.SHA256())), b"x", ec.ECDSA(hashes.SHA256()))
    assert check_node_key(public) == public
    assert public.split()[0] == "ecdsa-sha2-nistp384"
    assert "\n" not in public


def test_every_node_key_is_new_and_none_is_overwritten(tmp_path):
    assert make_node_key(tmp_path / "a") != make_node_key(tmp_path / "b")
    with pytest.raises(FileExistsError):
        make_node_key(tmp_path / "a")


def node_public():
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


NODE = node_public()
OTHER_KIND = (
    ed25519.Ed25519PrivateKey.generate()
    .public_key()
    .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    .decode()
)
BAD_NODES = [None, 3, b"x", [NODE], "", " ", "ecdsa-sha2-nistp384", NODE[:-8], OTHER_KIND]
BAD_NODES += [NODE + "x" * 1000, "\n" + NODE, "ecdsa-sha2-nistp384 ÄÄÄÄ", NODE.split()[1]]
BAD_NODES += ["ssh-rsa " + NODE.split()[1], "\ud800"]
SEVERAL_LINES = [f"{NODE}\n{NODE}", NODE + " \x1b[31m", NODE + "\nssh-rsa AAAA", NODE + " \r\n x"]


@pytest.mark.parametrize(
    "public",
    [*BAD_NODES, *SEVERAL_LINES],
    ids=range(len(BAD_NODES + SEVERAL_LINES)),  # keys are new every time, names of tests are not
)
def test_text_that_is_not_a_node_key_is_refused_and_not_repeated(public):
    with pytest.raises(Refused, match="node: expected a line such as ecdsa-sha2-nistp384") as found:
        check_node_key(public)
    assert len(str(found.value)) < 150


HOSTS = ("fl.example.org", "10.1.2.3", "::1")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "tls"
    make_certificates(folder, HOSTS)
    return folder


def shake(server, ca, name):
    """A handshake on loopback; what the client thinks of the server's certificate."""
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(server / "server.crt", server / "server.key")
    theirs = ssl.create_default_context(cafile=ca)
    theirs.verify_flags |= ssl.VERIFY_X509_STRICT
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve():
            plain, _ = door.accept()
            with plain:
                plain.settimeout(10)
                try:
                    with ours.wrap_socket(plain, server_side=True) as secure:
                        secure.sendall(b"hello")
                except (ssl.SSLError, OSError):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(door.getsockname(), timeout=10) as plain,
                theirs.wrap_socket(plain, server_hostname=name) as secure,
            ):
                return secure.recv(5), secure.version()
        finally:
            thread.join(10)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", *HOSTS])
def test_a_client_with_the_authority_trusts_every_name_in_the_certificate(name, made):
    assert shake(made, made / "ca.crt", name) == (b"hello", "TLSv1.3")


@pytest.mark.parametrize("name", ["example.org", "evil.fl.example.org", "127.0.0.2", "10.1.2.4"])
def test_a_name_that_is_not_in_the_certificate_is_not_trusted(name, made):
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake(made, made / "ca.crt", name)


def test_a_certificate_of_another_authority_is_not_trusted(made, tmp_path):
    make_certificates(tmp_path / "other", HOSTS)
    for server, ca in ((made, tmp_path / "other"), (tmp_path / "other", made)):
        with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
            shake(server, ca / "ca.crt", "localhost")


def test_the_key_of_the_server_cannot_sign_certificates(made):
    leaf = x509.load_pem_x509_certificate((made / "server.crt").read_bytes())
    root = x509.load_pem_x509_certificate((made / "ca.crt").read_bytes())
    leaf.verify_directly_issued_by(root)
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    use = leaf.extensions.get_extension_for_class(x509.KeyUsage).value
    assert not use.key_cert_sign
    limits = root.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (limits.critical, limits.value.ca, limits.value.path_length) == (True, True, 0)


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_certificate_keys_are_readable_by_their_owner_only(tmp_path):
    before = os.umask(0)
    try:
        make_certificates(tmp_path / "a" / "tls", (), tmp_path / "b")
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "a" / "tls").iterdir()}
    assert set(modes) == {"ca.crt", "server.crt", "server.key"}
    assert modes["server.key"] == stat.S_IMODE((tmp_path / "b" / "ca.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "a" / "tls").stat().st_mode) == 0o700


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.parametrize("lost", [(), ("ca.crt",), ("server.crt",), ("server.crt", "ca.crt")])
def test_existing_certificates_are_never_overwritten(lost, tmp_path):
    make_certificates(tmp_path)
    for name in lost:
        (tmp_path / name).unlink()
    before = contents(tmp_path)
    with pytest.raises(FileExistsError):
        make_certificates(tmp_path)
    assert contents(tmp_path) == before


def test_days_left_are_counted_to_the_expiry(made):
    assert 824 < days_left(made / "server.crt") <= 825
    assert 3649 < days_left(made / "ca.crt") <= 3650


@pytest.mark.parametrize("text", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_file_that_is_not_a_certificate_is_refused(text, tmp_path):
    (tmp_path / "x.crt").write_bytes(text)
    with pytest.raises(Refused, match=r"x\.crt: expected a certificate \(PEM\), got"):
        days_left(tmp_path / "x.crt")


BAD = ["", "two words", "https://fl.example.org", "fl.example.org:9443", "line\nbreak", "a..b"]
BAD += ["x" * 300, "-dash.example.org", "fl/example"]


@pytest.mark.parametrize("host", ["bücher.example", *BAD])
def test_an_invalid_host_is_refused_and_nothing_is_written(host, tmp_path):
    with pytest.raises(Refused, match="host: expected a host name") as caught:
        make_certificates(tmp_path / "tls", ("good.example.org", host))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("tls/*"))


def test_a_renewed_certificate_has_the_same_authority_and_names(tmp_path):
    make_certificates(tmp_path, ("fl.example.org", "10.0.0.1"), tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    renew_server(tmp_path, tmp_path)
    after = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert {n for n in after if after[n] != before[n]} == {"server.crt", "server.key"}
    assert server_hosts(tmp_path) == ["localhost", "127.0.0.1", "::1", "fl.example.org", "10.0.0.1"]
    assert (tmp_path / "server.key").stat().st_mode & 0o077 == 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    assert days_left(tmp_path / "server.crt") > 800
    (tmp_path / "ca.key").unlink()
    with pytest.raises(FileNotFoundError, match=r"name the folder in which ca.key is kept"):
        renew_server(tmp_path, tmp_path)


def test_the_key_of_the_authority_can_be_kept_elsewhere(tmp_path):
    tls, safe = tmp_path / "tls", tmp_path / "safe"
    keys.make_certificates(tls, ["fl.example.org"], safe)
    assert sorted(p.name for p in tls.iterdir()) == ["ca.crt", "server.crt", "server.key"]
    assert (safe / "ca.key").stat().st_mode & 0o077 == 0
    before = (tls / "server.crt").read_bytes()
    keys.renew_server(tls, safe)
    assert (tls / "server.crt").read_bytes() != before
    assert "fl.example.org" in keys.server_hosts(tls)
    with pytest.raises(FileExistsError, match="may belong to another federation"):
        keys.make_certificates(tmp_path / "second", (), safe)
    keys.make_certificates(tmp_path / "other", (), tmp_path / "other")
    with pytest.raises(Refused, match=r"the key of this server's ca.crt"):
        keys.renew_server(tls, tmp_path / "other")
