"""What a status contains."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

from fedran.federation.secure.attempt import STAGES, Stage
from fedran.federation.server.influence import InfluenceTable
from fedran.federation.server.schema import SolvedHead


@dataclass(frozen=True)
class HeldStatus:
    """A classifier that is held back because it is worse than the one in service."""

    at: float
    task: str
    reason: str
    commands: list[str]
    """What the operator may do: forget an upload, or put the classifier into service."""


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
    repeats: list[str]
    """The sites of a sum that was charged and not received. All of them are needed."""
    refused: list[str]
    """Sites that refused this stage."""

    @property
    def text(self) -> str:
        """The state in one sentence.

        >>> SumStatus("may", 1, "advertise", ["site-4"], ["site-5"], 3, True, [], []).text
        '1 of 3 sites that are needed wait: site-4'
        """
        here = ", ".join(self.answered) or "none"
        if self.idle and self.stage == "advertise" and self.repeats:
            gone = ", ".join(site for site in self.repeats if site not in self.answered)
            waits = f"it waits for {gone}" if gone else "the next run attempts it"
            return f"a charged sum of {len(self.repeats)} sites is repeated; {waits}"
        refused = ", ".join(self.refused[:8])
        if self.idle and self.stage == "advertise":
            waits = f"{len(self.answered)} of {self.needed} sites that are needed wait: {here}"
            return f"{waits}; refused by {refused}" if refused else waits
        total = len(self.answered) + len(self.waiting) + len(self.refused)
        number = STAGES.index(Stage(self.stage)) + 1
        missing = f", missing {', '.join(self.waiting[:8])}" if self.waiting else ""
        return (
            f"exchange {number} of {len(STAGES)} ({self.stage}): {len(self.answered)} of {total} "
            f"sites, {self.needed} needed{missing}{f', refused by {refused}' * bool(refused)}"
        )


@dataclass(frozen=True)
class Cohort:
    """A secure sum that the server has."""

    cohort: str
    """The client under whose name it is stored."""
    task: str
    members: list[str]
    rows: int


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
    transport: int | None
    """Bytes at the transport in its runs, in both directions; None if not measured."""
    transport_in: int | None
    transport_out: int | None
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
    last_seen: float | None
    """When it last sent something new under its own key, or Flower last heard from its node."""
    connected: bool | None
    """None: unknown, because Flower's state is missing or old."""
    uploads: int
    bytes: int | None
    """None: the server knows bytes and rows of its secure sums only."""
    rows: int | None
    classes: list[tuple[str | int, int]]
    """Labels with their numbers of rows, most frequent first."""
    newest_task: str
    """The task that was opened last of those in its accepted uploads."""


@dataclass(frozen=True)
class Problem:
    """An upload that was not accepted, or a site that had nothing to send."""

    at: float
    client: str
    task: str
    outcome: str
    reason: str
    verified: bool
    """Whether the named client signed it. If not, anyone may have written it."""
    times: int = 1
    command: str = ""
    """For an upload in quarantine: the command that accepts it."""
    other_command: str = ""
    """For an upload in quarantine: the command that rejects it."""


@dataclass(frozen=True)
class Status:
    """The state of a federation at one moment."""

    at: float
    federation: str
    folder: str
    server: Literal["running", "not running"]
    checked: float | None
    """When the server last recorded which nodes are connected."""
    nodes: int | None
    """Connected nodes; None: unknown."""
    records: int | None
    """Accepted uploads; None if the database cannot be read."""
    disk_bytes: int
    payload: int
    """Bytes of all signed envelopes that arrived."""
    transport: int | None
    """Bytes at the transport in all known runs, in both directions."""
    head: SolvedHead | None
    tasks: list[TaskStatus]
    """Newest first."""
    sites: list[SiteStatus]
    quarantine: list[Problem]
    """Uploads that wait for a decision."""
    problems: list[Problem]
    """Newest first, at most 200."""
    history: list[SolvedHead] = field(default_factory=list)
    """The heads so far, oldest first, at most 200."""
    certificate_expires: float | None = None
    """When the server's certificate expires, in Unix seconds; None without one."""
    notes: list[str] = field(default_factory=list)
    """What could not be read, or is inconsistent."""
    epoch: str = ""
    """Of the state; another one after it was restored or corrected."""
    held: HeldStatus | None = None
    influence: InfluenceTable | None = None
    """What `fedran federation influence` last found."""
    roster: str = ""
    """With secure sums: the fingerprint of the roster, which sites compare."""
    cohorts: list[Cohort] = field(default_factory=list)
    """Secure sums that the server has, oldest first."""
    sums: list[SumStatus] = field(default_factory=list)
    """Secure sums that are under way or wait for sites."""
    budget: str = ""
    """What differential privacy has spent, in sentences; empty where there is none."""

    @property
    def open_tasks(self) -> list[TaskStatus]:
        """Tasks that wait for uploads now."""
        return [t for t in self.tasks if t.state == "open"]

    def to_json(self) -> str:
        """All fields as JSON."""
        return json.dumps(vars(self), default=vars)
