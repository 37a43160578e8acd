"""Certificates for a federation of its own: one authority, one server; no outside party."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedran.core.errors import Refused
from fedran.federation.protocol.identity import check_private, write_private
from fedran.federation.protocol.settings import is_host
from fedran.wire.files import write_atomically

AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
LOCAL = ("localhost", "127.0.0.1")


def make_certificates(folder: Path, hosts: Sequence[str] = ()) -> None:
    """``ca.crt``, ``ca.key``, ``server.crt`` and ``server.key``; existing ones are not replaced.

    ``hosts`` are the names and addresses under which sites reach the server, besides this
    machine's own. The authority's key is only needed for a new server certificate: it can be
    moved elsewhere.
    """
    if (folder / "server.crt").exists():
        raise FileExistsError(f"{folder}: certificates are there already")
    authority = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedran authority")])
    use = _usage(sign_certificates=True)
    root = _certificate(
        name, name, authority, authority, AUTHORITY_DAYS, [(_CA, True), (use, True)]
    )
    server, leaf = _server_certificate(authority, name, hosts)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(folder / "ca.key", _pem(authority))
    write_private(folder / "server.key", _pem(server))
    write_atomically(folder / "ca.crt", root.public_bytes(Encoding.PEM))
    write_atomically(folder / "server.crt", leaf.public_bytes(Encoding.PEM))


def renew_server(folder: Path, hosts: Sequence[str] | None = None) -> None:
    """A new server certificate and key of the same authority; sites need nothing new.

    ``hosts=None``: for the names that the old one holds.
    """
    check_private(folder / "ca.key", "the authority's private key")
    authority = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    if not isinstance(authority, ec.EllipticCurvePrivateKey):
        raise Refused(str(folder / "ca.key"), "the key that `init` made", "another")
    issuer = _load(folder / "ca.crt").subject
    server, leaf = _server_certificate(
        authority, issuer, _names(folder) if hosts is None else hosts
    )
    (folder / "server.key").unlink(missing_ok=True)
    write_private(folder / "server.key", _pem(server))
    write_atomically(folder / "server.crt", leaf.public_bytes(Encoding.PEM))


def _server_certificate(
    authority: ec.EllipticCurvePrivateKey, issuer: x509.Name, hosts: Sequence[str]
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    server = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedran server")])
    names = dict.fromkeys((*LOCAL, *hosts))
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.SubjectAlternativeName([_alternative(h) for h in names]), False),
        (_usage(sign_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
    ]
    return server, _certificate(subject, issuer, server, authority, SERVER_DAYS, extensions)


def _names(folder: Path) -> list[str]:
    """The names and addresses that the server's certificate holds."""
    found = _load(folder / "server.crt").extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    return [str(name.value) for name in found.value]


def days_left(certificate: Path) -> float:
    """Days until a certificate expires; negative afterwards."""
    return (_load(certificate).not_valid_after_utc - dt.datetime.now(dt.UTC)) / dt.timedelta(days=1)


def _load(certificate: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate.read_bytes())
    except ValueError:
        raise Refused(str(certificate), "a certificate (PEM)", "something else") from None


_CA = x509.BasicConstraints(ca=True, path_length=0)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False
        )
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, hashes.SHA384())


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    if not is_host(host):
        raise Refused("host", "a host name or an address, without a port", host)
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
