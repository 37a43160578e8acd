"""Who may send what: Ed25519 keys of sites, the signed statement, and the server's roster."""

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
from fedran.wire.files import read_toml, write_atomically

PURPOSE = "fedran upload 1"
"""Goes into every signature, so that it can never pass for a signature of something else."""
SCHEME = "ed25519:"
UploadId = tuple[str, str]
"""(client, task): what an upload is known by."""
SUM = ".sum-"
"""In the task of a forwarded sum, before its number; no task of a federation has it."""

ROSTER_HEADER = (
    "# Sites of this federation: client id = public key. A site that is removed is refused.\n"
)


def base_task(task: str) -> str:
    """The task that an upload is for: its own name, or that of a sum without its number.

    >>> base_task("may"), base_task("may.sum-2")
    ('may', 'may')
    """
    return task.partition(SUM)[0]


def check_task(task: object) -> str:
    """The id of a task as its owner may choose it."""
    if SUM in check_id(task, "task"):
        raise Refused("task", f"an id without {SUM!r}, which marks forwarded sums", task)
    return str(task)


@dataclass(frozen=True)
class Statement:
    """What a site signs about an upload; a change of any field voids the signature."""

    federation: str
    client: str
    task: str
    fingerprint: str
    """Hash of the feature map's fingerprint."""
    digest: str
    """SHA-256 of the encoded summary."""
    members: tuple[UploadId, ...] = field(default=())
    """For a forwarded sum: whose uploads it adds up."""

    def __post_init__(self) -> None:
        check_id(self.federation, "federation")
        for client, task in (self.key, *self.members):
            check_id(client, "client")
            check_id(task, "task")
        if len(set(self.members)) != len(self.members):
            raise Refused("members", "each member once", list(self.members))

    @property
    def key(self) -> UploadId:
        """What the upload is known by."""
        return self.client, self.task

    def to_bytes(self) -> bytes:
        """The same bytes on every machine."""
        fields = {"purpose": PURPOSE, **asdict(self)}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")


