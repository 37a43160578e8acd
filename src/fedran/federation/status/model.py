"""What a status contains: one tree, for a server and for a site."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

from fedran.federation.secure.masking.attempt import STAGES, Stage
from fedran.federation.server.store.schema import SolvedHead

Classes = list[tuple[str | int, int]]
"""Labels with their numbers of rows."""


@dataclass(frozen=True)
class Finding:
    """One thing that was examined."""

    level: Literal["ok", "warning", "problem"]
    text: str
    remedy: str = ""
    """What to do about it."""


@dataclass(frozen=True)
class Outcome:
    """What became of an upload, of a secure sum, or of a classifier that is held back."""

    at: float | None
    client: str
    """Empty for a classifier, and for what a site says about itself."""
    task: str
    state: str
    """quarantined, refused, declined, failed, held, pending, or the code of a receipt."""
    reason: str = ""
    verified: bool = True
    """Whether the named client signed it. If not, anyone may have written it."""
    times: int = 1
    commands: list[str] = field(default_factory=list)
    """Where a person decides: the commands for that."""
    rows: int = 0
    bytes: int | None = None
    classes: Classes = field(default_factory=list)
    withheld: Classes = field(default_factory=list)
    """Classes with too few rows, which were not sent."""
    members: list[str] = field(default_factory=list)
    """The sites of a secure sum."""


@dataclass(frozen=True)
class SumStatus:
    """A secure sum that is under way, or that waits for more sites."""

    task: str
    number: int
    """Of the attempt."""
    stage: str
    """advertise, share, mask, confirm or reveal."""
    answered: list[str]
    waiting: list[str]
    """Sites of this stage that have not answered it."""
    needed: int
    """How many must answer it."""
    idle: bool
    """Whether no run is at work on it: it waits for sites."""
    refused: list[str]
    """Sites that refused this stage."""

    @property
    def text(self) -> str:
        """The state in one sentence.

        >>> SumStatus("may", 1, "advertise", ["site-4"], ["site-5"], 3, True, []).text
        '1 of 3 sites that are needed wait: site-4'
        """
        refused = f"refused by {', '.join(self.refused[:8])}" if self.refused else ""
        if self.idle and self.stage == "advertise":
            here = ", ".join(self.answered) or "none"
            waits = f"{len(self.answered)} of {self.needed} sites that are needed wait: {here}"
            return f"{waits}; {refused}" if refused else waits
        total = len(self.answered) + len(self.waiting) + len(self.refused)
        missing = f"missing {', '.join(self.waiting[:8])}" if self.waiting else ""
        parts = f"{len(self.answered)} of {total} sites", f"{self.needed} needed", missing, refused
        exchange = f"exchange {STAGES.index(Stage(self.stage)) + 1} of {len(STAGES)} ({self.stage})"
        return f"{exchange}: {', '.join(filter(None, parts))}"


@dataclass(frozen=True)
class TaskStatus:
    """One task."""

    task: str
    state: str
    """open, complete, quorum, short, or interrupted: its run ended without a result. Uploads
    that were forgotten or lost since do not count."""
    opened: float | None
    ends: float | None
    min_clients: int | None
    answered: dict[str, str]
    """Site -> outcome of its upload. A refused upload does not replace an earlier accepted one."""
    missing: list[str]
    waiting: list[str]
    """Sites that have answered, and wait for others of their secure sum."""
    declined: dict[str, str]
    """Sites that reported that they send nothing, and why. Not signed."""
    failed: list[str]
    """Those of them that have rows but could not make an upload."""
    uploads: int
    refused: int
    quarantined: int
    rows: int
    payload: int
    """Bytes of the envelopes that arrived for this task."""
    received: int
    """Bytes at the transport in its runs; 0 if not measured."""
    sent: int
    accuracy: float | None

    @property
    def accepted(self) -> int:
        """Number of sites of which an upload was accepted."""
        return sum(outcome in ("accepted", "duplicate") for outcome in self.answered.values())

    @property
    def asked(self) -> int:
        """Number of sites that were asked for an upload."""
        return sum(map(len, (self.answered, self.declined, self.missing, self.waiting)))


@dataclass(frozen=True)
class SiteStatus:
    """One site."""

    client: str
    in_roster: bool
    key: str
    """Fingerprint of its public key; empty if it is not known."""
    mark: str = ""
    """At a site: NEW, CHANGED or REMOVED, where the server's roster differs from the pinned one."""
    last_seen: float | None = None
    """When it last sent something new under its own key, or Flower last heard from its node."""
    connected: bool | None = None
    """None: unknown, because Flower's state is missing or old."""
    uploads: int = 0
    bytes: int | None = None
    """None: the server knows bytes and rows of its secure sums only."""
    rows: int | None = None
    classes: Classes = field(default_factory=list)
    """Most frequent first."""
    newest_task: str = ""
    """The task that was opened last of those in its accepted uploads."""
    gain: float | None = None
    """Points by which the accuracy is higher without it; None if that was not measured."""


@dataclass(frozen=True)
class Status:
    """The state of a server or of a site at one moment."""

    at: float
    federation: str
    client: str
    """Id of the site; empty for a server."""
    folder: str
    running: bool
    findings: list[Finding]
    """What could not be read, is inconsistent, or needs a person."""
    sites: list[SiteStatus]
    disk_bytes: int
    disk_free: int
    certificate_expires: float | None
    """When the certificate of the server, or ``ca.crt``, expires; None without one."""
    checked: float | None = None
    """When the server last recorded which nodes are connected, or the site its connection."""
    connection: str = ""
    """Of a site, as it noted it last."""
    nodes: int | None = None
    """Connected nodes; None: unknown."""
    records: int | None = None
    """Accepted uploads; None if the database cannot be read."""
    payload: int = 0
    """Bytes of all signed envelopes that arrived."""
    transport: int = 0
    """Bytes at the transport in all known runs, in both directions; 0 if not measured."""
    head: SolvedHead | None = None
    history: list[SolvedHead] = field(default_factory=list)
    """The heads so far, oldest first, at most 200."""
    held: Outcome | None = None
    """A classifier that is held back because it is worse than the one in service."""
    tasks: list[TaskStatus] = field(default_factory=list)
    """Newest first."""
    uploads: list[Outcome] = field(default_factory=list)
    """Of a site: its own uploads and sums, oldest first."""
    quarantine: list[Outcome] = field(default_factory=list)
    """Uploads that wait for a decision."""
    problems: list[Outcome] = field(default_factory=list)
    """Uploads that were not accepted, and sites that sent none; newest first, at most 200."""
    roster: str = ""
    """With secure sums: the fingerprint of the roster, which sites compare."""
    cohorts: list[Outcome] = field(default_factory=list)
    """Secure sums that the server has, oldest first."""
    sums: list[SumStatus] = field(default_factory=list)
    """Secure sums that are under way or wait for sites."""
    budget: str = ""
    """What differential privacy has spent, in sentences; empty where there is none."""
    epoch: str = ""
    """Of the state; another one after it was restored or corrected."""

    @property
    def open_tasks(self) -> list[TaskStatus]:
        """Tasks that wait for uploads now."""
        return [t for t in self.tasks if t.state == "open"]

    def to_json(self) -> str:
        """All fields as JSON."""
        return json.dumps(vars(self), default=vars)
