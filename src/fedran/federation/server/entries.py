"""What the rows of the server's database say."""

from __future__ import annotations

from dataclasses import dataclass

from fedran.federation.protocol.identity import UploadId


@dataclass(frozen=True)
class Upload:
    """What the database says about an accepted upload, without the envelope itself."""

    number: int
    """In order of acceptance. Numbers of deleted uploads are missing."""
    client: str
    task: str
    digest: str
    """SHA-256 of the encoded message."""
    at: float
    bytes: int
    rows: int
    energy: float
    """Of all rows together, as the upload states it."""
    cut: float
    """Energy that truncation removed, as the upload states it."""
    revision: int
    """How often the site has replaced it."""
    classes: tuple[tuple[str | int, int], ...]
    """Labels and their numbers of rows."""
    members: tuple[UploadId, ...]
    """For a forwarded sum: the uploads that it adds up."""
    envelope: str
    """SHA-256 of the envelope."""

    @property
    def key(self) -> UploadId:
        """The id of the upload."""
        return self.client, self.task


@dataclass(frozen=True)
class Waiting:
    """An upload in quarantine."""

    client: str
    task: str
    digest: str
    at: float
    reason: str
    envelope: str


@dataclass(frozen=True)
class Tombstone:
    """An upload that was forgotten. No other one is accepted for its client and task."""

    client: str
    task: str
    digest: str
    """SHA-256 of the encoded message; empty if it was known only as part of a sum."""
    at: float
    who: str
    """The user of the server's machine who gave the command."""


@dataclass(frozen=True)
class Charge:
    """What the rows of a secure sum have spent. It is written before the sum is revealed."""

    number: int
    at: float
    task: str
    attempt: int
    epsilon: float
    """Infinite for a sum without noise."""
    delta: float
    sites: tuple[str, ...]


@dataclass(frozen=True)
class SolvedHead:
    """A head that was solved, tested and sent."""

    number: int
    at: float
    task: str
    digest: str
    """SHA-256 of the encoded head."""
    classes: int
    bytes: int
    accuracy: float | None
    seconds: float
    last_upload: int
    """Number of the last upload in it."""


@dataclass(frozen=True)
class Task:
    """A task that was opened."""

    number: int
    task: str
    state: str
    """open, complete, quorum or short."""
    opened: float
    deadline: float
    """Seconds after it was opened."""
    min_clients: int
    asked: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """A run of Flower, with the bytes that its server received and sent."""

    run: str
    task: str
    status: str
    received: int
    sent: int
