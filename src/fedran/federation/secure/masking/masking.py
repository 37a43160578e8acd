"""The site's side of a secure sum: it advertises keys, and then answers stage after stage.

Both functions take the site's state and the server's request, and return a new state and the
answer. **Save the state before you send the answer.** Then a site that is killed resumes with
``SiteState.from_bytes``, answers a repeated request with the same bytes, and never gives two
different answers in one stage of one attempt. Keep one state per task: the newest one.

    state, blob = advertise(request, identity, previous_state_of_this_task_or_None)
    state, blob = answer(state, request, identity, vector)  # share, mask, confirm, reveal

Requests are bytes from ``unmasking.request``; answers are bytes for ``unmasking.collect``. Whatever
is wrong with a request raises ``Refused``, and the state stays as it was. ``Request.read`` tells
which task, attempt and stage a request is for.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused, check_id
from fedran.federation.protocol.limits import MAX_SITES, MIN_SITES
from fedran.federation.secure.masking import ciphers
from fedran.federation.secure.masking.attempt import (
    STAGES,
    Answer,
    Attempt,
    Request,
    SiteIdentity,
    Stage,
    pack_groups,
    threshold,
    unpack_groups,
)
from fedran.federation.secure.masking.ciphers import SHARE_BYTES, Participants, Random, split

Parts = dict[str, bytes]
OTHER_LIST = "the server has shown it another list of survivors, or altered its message"


@dataclass(frozen=True)
class SiteState:
    """What a site must remember of its newest attempt at the sum of one task. It holds secrets.

    That keeps the vector of a site in one sum per task, as ``docs/explanation/secure-sums.md``
    argues.
    """

    attempt: Attempt
    client: str
    secrets: dict[str, bytes] = field(repr=False)
    """Private keys ``channel`` and ``mask`` and the self-mask ``seed``. Empty after ``mask``: from
    then on not even the site itself can remove its masks."""
    held: dict[str, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)
    """Client -> this site's shares of its seed and of its mask key. ``reveal`` sends one of them
    and deletes both."""
    requests: dict[Stage, bytes] = field(default_factory=dict, repr=False)
    """The request that was answered in each stage."""
    answers: dict[Stage, bytes] = field(default_factory=dict, repr=False)

    @property
    def stage(self) -> Stage | None:
        """The stage that this site answers next; None after the last."""
        return next((stage for stage in STAGES if stage not in self.answers), None)

    @cached_property
    def participants(self) -> Participants:
        """The sites to which this site has sent shares, and their keys."""
        given = self._shown(Stage.SHARE)
        return {client: ciphers.unpack_keys(blob) for client, blob in given.items()}

    @cached_property
    def survivors(self) -> tuple[str, ...]:
        """The list that this site confirmed."""
        return tuple(sorted(self._shown(Stage.CONFIRM)))

    def _shown(self, stage: Stage) -> Parts:
        """What the request of a stage held; nothing before it was answered."""
        return Request.read(self.requests[stage]).parts if stage in self.requests else {}

    def to_bytes(self) -> bytes:
        """The state for a file that only its owner can read."""
        groups: dict[str, Mapping[Any, bytes]] = {
            "request": self.requests,
            "answer": self.answers,
            "secret": self.secrets,
            "held": {client: b"".join(shares) for client, shares in self.held.items()},
        }
        return pack_groups("secure site", {"client": self.client}, groups)

    @classmethod
    def from_bytes(cls, blob: bytes) -> SiteState:
        """The state that ``to_bytes`` wrote. A damaged one is refused."""
        header, groups = unpack_groups("secure site", blob)
        try:
            held = groups["held"].items()
            requests = {Stage(name): request for name, request in groups["request"].items()}
            return cls(
                Request.read(requests[Stage.ADVERTISE]).attempt,
                check_id(header.text("client"), "client"),
                groups["secret"],
                {client: (both[:SHARE_BYTES], both[SHARE_BYTES:]) for client, both in held},
                requests,
                {Stage(name): answer for name, answer in groups["answer"].items()},
            )
        except (KeyError, ValueError) as reason:
            raise Refused("state", "the state of a site in a secure sum", str(reason)) from None


def advertise(
    request: bytes,
    identity: SiteIdentity,
    previous: SiteState | None = None,
    *,
    min_sites: int = MIN_SITES,
    random: Random = os.urandom,
) -> tuple[SiteState, bytes]:
    """Take part in an attempt: make fresh keys and send the public ones, signed.

    Compare federation, task, fingerprint, content and length of ``Request.read(request).attempt``
    with the task's offer before. ``previous`` is the state of the same task, if there is one; the
    new state replaces it, so the old attempt can no longer be answered. The vector of a site must
    be in one sum only, because sums over different sites give the vector of one site. So a site
    that has sent its masked vector takes part in no other attempt at the task.
    """
    found = Request.read(request)
    attempt = found.attempt
    if found.stage is not Stage.ADVERTISE:
        raise Refused("stage", Stage.ADVERTISE, found.stage)
    if attempt.min_sites < min_sites:
        expected = f"at least {min_sites}, as configured at this site"
        raise Refused("min_sites of the attempt", expected, attempt.min_sites)
    identity.require_roster(attempt)
    if previous is not None:
        same = (previous.attempt.federation, previous.attempt.task, previous.client)
        if same != (attempt.federation, attempt.task, identity.client):
            raise ValueError("previous must be the state of this site and this task")
        if attempt.number <= previous.attempt.number:
            return answer(previous, request, identity)
        if Stage.MASK in previous.answers:
            raise Refused(
                "attempt",
                f"number {previous.attempt.number}, in which this site has sent its rows",
                attempt.number,
                hint="a site's rows are in one sum only; give them a new task id",
            )
    secrets = {name: random(ciphers.KEY_BYTES) for name in ciphers.ADVERTISED}
    public = ciphers.advertised_keys(attempt, identity.client, secrets)
    state = SiteState(attempt, identity.client, secrets)
    return _signed(state, found.stage, request, identity, public)


def answer(
    state: SiteState,
    request: bytes,
    identity: SiteIdentity,
    vector: NDArray[np.uint32] | None = None,
    *,
    random: Random = os.urandom,
) -> tuple[SiteState, bytes]:
    """Answer the next stage, or repeat the answer to a request that was answered before.

    ``vector`` is what this site adds. It is needed once, in ``Stage.MASK``: a repeated request gets
    the first answer, whatever ``vector`` is then.
    """
    if identity.client != state.client:
        raise ValueError(f"the state belongs to {state.client}, not to {identity.client}")
    found = Request.read(request)
    stage = found.stage
    state.attempt.require(found.attempt)
    identity.require_roster(state.attempt)
    if stage in state.answers:
        if state.requests[stage] != request:
            raise Refused(
                f"request of stage {stage}",
                "the one that this site has answered",
                "another",
                hint="a site answers each stage of an attempt once; start another attempt",
            )
        return state, state.answers[stage]
    if stage is not state.stage:
        raise Refused("stage", f"{state.stage}, which this site answers next", stage)
    if not (state.secrets or state.held):  # the server has the sum
        raise Refused("attempt", "one that is under way at this site", "one that has ended")
    if stage is Stage.SHARE:
        state, parts = _share(state, found.parts, identity, random)
    elif stage is Stage.MASK:
        state, parts = _mask(state, found.parts, vector)
    elif stage is Stage.CONFIRM:
        state, parts = _confirm(state, found.parts)
    else:
        state, parts = _reveal(state, found.parts, identity)
    return _signed(state, stage, request, identity, parts)


def _share(
    state: SiteState, given: Parts, identity: SiteIdentity, random: Random
) -> tuple[SiteState, Parts]:
    """Send every peer an encrypted share of this site's mask key and of its self-mask seed.

    The request holds the advertisements of all sites. A site refuses sites that are not in its
    roster, wrong signatures, another key under its own name, and too few sites.
    """
    attempt, own = state.attempt, state.client
    _check_list("participants", given, identity.roster, attempt.min_sites)
    answers = [
        Answer(
            peer,
            Stage.ADVERTISE,
            ciphers.unpack_keys(blob),
            blob[len(ciphers.ADVERTISED) * ciphers.KEY_BYTES :],
        )
        for peer, blob in given.items()
    ]
    for advertised in answers:
        advertised.verify(attempt, identity.roster)
    participants = ciphers.check_advertisements(answers)
    if participants.get(own) != ciphers.advertised_keys(attempt, own, state.secrets):
        raise Refused(f"advertisement of {own}", "the one that this site sent", "another, or none")
    peers, channel = sorted(participants), ciphers.private_key(state.secrets["channel"])
    shares = [
        split(state.secrets[name], len(peers), threshold(len(peers)), random)
        for name in ("seed", "mask")
    ]
    envelopes, held = {}, {}
    digest = ciphers.participants_digest(participants)
    for peer, pair in zip(peers, zip(*shares, strict=True), strict=True):
        if peer == own:
            held[own] = pair
            continue
        info = attempt.info("shares", participants=digest, sender=own, receiver=peer)
        key = ciphers.agree(channel, participants[peer]["channel"], info)
        envelopes[peer] = ciphers.seal_shares(key, pair, random)
    return replace(state, held=held), envelopes


def _mask(
    state: SiteState, given: Parts, vector: NDArray[np.uint32] | None
) -> tuple[SiteState, Parts]:
    """Send the vector plus this site's self-mask and one mask per peer, modulo 2^32.

    The request holds the envelopes for this site. All are opened now: a site that was shown another
    list of participants made them with other keys and is refused. The private keys are then
    deleted.
    """
    attempt, own = state.attempt, state.client
    if vector is None or vector.dtype != np.uint32 or vector.shape != (attempt.length,):
        got = "none" if vector is None else f"{vector.dtype} {vector.shape}"
        raise ValueError(f"vector must be uint32 ({attempt.length},), got {got}")
    if own in given:
        raise Refused("envelopes", "those of the other sites", f"one of {own} itself")
    needed = attempt.needed(len(state.participants))
    _check_list("sites that sent shares", [*given, own], state.participants, needed)
    digest = ciphers.participants_digest(state.participants)
    channel, pairs = (ciphers.private_key(state.secrets[name]) for name in ("channel", "mask"))
    held = dict(state.held)
    masked = vector.copy()
    ciphers.add_mask(masked, ciphers.self_mask_key(attempt, own, state.secrets["seed"]), 1)
    for peer, envelope in given.items():
        keys = state.participants[peer]
        info = attempt.info("shares", participants=digest, sender=peer, receiver=own)
        held[peer] = ciphers.open_shares(
            ciphers.agree(channel, keys["channel"], info), envelope, peer
        )
        key = ciphers.pair_mask_key(attempt, digest, pairs, keys["mask"], (own, peer))
        ciphers.add_mask(masked, key, 1 if own < peer else -1)
    data = masked.astype("<u4", copy=False).tobytes()
    return replace(state, held=held, secrets={}), {"vector": data}


def _confirm(state: SiteState, given: Parts) -> tuple[SiteState, Parts]:
    """Sign the list of survivors: the sites whose masked vectors the server has.

    All sites sign the same text, so a server that shows different lists cannot collect enough
    signatures for any of them.
    """
    survivors = tuple(sorted(given))
    needed = state.attempt.needed(len(state.participants))
    _check_list("survivors", survivors, state.held, needed)
    if state.client not in survivors:
        raise Refused("survivors", f"a list with {state.client}, this site", ", ".join(survivors))
    text = ciphers.survivors_text(state.participants, state.held, survivors)
    return state, {"survivors": text}


def _reveal(state: SiteState, given: Parts, identity: SiteIdentity) -> tuple[SiteState, Parts]:
    """Send one share per site: of the seed of a survivor, of the mask key of a site that dropped.

    The request holds the confirmations of other sites. Shares are revealed only if enough sites of
    the roster signed the same list of survivors as this site.
    """
    needed = threshold(len(state.participants))
    _check_list("confirmations", given, state.survivors, needed)
    text = ciphers.survivors_text(state.participants, state.held, state.survivors)
    for peer, signature in given.items():
        confirmation = Answer(peer, Stage.CONFIRM, {"survivors": text}, signature)
        confirmation.verify(state.attempt, identity.roster, OTHER_LIST)
    shares = {c: pair[0 if c in state.survivors else 1] for c, pair in state.held.items()}
    return replace(state, held={}), shares


def _signed(
    state: SiteState, stage: Stage, request: bytes, identity: SiteIdentity, parts: Parts
) -> tuple[SiteState, bytes]:
    """Sign an answer and record it with its request."""
    blob = Answer.sign(state.attempt, stage, state.client, parts, identity.key).to_bytes()
    requests, answers = {**state.requests, stage: request}, {**state.answers, stage: blob}
    return replace(state, requests=requests, answers=answers), blob


def _check_list(what: str, sites: Collection[str], known: Collection[str], least: int) -> None:
    """Refuse a list with unknown sites, too few or too many."""
    unknown = sorted(set(sites) - set(known))
    if unknown:
        raise Refused(what, f"only {', '.join(sorted(known))}", ", ".join(unknown))
    if not least <= len(sites) <= MAX_SITES:
        raise Refused(what, f"{least} to {MAX_SITES} sites", len(sites))
