"""A secure sum without a network: sites and a server that exchange bytes and can be killed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedran.federation.protocol.identity import SiteKey
from fedran.federation.secure import masking, unmasking
from fedran.federation.secure.attempt import STAGES, Attempt, Request, Stage, roster_digest
from fedran.federation.secure.masking import SiteIdentity, SiteState
from fedran.federation.secure.unmasking import ServerState

KEYS = [SiteKey.generate() for _ in range(100)]


@dataclass
class Cohort:
    """Sites with their vectors, and the server."""

    identities: dict[str, SiteIdentity]
    vectors: dict[str, np.ndarray]
    server: ServerState
    states: dict[str, SiteState] = field(default_factory=dict)
    sent: list[bytes] = field(default_factory=list)
    """Everything that the server received or stored."""

    def answer(self, client: str, request: bytes) -> bytes:
        """What a site does with a request."""
        stage = Request.read(request).stage
        me = self.identities[client]
        if stage is Stage.ADVERTISE:
            state, answer = masking.advertise(request, me, self.states.get(client))
        elif stage is Stage.MASK:
            state, answer = masking.mask(self.states[client], request, me, self.vectors[client])
        else:
            state, answer = getattr(masking, stage)(self.states[client], request, me)
        self.states[client] = state
        return answer

    def exchange(self, absent: Collection[str] = ()) -> None:
        """One stage: ask everybody who is asked and present, but do not close the stage."""
        for client in self.server.waiting_for:
            if client not in absent:
                answer = self.answer(client, unmasking.request(self.server, client))
                self.sent.append(answer)
                self.server = unmasking.collect(self.server, client, answer)

    def run(self, drops: Mapping[Stage, Collection[str]] | None = None, until: Stage | None = None):
        """Stages up to and without ``until``. ``drops``: who is absent from a stage on."""
        absent: set[str] = set()
        for stage in STAGES[STAGES.index(self.server.stage) :] if self.server.stage else ():
            if stage is until:
                return self
            absent |= set((drops or {}).get(stage, ()))
            self.exchange(absent)
            self.server = unmasking.close(self.server)
        return self

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


def made_cohort(n_sites: int = 5, length: int = 8, seed: int = 0, **changes) -> Cohort:
    """Sites ``s00``, ``s01``, ... with random vectors."""
    names = [f"s{i:02d}" for i in range(n_sites)]
    roster = {name: key.public for name, key in zip(names, KEYS, strict=False)}
    rng = np.random.default_rng(seed)
    vectors = {name: rng.integers(0, 2**32, length, dtype=np.uint32) for name in names}
    identities = {n: SiteIdentity(n, k, roster) for n, k in zip(names, KEYS, strict=False)}
    attempt = made_attempt(roster, length=length, **changes)
    return Cohort(identities, vectors, unmasking.start(attempt, roster))
