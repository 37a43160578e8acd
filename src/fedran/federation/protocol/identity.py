"""Who sent what: the signed statement about an upload, and Ed25519 keys of sites."""

from __future__ import annotations

import base64
import binascii
import json
import os
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from fedran.core.errors import Refused, check_id
from fedran.federation.protocol.receipts import Code, UploadRefused

PURPOSE = "fedran upload 1"
"""Part of every signed text, so that no signature can be used for another purpose."""
SCHEME = "ed25519:"
COHORT = "cohort-"
"""Begins the name under which the sum of a cohort of sites is stored. No site has such a name."""
UploadId = tuple[str, str]
"""(client, task) identifies an upload."""


def cohort_name(number: int) -> str:
    """The client under which secure sum ``number`` of a task is stored."""
    return f"{COHORT}{number}"


@dataclass(frozen=True)
class Statement:
    """What a site signs about an upload. A change of any field invalidates the signature."""

    federation: str
    client: str
    task: str
    fingerprint: str
    """Hash of the feature map's fingerprint."""
    digest: str
    """SHA-256 of the encoded summary."""
    members: tuple[UploadId, ...] = field(default=())
    """For a secure sum: the sites whose rows it adds up, each with the task."""
    revision: int = 0
    """How often the client has replaced its upload for this task."""
    sum_number: int = 0
    """Of a secure sum, which the server signs, among those of its task; 0: the upload of a site."""

    def __post_init__(self) -> None:
        check_id(self.federation, "federation")
        for client, task in (self.key, *self.members):
            check_id(client, "client")
            check_id(task, "task")
        if len(set(self.members)) != len(self.members):
            raise Refused("members", "each member once", list(self.members))

    @property
    def key(self) -> UploadId:
        """The id of the upload."""
        return self.client, self.task

    def to_bytes(self) -> bytes:
        """The signed text, the same bytes on every machine."""
        fields = {"purpose": PURPOSE, **asdict(self)}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")


class SiteKey:
    """A site's private key. It is never printed.

    >>> key = SiteKey.generate()
    >>> s = Statement("trial", "site-1", "may", "f" * 64, "d" * 64)
    >>> verify(key.public, s, key.sign(s))
    >>> key
    SiteKey(...)
    """

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private

    @classmethod
    def generate(cls) -> SiteKey:
        """A new key."""
        return cls(Ed25519PrivateKey.generate())

    @property
    def public(self) -> str:
        """The public key as the roster lists it: ``ed25519:`` and 44 characters."""
        raw = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return SCHEME + base64.b64encode(raw).decode("ascii")

    def sign(self, statement: Statement) -> bytes:
        """The signature, 64 bytes."""
        return self.sign_bytes(statement.to_bytes())

    def sign_bytes(self, data: bytes) -> bytes:
        """The signature of a text that names its purpose."""
        return self._private.sign(data)

    def save(self, path: str | Path) -> None:
        """Write a new file that only its owner can read. An existing file is not overwritten."""
        raw = self._private.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        write_private(Path(path), SCHEME.encode() + base64.b64encode(raw) + b"\n")

    @classmethod
    def load_or_make(cls, path: Path) -> SiteKey:
        """The key in a file, which is made if it does not exist."""
        if not path.is_file():
            cls.generate().save(path)
        return cls.load(path)

    @classmethod
    def load(cls, path: str | Path) -> SiteKey:
        """The key in a file. PermissionError if others than the owner can read the file."""
        path = Path(path)
        check_private(path, "the site's private key")
        raw = _key_bytes(path.read_text(encoding="ascii", errors="replace").strip(), str(path))
        return cls(Ed25519PrivateKey.from_private_bytes(raw))

    def __repr__(self) -> str:
        return "SiteKey(...)"


def verify(public: str, statement: Statement, signature: bytes) -> None:
    """Refuse a signature that this key did not make over exactly this statement."""
    if not is_signed(public, statement.to_bytes(), signature):
        raise UploadRefused(
            Code.BAD_SIGNATURE,
            "signature",
            f"a signature by the key of {statement.client}",
            "another signature",
            hint="check the site's key file against the server's roster",
        )


def is_signed(public: str, data: bytes, signature: bytes) -> bool:
    """Whether this key made this signature over exactly these bytes."""
    key = Ed25519PublicKey.from_public_bytes(_key_bytes(public, "public key"))
    try:
        key.verify(signature, data)
    except InvalidSignature:
        return False
    return True


def check_public(public: object, what: str) -> str:
    """The text of a public key. Anything else is refused."""
    if not isinstance(public, str):
        raise Refused(what, f"text such as {SCHEME}...", type(public).__name__)
    Ed25519PublicKey.from_public_bytes(_key_bytes(public, what))
    return public


def _key_bytes(text: str, what: str) -> bytes:
    """The 32 bytes of a key. The text may be a secret, so no error message repeats it."""
    try:
        raw = base64.b64decode(text.removeprefix(SCHEME), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if not text.startswith(SCHEME) or len(raw) != 32:
        raise Refused(what, f"a key of the form {SCHEME} and 44 characters", "something else")
    return raw


def write_private(path: Path, data: bytes) -> None:
    """Write a new file with mode 600, synced. An existing file is not overwritten."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def check_private(path: Path, what: str) -> None:
    """Raise if a file is missing, or if others than its owner can read it."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected {what}")
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise PermissionError(
            f"{path}: other users can read this private key; run `chmod 600 {path}`, and make a "
            "new key if one of them may have read it"
        )