def check_sum(said: Statement) -> None:
    """Refuse a sum without members, members without a sum, and a sum of another task's uploads."""
    task, mark, number = said.task.partition(SUM)
    if bool(mark) != bool(said.members) or (mark and not number.isdecimal()):
        raise Refused("task", f"TASK{SUM}NUMBER for a sum with members, TASK otherwise", said.task)
    if any(base_task(member) != task for _, member in said.members):
        raise Refused("members", f"uploads for {task}", list(said.members)[:5])


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
        """What the server's roster holds: ``ed25519:`` and 44 letters."""
        raw = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return SCHEME + base64.b64encode(raw).decode("ascii")

    def sign(self, statement: Statement) -> bytes:
        """64 bytes."""
        return self._private.sign(statement.to_bytes())

    def save(self, path: str | Path) -> None:
        """Write a new file that only its owner can read; an existing one is not overwritten."""
        raw = self._private.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        write_private(Path(path), SCHEME.encode() + base64.b64encode(raw) + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> SiteKey:
        """The key in a file; refused where others than the owner could read it."""
        path = Path(path)
        check_private(path, "the site's private key")
        raw = _raw(path.read_text(encoding="ascii", errors="replace").strip(), str(path))
        return cls(Ed25519PrivateKey.from_private_bytes(raw))

    def __repr__(self) -> str:
        return "SiteKey(...)"


def verify(public: str, statement: Statement, signature: bytes) -> None:
    """Refuse a signature that this key did not make over exactly this statement."""
    key = Ed25519PublicKey.from_public_bytes(_raw(public, "public key"))
    try:
        key.verify(signature, statement.to_bytes())
    except InvalidSignature:
        raise Refused(
            "signature",
            f"one by the key of {statement.client}",
            "another",
            hint="check the site's key file against the server's roster",
        ) from None


def check_public(public: object, what: str) -> str:
    """The text of a public key, refused unless it is one."""
    if not isinstance(public, str):
        raise Refused(what, f"text such as {SCHEME}...", type(public).__name__)
    Ed25519PublicKey.from_public_bytes(_raw(public, what))
    return public


def _raw(text: str, what: str) -> bytes:
    """32 bytes; the text itself is never repeated in a message, it may be a secret."""
    try:
        raw = base64.b64decode(text.removeprefix(SCHEME), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if not text.startswith(SCHEME) or len(raw) != 32:
        raise Refused(what, f"a key of the form {SCHEME} and 44 letters", "something else")
    return raw


@dataclass(frozen=True)
class Roster:
    """Who may send, under which key, and whose uploads an edge may add up."""

    clients: dict[str, str] = field(default_factory=dict)
    edges: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Edge -> its members. Nobody else's uploads can be in its sums."""

    @classmethod
    def load(cls, path: str | Path) -> Roster:
        """Read ``[clients]`` and ``[edges]`` of a TOML file; every id and key is checked."""
        fields = read_toml(path, "the roster")
        clients, edges = fields.get("clients"), fields.get("edges", {})
        if not set(fields) <= {"clients", "edges"} or not isinstance(clients, dict):
            raise Refused(str(path), "a table [clients], and maybe [edges]", sorted(fields))
        if not isinstance(edges, dict) or not all(isinstance(m, list) for m in edges.values()):
            raise Refused(str(path), "[edges] with a list of members for each edge", edges)
        return cls(
            {check_id(c, "client"): check_public(k, c) for c, k in clients.items()},
            {
                check_id(e, "client"): tuple(check_id(m, "member") for m in members)
                for e, members in edges.items()
            },
        )

    def save(self, path: str | Path) -> None:
        """Write it, crash-safe."""
        rows = [f'"{c}" = "{k}"\n' for c, k in sorted(self.clients.items())]
        if self.edges:
            rows.append("\n[edges]\n")
            rows += [f'"{e}" = {json.dumps(list(m))}\n' for e, m in sorted(self.edges.items())]
        write_atomically(path, (ROSTER_HEADER + "[clients]\n" + "".join(rows)).encode())

    def with_site(self, client: str, public: str) -> Roster:
        """The same with one more site; another key for a known one is refused."""
        check_id(client, "client")
        if self.clients.get(client, public) != public:
            raise Refused("client", f"a new id, or the known key of {client}", "another key")
        return replace(self, clients={**self.clients, client: check_public(public, client)})

    def without(self, client: str) -> Roster:
        """The same without a site, and without its rights as an edge."""
        if client not in self.clients:
            raise Refused("client", f"a site of the roster{nearest(client, self.clients)}", client)
        return Roster(
            {c: k for c, k in self.clients.items() if c != client},
            {e: m for e, m in self.edges.items() if e != client},
        )

    def check(self, statement: Statement, signature: bytes) -> None:
        """Refuse what is not signed by the key of the client it names, or speaks for others."""
        public = self.clients.get(statement.client)
        if public is None:
            raise Refused(
                "client",
                f"a site of the roster{nearest(statement.client, self.clients)}",
                statement.client,
                hint="add its public key to the server's roster",
            )
        verify(public, statement, signature)
        mine = self.edges.get(statement.client, ())
        foreign = sorted({c for c, _ in statement.members} - {*mine, statement.client})
        if foreign:
            raise Refused(
                "members",
                f"members that the roster lists for {statement.client}",
                foreign[:5],
                hint="list them under [edges] in the roster",
            )


def write_private(path: Path, data: bytes) -> None:
    """Write a new file with mode 600, synced; an existing one is not overwritten."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def check_private(path: Path, what: str) -> None:
    """Refuse a missing file, and one that others than its owner could read."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected {what}")
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise PermissionError(
            f"{path}: others can read this private key; run `chmod 600 {path}`, and make a "
            "new key if they may have"
        )
