"""What a site remembers of a secure sum: its newest attempt, and whether its vector may be known.

That keeps the vector of a site in one sum per task. ``docs/explanation/secure-sums.md`` gives the
argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fedran.core.errors import Refused, check_id
from fedran.federation.secure.attempt import (
    STAGES,
    Attempt,
    Stage,
    check_digest,
    pack_parts,
    threshold,
    unpack_parts,
)
from fedran.federation.secure.ciphers import Participants, pack_keys, unpack_keys
from fedran.federation.secure.shamir import SHARE_BYTES
from fedran.wire.validation import FILE_LIMITS


@dataclass(frozen=True)
class SiteState:
    """What a site must remember of its newest attempt at the sum of one task. It holds secrets."""

    attempt: Attempt
    client: str
    secrets: dict[str, bytes] = field(repr=False)
    """Private keys ``channel`` and ``mask`` and the self-mask ``seed``. Empty after ``mask``: from
    then on not even the site itself can remove its masks."""
    participants: Participants = field(default_factory=dict, repr=False)
    held: dict[str, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)
    """Client -> this site's shares of its seed and of its mask key. ``reveal`` sends one of them
    and deletes both."""
    survivors: tuple[str, ...] = ()
    """The list that this site confirmed."""
    requests: dict[Stage, str] = field(default_factory=dict)
    """SHA-256 of the request that was answered in each stage."""
    answers: dict[Stage, bytes] = field(default_factory=dict, repr=False)

    @property
    def stage(self) -> Stage | None:
        """The stage that this site answers next; None after the last."""
        return next((stage for stage in STAGES if stage not in self.answers), None)

    @property
    def may_be_known(self) -> bool:
        """Whether a sum with this site's vector may be known.

        Before this site reveals shares, others can open the sum only where they are enough without
        it. Where all participants are needed, its own shares are: they are gone with this state.
        """
        n_sites = len(self.participants)
        others_suffice = threshold(n_sites) < n_sites
        return Stage.REVEAL in self.answers or (Stage.MASK in self.answers and others_suffice)

    def to_bytes(self) -> bytes:
        """The state for a file that only its owner can read."""
        fields = {
            "attempt": self.attempt.fields,
            "client": self.client,
            "survivors": self.survivors,
            "requests": self.requests,
        }
        parts = {f"answer:{stage}": answer for stage, answer in self.answers.items()}
        parts |= {f"secret:{name}": secret for name, secret in self.secrets.items()}
        parts |= {f"keys:{client}": pack_keys(keys) for client, keys in self.participants.items()}
        parts |= {f"held:{client}": b"".join(shares) for client, shares in self.held.items()}
        return pack_parts("secure site", fields, parts)

    @classmethod
    def from_bytes(cls, blob: bytes) -> SiteState:
        """The state that ``to_bytes`` wrote. A damaged one is refused."""
        header, parts = unpack_parts("secure site", blob, FILE_LIMITS)

        def named(kind: str) -> Iterator[tuple[str, bytes]]:
            return ((n[len(kind) :], p) for n, p in parts.items() if n.startswith(kind))

        try:
            return cls(
                Attempt.read(header.section("attempt")),
                check_id(header.text("client"), "client"),
                dict(named("secret:")),
                {client: unpack_keys(keys) for client, keys in named("keys:")},
                {c: (both[:SHARE_BYTES], both[SHARE_BYTES:]) for c, both in named("held:")},
                tuple(header.get("survivors")),
                {Stage(s): check_digest(d, s) for s, d in header.get("requests").items()},
                {Stage(stage): answer for stage, answer in named("answer:")},
            )
        except (TypeError, ValueError, AttributeError) as reason:
            raise Refused("state", "the state of a site in a secure sum", str(reason)) from None
