"""The key with which a site's SuperNode connects: ECDSA P-384, in OpenSSH's format."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_public_key,
)

from fedran.core.errors import Refused
from fedran.federation.protocol.identity import write_private


def make_node_key(path: Path) -> str:
    """Write a new private key and return the public one, one line of text."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return _line(key.public_key())


def check_node_public(public: object) -> str:
    """The text of a node's public key, refused unless it is one."""
    expected = "a line such as ecdsa-sha2-nistp384 AAAA..."
    if not isinstance(public, str) or len(public) > 1000:
        raise Refused("node", expected, type(public).__name__)
    try:
        key = load_ssh_public_key(public.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or _line(key) != public:
        raise Refused("node", expected, "something else")
    return public


def _line(key: ec.EllipticCurvePublicKey) -> str:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")
