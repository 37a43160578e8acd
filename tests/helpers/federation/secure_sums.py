"""A secure sum without a network: sites and a server that exchange bytes and can be killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedran.federation.protocol.identity import SiteKey
from fedran.federation.secure.masking import masking, unmasking
from fedran.federation.secure.masking.attempt import (
    Attempt,
    Request,
    SiteIdentity,
    Stage,
    roster_digest,
)
from fedran.federation.secure.masking.masking import SiteState
from fedran.federation.secure.masking.unmasking import ServerState

KEYS = [SiteKey(Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32)) for i in range(100)]
"""Fixed, so that a fixed source of randomness makes every byte the same."""


@dataclass
class Cohort:
    """Sites with their vectors, and the server."""

    identities: dict[str, SiteIdentity]
    vectors: dict[str, np.ndarray]
    server: ServerState
    states: dict[str, SiteState] = field(default_factory=dict)
    sent: list[bytes] = field(default_factory=list)
    """Every answer that the server received and every request that it sent."""
    random: Callable[[int], bytes] = os.urandom

    def answer(self, client: str, request: bytes) -> bytes:
        """What a site does with a request."""
        stage = Request.read(request).stage
        me = self.identities[client]
        previous = self.states.get(client)
        if stage is Stage.ADVERTISE:
            state, answer = masking.advertise(request, me, previous, random=self.random)
        else:
            vector = self.vectors[client]
            state, answer = masking.answer(previous, request, me, vector, random=self.random)
        self.states[client] = state
        return answer

    def ask(self, client: str) -> bytes:
        """The answer of a site to the server's request, which is not collected."""
        request = unmasking.request(self.server, client)
        answer = self.answer(client, request)
        self.sent += [request, answer]
        return answer

    def exchange(self, absent: Collection[str] = ()) -> None:
        """One stage: ask everybody who is asked and present, but do not close the stage."""
        for client in self.server.waiting_for:
            if client not in absent:
                self.server = unmasking.collect(self.server, client, self.ask(client))

    def run(
        self, drops: Mapping[Stage, Collection[str]] | None = None, until: Stage | None = None
    ) -> Cohort:
        """Stages up to and without ``until``. ``drops``: who is absent from a stage on."""
        absent: set[str] = set()
        while self.server.stage not in (None, until):
            absent |= set((drops or {}).get(self.server.stage, ()))
            self.exchange(absent)
            self.server = unmasking.close(self.server)
        return self

    def another_attempt(self) -> Cohort:
        """The same sites in the next attempt of the task."""
        attempt = replace(self.server.attempt, number=self.server.attempt.number + 1)
        server = unmasking.start(attempt, self.server.roster)
        return replace(self, server=server, states=dict(self.states), sent=[])

    def resumed(self) -> Cohort:
        """Everybody was killed and has read the own state again."""
        states = {c: SiteState.from_bytes(s.to_bytes()) for c, s in self.states.items()}
        return replace(self, server=ServerState.from_bytes(self.server.to_bytes()), states=states)

    def altered(self, client: str, **changes: bytes | None) -> bytes:
        """The server's request to a site with other parts; None removes a part."""
        found = Request.read(unmasking.request(self.server, client))
        parts = {k: v for k, v in {**found.parts, **changes}.items() if v is not None}
        return replace(found, parts=parts).to_bytes()

    def plain_sum(self) -> np.ndarray:
        return np.sum([self.vectors[c] for c in self.server.survivors], axis=0, dtype=np.uint32)


def made_attempt(roster, **changes) -> Attempt:
    fields = {
        "federation": "trial",
        "task": "may",
        "number": 1,
        "fingerprint": "f" * 64,
        "content": "c" * 64,
        "length": 8,
        "roster": roster_digest(roster),
    }
    return Attempt(**{**fields, **changes})


def made_cohort(
    n_sites: int = 5, length: int = 8, seed: int = 0, random=os.urandom, **changes
) -> Cohort:
    """Sites ``s00``, ``s01``, ... with random vectors."""
    names = [f"s{i:02d}" for i in range(n_sites)]
    roster = {name: key.public for name, key in zip(names, KEYS, strict=False)}
    rng = np.random.default_rng(seed)
    vectors = {name: rng.integers(0, 2**32, length, dtype=np.uint32) for name in names}
    identities = {n: SiteIdentity(n, k, roster) for n, k in zip(names, KEYS, strict=False)}
    attempt = made_attempt(roster, length=length, **changes)
    return Cohort(identities, vectors, unmasking.start(attempt, roster), random=random)


def shows(view: Iterable[bytes], vectors: Iterable[np.ndarray]) -> bool:
    """Whether six numbers of a vector that follow each other are anywhere in some byte strings.

    Runs with a number near zero are not looked for: files hold many zeros.
    """
    pairs = np.unique(np.concatenate([_pairs_of(vector) for vector in vectors]))
    for blob in view:
        if len(blob) >= 24:
            windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(blob, np.uint8), 8)
            found = np.isin(np.ascontiguousarray(windows).view("<u8")[:, 0], pairs)
            if np.any(found[:-16] & found[8:-8] & found[16:]):
                return True
    return False


def _pairs_of(vector: np.ndarray) -> np.ndarray:
    numbers = vector.astype("<u4")
    pairs = np.stack([numbers[:-1], numbers[1:]], axis=1)
    far_from_zero = np.abs(pairs.view("<i4").astype(np.int64)).min(axis=1) >= 256
    return pairs[far_from_zero].view("<u8")[:, 0]
