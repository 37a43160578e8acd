"""The server's side of a secure sum: collect the answers of each stage, then remove the masks.

    state = start(attempt, roster)
    for _ in STAGES:
        for client in state.waiting_for:
            answer = send(request(state, client))
            state = collect(state, client, answer)
        state = close(state)
    total = unmask(state)

``collect`` raises ``Refused`` for a wrong answer and leaves the state as it was. The same answer
again changes nothing. ``close`` ends a stage, when all have answered or at a deadline; it raises
``AttemptFailed`` if too few sites answered. Then start another attempt with a higher number.
Requests are the same bytes whenever they are made, so a server that was killed resumes with
``ServerState.from_bytes`` and asks again. The state holds no secret: the server sees masked
vectors, encrypted shares and, at the end, the shares that remove the masks from the sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.federation.protocol.limits import MAX_SITES
from fedran.federation.secure.masking import ciphers
from fedran.federation.secure.masking.attempt import (
    STAGES,
    Answer,
    Attempt,
    AttemptFailed,
    Request,
    Stage,
    check_parts,
    pack_groups,
    roster_digest,
    threshold,
    unpack_groups,
)
from fedran.federation.secure.masking.ciphers import SHARE_BYTES, Participants, combine, read_share

_PROBE = ciphers.private_key(bytes(32))
"""Agreement with this key finds public keys that are unsafe."""


@dataclass(frozen=True)
class ServerState:
    """What the server must remember of an attempt."""

    attempt: Attempt
    roster: Mapping[str, str]
    """Client -> public key."""
    stage: Stage | None = Stage.ADVERTISE
    """The stage that is open; None when the last one was closed."""
    digests: dict[Stage, dict[str, str]] = field(default_factory=dict)
    """Stage -> client -> SHA-256 of its answer."""
    answers: dict[Stage, dict[str, Answer]] = field(default_factory=dict, repr=False)
    """Stage -> client -> its answer. Masked vectors are only in the total."""
    total: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32), repr=False)
    """The sum of the masked vectors so far."""

    def answered(self, stage: Stage) -> tuple[str, ...]:
        """The sites that answered a stage."""
        return tuple(sorted(self.digests.get(stage, ())))

    @property
    def asked(self) -> tuple[str, ...]:
        """The sites that the open stage asks: the roster, then those that answered the last one."""
        if self.stage is None:
            return ()
        earlier = STAGES.index(self.stage) - 1
        return tuple(sorted(self.roster)) if earlier < 0 else self.answered(STAGES[earlier])

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """The sites that the open stage asks and that have not answered it."""
        done = () if self.stage is None else self.answered(self.stage)
        return tuple(client for client in self.asked if client not in done)

    @property
    def needed(self) -> int:
        """How many sites must answer the open stage."""
        if self.stage is Stage.ADVERTISE:
            return self.attempt.min_sites
        n_sites = len(self.answered(Stage.ADVERTISE))
        vectors = self.stage in (Stage.SHARE, Stage.MASK)
        return self.attempt.needed(n_sites) if vectors else threshold(n_sites)

    @property
    def survivors(self) -> tuple[str, ...]:
        """The sites whose vectors are in the sum."""
        return self.answered(Stage.MASK)

    def to_bytes(self) -> bytes:
        """The state for a file or a database."""
        fields = {
            "attempt": self.attempt.fields,
            "roster": dict(self.roster),
            "stage": self.stage,
            "digests": self.digests,
        }
        groups: dict[str, dict[str, bytes]] = {
            stage: {client: answer.to_bytes() for client, answer in found.items()}
            for stage, found in self.answers.items()
        }
        groups["total"] = {"": self.total.astype("<u4", copy=False).tobytes()}
        return pack_groups("secure server", fields, groups)

    @classmethod
    def from_bytes(cls, blob: bytes) -> ServerState:
        """The state that ``to_bytes`` wrote. A damaged one is refused."""
        header, groups = unpack_groups("secure server", blob)
        try:
            attempt, roster = Attempt.read(header.section("attempt")), header.get("roster")
            total = np.frombuffer(groups.pop("total")[""], "<u4").astype(np.uint32)
            answers = {
                Stage(stage): {
                    client: Answer.read(part, attempt, Stage(stage), client, roster)
                    for client, part in found.items()
                }
                for stage, found in groups.items()
            }
            digests = {Stage(stage): dict(found) for stage, found in header.get("digests").items()}
            stage = header.get("stage")
            return cls(attempt, roster, stage and Stage(stage), digests, answers, total)
        except (KeyError, TypeError, ValueError, AttributeError) as reason:
            raise Refused("state", "the state of a server in a secure sum", str(reason)) from None


def start(attempt: Attempt, roster: Mapping[str, str]) -> ServerState:
    """A new attempt. Its first request may be sent to any site of the roster."""
    if attempt.roster != roster_digest(roster):
        raise ValueError("attempt.roster must be the roster_digest of this roster")
    return ServerState(attempt, dict(roster), total=np.zeros(attempt.length, np.uint32))


def request(state: ServerState, client: str) -> bytes:
    """What to send to a site in the open stage. Refused for a site that has dropped out."""
    _check_asked(state, client)
    parts: dict[str, bytes] = {}
    if state.stage is Stage.SHARE:
        advertised = state.answers[Stage.ADVERTISE].items()
        parts = {c: ciphers.pack_keys(a.parts) + a.signature for c, a in advertised}
    elif state.stage is Stage.MASK:
        senders = state.answers[Stage.SHARE].items()
        parts = {c: a.parts[client] for c, a in senders if c != client}
    elif state.stage is Stage.CONFIRM:
        parts = dict.fromkeys(state.survivors, b"")
    elif state.stage is Stage.REVEAL:
        confirmed = sorted(state.answers[Stage.CONFIRM])[: state.needed]
        parts = {c: state.answers[Stage.CONFIRM][c].signature for c in confirmed}
    assert state.stage is not None
    return Request(state.attempt, state.stage, parts).to_bytes()


def collect(state: ServerState, client: str, answer: bytes) -> ServerState:
    """Check an answer to the open stage and keep it. The same answer again changes nothing."""
    digest = hashlib.sha256(answer).hexdigest()
    if any(found.get(client) == digest for found in state.digests.values()):
        return state
    _check_asked(state, client)
    stage, total = state.stage, state.total
    assert stage is not None
    collected = state.digests.get(stage, {})
    if client in collected:
        raise Refused(f"answer of {client} to stage {stage}", "the one it gave before", "another")
    found = Answer.read(answer, state.attempt, stage, client, state.roster)
    answers = {**state.answers.get(stage, {}), client: found}
    if stage is Stage.ADVERTISE:
        if len(answers) > MAX_SITES:
            raise Refused("sites of one sum", f"at most {MAX_SITES}", len(answers))
        ciphers.check_advertisements(answers.values())
        for name in ("channel", "mask"):
            ciphers.agree(_PROBE, found.parts[name], b"")
    elif stage is Stage.SHARE:
        peers = {*state.answered(Stage.ADVERTISE)} - {client}
        check_parts(found.parts, ciphers.ENVELOPE_BYTES, peers)
    elif stage is Stage.MASK:
        check_parts(found.parts, 4 * state.attempt.length, ["vector"])
        total = total + np.frombuffer(found.parts["vector"], "<u4")
        answers = {}
    elif stage is Stage.CONFIRM:
        text = ciphers.survivors_text(
            _participants(state), state.answered(Stage.SHARE), state.survivors
        )
        if found.parts != {"survivors": text}:
            raise Refused(f"survivors that {client} signed", "the list of the request", "another")
    else:
        check_parts(found.parts, SHARE_BYTES, state.answered(Stage.SHARE))
        for share in found.parts.values():
            read_share(share)
    return replace(
        state,
        digests={**state.digests, stage: {**collected, client: digest}},
        answers={**state.answers, stage: answers},
        total=total,
    )


def close(state: ServerState) -> ServerState:
    """End the open stage and open the next one. ``AttemptFailed`` if too few sites answered."""
    if state.stage is None:
        raise ValueError("the last stage is closed")
    count = len(state.answered(state.stage))
    if count < state.needed:
        raise AttemptFailed(
            f"attempt {state.attempt.number} of {state.attempt.task}: {count} sites answered stage "
            f"{state.stage}, {state.needed} are needed; start another attempt"
        )
    return replace(state, stage=state.stage.next)


def unmask(state: ServerState) -> NDArray[np.uint32]:
    """The sum of the survivors' vectors modulo 2^32, after the last stage was closed.

    Every secret that the shares give is compared with what its site advertised, so wrong shares
    cannot change the sum. Those of one site are left out if there are enough others; otherwise
    ``AttemptFailed`` is raised.
    """
    if state.stage is not None:
        raise ValueError(f"stage {state.stage} is open")
    attempt, participants = state.attempt, _participants(state)
    digest = ciphers.participants_digest(participants)
    total = state.total.copy()
    for client in state.answered(Stage.SHARE):
        if client in state.survivors:
            seed = _recover(state, participants, client)
            ciphers.add_mask(total, ciphers.self_mask_key(attempt, client, seed), -1)
            continue
        private = ciphers.private_key(_recover(state, participants, client))
        for peer in state.survivors:  # each added or subtracted the mask that it shares with client
            public = participants[peer]["mask"]
            key = ciphers.pair_mask_key(attempt, digest, private, public, (client, peer))
            ciphers.add_mask(total, key, -1 if peer < client else 1)
    return total


def _recover(state: ServerState, participants: Participants, client: str) -> bytes:
    """The seed of a survivor, or the mask key of a site that dropped out, from its shares."""
    attempt, advertised = state.attempt, participants[client]
    points = {site: point for point, site in enumerate(sorted(participants), 1)}
    revealed = state.answers[Stage.REVEAL]
    for wrong in (None, *revealed):
        used = [site for site in revealed if site != wrong][: threshold(len(points))]
        try:
            secret = combine({points[site]: revealed[site].parts[client] for site in used})
        except Refused:
            continue
        if client in state.survivors:
            fits = ciphers.seed_commitment(attempt, client, secret) == advertised["seed"]
        else:
            fits = ciphers.public_bytes(ciphers.private_key(secret)) == advertised["mask"]
        if fits:
            return secret
    raise AttemptFailed(
        f"attempt {attempt.number} of {attempt.task}: the shares of {client} do not give the "
        "secret that it advertised; sites sent wrong shares"
    )


def _participants(state: ServerState) -> Participants:
    return ciphers.check_advertisements(state.answers[Stage.ADVERTISE].values())


def _check_asked(state: ServerState, client: str) -> None:
    """Refuse a site that is unknown or has missed a stage."""
    if client not in state.roster:
        raise Refused("client", "a site of the roster", client)
    if state.stage is None:
        raise Refused("stage", "an open stage", "an attempt that has ended")
    if client not in state.asked:
        raise Refused(
            "client",
            f"one that answered the stage before {state.stage}",
            client,
            hint="it is too late for this attempt",
        )
