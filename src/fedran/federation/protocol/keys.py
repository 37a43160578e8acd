"""Certificates of the server and keys of the nodes.

A federation has its own certificate authority; no outside party is involved. Sites verify the
server by ``ca.crt``. The server verifies a site's SuperNode by its public key.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedran.core.errors import Refused
from fedran.federation.protocol.configuration import is_host
from fedran.federation.protocol.identity import check_private, write_private
from fedran.federation.protocol.limits import AUTHORITY_DAYS, SERVER_DAYS
from fedran.wire.files import write_atomically

NODE_KEY = "a line such as ecdsa-sha2-nistp384 AAAA..."
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def make_node_key(path: Path) -> str:
    """Write a new private key (ECDSA P-384, OpenSSH format); returns the public key as one line."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return _public_line(key.public_key())


def check_node_key(public: object) -> str:
    """A node's public key, checked."""
    if not isinstance(public, str) or _public_line(load_node_key(public)) != public:
        raise Refused("node", NODE_KEY, "something else")
    return public


def load_node_key(public: str) -> ec.EllipticCurvePublicKey:
    """The key in a line of OpenSSH's format."""
    try:
        key = load_ssh_public_key(public.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise Refused("node", NODE_KEY, "something else")
    return key


def _public_line(key: ec.EllipticCurvePublicKey) -> str:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")


def make_certificates(
    folder: Path, hosts: Sequence[str] = (), authority_folder: Path | None = None
) -> None:
    """Write ``ca.crt``, ``server.crt`` and ``server.key``; never replaces old ones.

    ``hosts`` are the names and addresses by which sites reach the server, besides this machine's
    own. The authority's key, ``ca.key``, is only needed to renew the server's certificate. It is
    written to ``authority_folder``, which is not the server's. Without one, it is not kept.
    """
    if any((folder / name).exists() for name in ("ca.crt", "server.crt", "server.key")):
        raise FileExistsError(f"{folder}: certificates exist already")
    key_file = None if authority_folder is None else authority_folder / "ca.key"
    if key_file is not None and key_file.exists():
        raise FileExistsError(f"{key_file}: exists already, and may belong to another federation")
    authority = ec.generate_private_key(ec.SECP384R1())
    root = _certificate("fedran authority", authority, AUTHORITY_DAYS)
    certified = _certify(authority, root, hosts)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if key_file is not None:
        key_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(key_file, _pem(authority))
    write_atomically(folder / "ca.crt", root.public_bytes(Encoding.PEM))
    _write_server(folder, *certified)


def renew_server(folder: Path, authority_folder: Path, hosts: Sequence[str] | None = None) -> None:
    """Write a new server certificate and key of the same authority; sites need nothing new.

    ``authority_folder`` holds ``ca.key``. ``hosts=None`` keeps the names of the old certificate.
    """
    key_file, root = authority_folder / "ca.key", _load_certificate(folder / "ca.crt")
    if not key_file.is_file():
        raise FileNotFoundError(
            f"{key_file}: no such file; name the folder in which ca.key is kept with --ca"
        )
    check_private(key_file, "the authority's private key")
    authority = load_pem_private_key(key_file.read_bytes(), None)
    if not isinstance(authority, ec.EllipticCurvePrivateKey):
        raise Refused(str(key_file), "the key that `init` made", "another kind of key")
    if authority.public_key() != root.public_key():
        raise Refused(str(key_file), "the key of this server's ca.crt", "the key of another one")
    names = server_hosts(folder) if hosts is None else hosts
    _write_server(folder, *_certify(authority, root, names))


def _write_server(
    folder: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
) -> None:
    (folder / "server.key").unlink(missing_ok=True)
    write_private(folder / "server.key", _pem(key))
    write_atomically(folder / "server.crt", certificate.public_bytes(Encoding.PEM))


def server_hosts(folder: Path) -> list[str]:
    """The names and addresses in the server's certificate."""
    found = _load_certificate(folder / "server.crt").extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    return [str(name.value) for name in found.value]


def days_left(certificate: Path) -> float:
    """Days until a certificate expires; negative afterwards."""
    expires = _load_certificate(certificate).not_valid_after_utc
    return (expires - dt.datetime.now(dt.UTC)) / dt.timedelta(days=1)


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise Refused(str(path), "a certificate (PEM)", "something else") from None


def _certify(
    authority: ec.EllipticCurvePrivateKey, root: x509.Certificate, hosts: Sequence[str]
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A new key of a server, and its certificate by an authority."""
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys((*LOCAL_HOSTS, *hosts)):
        if not is_host(host):
            raise Refused("host", "a host name or an address, without a port", host)
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = root.subject, authority
    return key, _certificate("fedran server", key, SERVER_DAYS, issuer, names)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    days: int,
    issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None = None,
    hosts: Sequence[x509.GeneralName] = (),
) -> x509.Certificate:
    """The certificate of a server with these names; without an issuer, that of an authority."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issued_by, signer = issuer or (subject, key)
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = x509.KeyUsage(
        digital_signature=issuer is not None,
        key_cert_sign=issuer is None,
        crl_sign=issuer is None,
        **dict.fromkeys((*unused, "encipher_only", "decipher_only"), False),
    )
    constraints = x509.BasicConstraints(issuer is None, 0 if issuer is None else None)
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder(issued_by, subject, key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(authority_key, False)
        .add_extension(constraints, True)
        .add_extension(usage, True)
    )
    if hosts:
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), False)
        builder = builder.add_extension(purpose, False)
    return builder.sign(signer, hashes.SHA384())


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
