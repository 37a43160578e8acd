"""Who may send what: the signed statement, Ed25519 keys of sites, and the server's roster."""

from __future__ import annotations

import base64
import binascii
import json
import os
import stat
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from fedran.core.errors import Refused, nearest
from fedran.core.ids import check_id
from fedran.federation.protocol.receipts import Code, UploadRefused
from fedran.wire.files import read_toml, write_atomically

PURPOSE = "fedran upload 1"
"""Part of every signed text, so that no signature can be used for another purpose."""
SCHEME = "ed25519:"
SUM = ".sum-"
"""Separates task and number in the name of a forwarded sum. No other task contains it."""
ROSTER_HEADER = (
    "# Sites of this federation: client id = public key. A site that is removed is refused.\n"
    "# Optional tables: edges (the members of an edge), rows (the most rows of a site per task).\n"
)
UploadId = tuple[str, str]
"""(client, task) identifies an upload."""


def base_task(task: str) -> str:
    """The task that an upload is for: without the number of a forwarded sum.

    >>> base_task("may"), base_task("may.sum-2")
    ('may', 'may')
    """
    return task.partition(SUM)[0]


def check_task(task: object) -> str:
    """A task id that a user may choose. Names of forwarded sums are refused."""
    if SUM in check_id(task, "task"):
        raise Refused("task", f"an id without {SUM!r}, which marks forwarded sums", task)
    return str(task)


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
    """For a forwarded sum: the uploads that it adds up."""
    revision: int = 0
    """How often the client has replaced its upload for this task."""

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

    def check_sum_name(self) -> None:
        """Refuse a sum without members, members without a sum, and members of another task."""
        task, mark, number = self.task.partition(SUM)
        if bool(mark) != bool(self.members) or (mark and not number.isdecimal()):
            expected = f"TASK{SUM}NUMBER for a sum with members, TASK otherwise"
            raise Refused("task", expected, self.task)
        if any(base_task(member) != task for _, member in self.members):
            raise Refused("members", f"uploads for {task}", list(self.members)[:5])


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


@dataclass(frozen=True)
class Roster:
    """The sites that may send, with their public keys: a TOML file that people edit."""

    clients: dict[str, str] = field(default_factory=dict)
    """Client -> public key."""
    edges: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Edge -> its members. Only an edge may forward sums, and only of their uploads."""
    rows: dict[str, int] = field(default_factory=dict)
    """Client -> the most rows that it may send per task."""

    @classmethod
    def load(cls, path: str | Path) -> Roster:
        """Read the tables ``[clients]``, ``[edges]`` and ``[rows]``. Every value is checked."""
        fields = read_toml(path, "the roster")
        clients, edges = fields.get("clients"), fields.get("edges", {})
        rows = fields.get("rows", {})
        if not set(fields) <= {"clients", "edges", "rows"} or not isinstance(clients, dict):
            expected = "a table [clients], and optionally [edges] and [rows]"
            raise Refused(str(path), expected, sorted(fields))
        if not isinstance(edges, dict) or not all(isinstance(m, list) for m in edges.values()):
            raise Refused(str(path), "[edges] with a list of members for each edge", edges)
        if not isinstance(rows, dict) or not all(type(n) is int and n > 0 for n in rows.values()):
            raise Refused(str(path), "[rows] with a positive number for each site", rows)
        return cls(
            {check_id(c, "client"): check_public(k, c) for c, k in clients.items()},
            {
                check_id(e, "client"): tuple(check_id(m, "member") for m in members)
                for e, members in edges.items()
            },
            {check_id(c, "client"): n for c, n in rows.items()},
        )

    def save(self, path: str | Path) -> None:
        """Write the file, crash-safe."""
        rows = [f'"{c}" = "{k}"\n' for c, k in sorted(self.clients.items())]
        if self.edges:
            rows.append("\n[edges]\n")
            rows += [f'"{e}" = {json.dumps(list(m))}\n' for e, m in sorted(self.edges.items())]
        if self.rows:
            rows.append("\n[rows]\n")
            rows += [f'"{c}" = {n}\n' for c, n in sorted(self.rows.items())]
        write_atomically(path, (ROSTER_HEADER + "[clients]\n" + "".join(rows)).encode())

    def with_site(self, client: str, public: str) -> Roster:
        """A roster with one more site. Another key for a known site is refused."""
        check_id(client, "client")
        if self.clients.get(client, public) != public:
            raise Refused("client", f"a new id, or the known key of {client}", "another key")
        return replace(self, clients={**self.clients, client: check_public(public, client)})

    def with_other_key(self, client: str, public: str) -> Roster:
        """A roster in which a known site has another key. Its cap and its members stay."""
        if client not in self.clients:
            raise Refused("client", f"a site of the roster{nearest(client, self.clients)}", client)
        return replace(self, clients={**self.clients, client: check_public(public, client)})

    def without(self, client: str) -> Roster:
        """A roster without a site and without its rights as an edge."""
        if client not in self.clients:
            raise Refused("client", f"a site of the roster{nearest(client, self.clients)}", client)
        return Roster(
            {c: k for c, k in self.clients.items() if c != client},
            {e: m for e, m in self.edges.items() if e != client},
            {c: n for c, n in self.rows.items() if c != client},
        )

    def check(self, statement: Statement, signature: bytes) -> None:
        """Refuse an unknown client, a wrong signature, and members of other edges."""
        public = self.clients.get(statement.client)
        if public is None:
            raise UploadRefused(
                Code.UNKNOWN_CLIENT,
                "client",
                f"a site of the roster{nearest(statement.client, self.clients)}",
                statement.client,
                hint="add its public key to the server's roster",
            )
        verify(public, statement, signature)
        own = set(self.edges.get(statement.client, ())) - {statement.client}
        foreign = sorted({client for client, _ in statement.members} - own)
        if foreign:
            raise UploadRefused(
                Code.FOREIGN_MEMBERS,
                "members",
                f"members that the roster lists for {statement.client}",
                foreign[:5],
                hint="list them under [edges] in the roster",
            )


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
