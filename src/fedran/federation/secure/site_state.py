"""What a site remembers of a secure sum: its newest attempt, and a ledger of earlier ones.

The ledger keeps the vector of a site in one sum per task. ``docs/explanation/secure-sums.md`` gives
the argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import astuple, dataclass, field

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
class SentVector:
    """An attempt that may have been opened, with the masked vector of this site in its sum."""

    content: str
    participants: tuple[str, ...]
    survivors: tuple[str, ...]
    """The list for which this site revealed shares; empty if it revealed none."""

    def require_overlap(self, participants: Collection[str], liars: int) -> None:
        """Refuse participants with whom a second sum could be opened beside that of this attempt.

        A threshold of the sites revealed the sum of this attempt, if it is known, and a threshold
        of the new participants would confirm theirs. If more than ``liars`` sites must be in both,
        one of them follows the rules and confirms no other survivors than before.
        """
        then, now = self.participants, participants
        common = threshold(len(then)) + threshold(len(now)) - len({*then, *now})
        if common <= liars:
            raise Refused(
                "participants",
                f"most of {', '.join(then)}, with whom this site has sent its vector before",
                ", ".join(sorted(now)),
                hint="both sums could be opened, and their difference tells about single sites; "
                "`fedran federation repeat --another-sum` at this site agrees to that",
            )


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
    earlier: tuple[SentVector, ...] = ()
    """The ledger of earlier attempts at this sum. Only ``repeat`` empties it."""
    requests: dict[Stage, str] = field(default_factory=dict)
    """SHA-256 of the request that was answered in each stage."""
    answers: dict[Stage, bytes] = field(default_factory=dict, repr=False)

    @property
    def stage(self) -> Stage | None:
        """The stage that this site answers next; None after the last."""
        return next((stage for stage in STAGES if stage not in self.answers), None)

    @property
    def sent(self) -> tuple[SentVector, ...]:
        """The ledger with this attempt. Without this site's shares, no sum is opened where all
        participants are needed.
        """
        sites, revealed = tuple(sorted(self.participants)), Stage.REVEAL in self.answers
        if not revealed and (Stage.MASK not in self.answers or threshold(len(sites)) == len(sites)):
            return self.earlier
        mine = SentVector(self.attempt.content, sites, self.survivors if revealed else ())
        return self.earlier if mine in self.earlier else (*self.earlier, mine)

    def to_bytes(self) -> bytes:
        """The state for a file that only its owner can read."""
        fields = {
            "attempt": self.attempt.fields,
            "client": self.client,
            "survivors": self.survivors,
            "earlier": [astuple(sent) for sent in self.earlier],
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
                tuple(
                    SentVector(check_digest(content, "content"), tuple(sites), tuple(survivors))
                    for content, sites, survivors in header.get("earlier")
                ),
                {Stage(s): check_digest(d, s) for s, d in header.get("requests").items()},
                {Stage(stage): answer for stage, answer in named("answer:")},
            )
        except (TypeError, ValueError, AttributeError) as reason:
            raise Refused("state", "the state of a site in a secure sum", str(reason)) from None
