"""A site's part in secure sums: it answers the server's requests, and keeps what it must remember.

Files in ``state/sums/``, one set per task: ``TASK.state`` (keys, shares and answers of the newest
attempt), ``TASK.vector`` (this site's contribution), ``TASK.note`` (what it contains, and the
receipt) and ``TASK.repeat`` (the operator agreed to another sum). A state is on disk before an
answer leaves the site.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused, printable
from fedran.core.ids import check_id
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.messages import Offer
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.secure import masking
from fedran.federation.secure.attempt import Attempt, Request, SiteIdentity, Stage, helpers
from fedran.federation.secure.contribution import Content
from fedran.federation.secure.coordinator import OMEGA
from fedran.federation.secure.pinning import PinnedRoster, read_clients
from fedran.federation.secure.site_state import SentVector, SiteState
from fedran.federation.secure.spending import SentNoise, read_sent, spent_epsilon
from fedran.federation.site.settings import SiteSettings
from fedran.wire.files import read_json_object, write_atomically

log = logging.getLogger(__name__)
FOLDER = "sums"
CANNOT_ADD = (
    "this site cannot add its rows to the sum; its own log and status say why, and it refuses this "
    "task until its operator has run `fedran federation repeat`"
)
"""All that a server learns if the rows do not fit what it asks for, whatever the reason is."""
MAX_CONTENTS = 10
"""Contents and feature maps for which a site makes a contribution to one task, unless its operator
agrees to more. Each of them tells the server whether the rows fit."""
MakeVector = Callable[[Offer, Content], None]
"""Writes the contribution of a task to its file, in a process of its own."""


class NoContribution(RuntimeError):
    """A site cannot add anything to a sum. The text is for the server."""

    def __init__(self, text: str, failed: bool) -> None:
        super().__init__(text)
        self.failed = failed
        """Whether something is wrong. Otherwise the site has no rows yet."""


class SumFiles:
    """The files of secure sums in a site's state folder. They hold secrets."""

    def __init__(self, state: Path) -> None:
        self.folder = state / FOLDER
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, task: str, kind: str) -> Path:
        """A file of a task."""
        return self.folder / f"{check_id(task, 'task')}.{kind}"

    def state(self, task: str) -> SiteState | None:
        """The newest attempt of a task; None before the first one.

        A damaged file is refused: it may have said that this site has revealed a sum.
        """
        path = self.path(task, "state")
        if not path.is_file():
            return None
        try:
            return SiteState.from_bytes(path.read_bytes())
        except Refused as reason:
            hint = "`fedran federation repeat --another-sum` at this site begins anew"
            raise Refused(path.name, "what this site has written", reason.got, hint) from None

    def save(self, state: SiteState) -> None:
        """Write the newest attempt of a task."""
        write_atomically(self.path(state.attempt.task, "state"), state.to_bytes())

    def note(self, task: str) -> dict[str, Any]:
        """What is known about a task; may be empty.

        ``content``, ``fingerprint`` and ``limits`` of the contribution, or why it was ``refused``;
        for which contents one was ``made``; its ``noise``, and what was ``sent`` with noise; how
        many ``agreements`` to another sum were used; ``code``, ``digest`` and ``reason`` of the
        receipt.
        """
        return read_json_object(self.path(task, "note"))

    def set_note(self, task: str, **changes: Any) -> None:
        """Add to what is known about a task."""
        note = json.dumps({**self.note(task), **changes})
        write_atomically(self.path(task, "note"), note.encode())

    def vector(self, task: str) -> NDArray[np.uint32]:
        """The contribution of this site."""
        found = np.frombuffer(self.path(task, "vector").read_bytes(), "<u4")
        return found.astype(np.uint32, copy=False)

    def put_vector(self, task: str, vector: NDArray[np.uint32], content: Content) -> None:
        """Keep a contribution."""
        write_atomically(self.path(task, "vector"), vector.astype("<u4", copy=False).tobytes())
        self.set_note(task, content=content.digest)

    def require_made_for(self, attempt: Attempt) -> None:
        """Refuse to send a contribution of another layout, resolution, noise or feature map.

        A request that is refused later may have replaced the one of the attempt under way.
        """
        note = self.note(attempt.task)
        made_for = note.get("content"), note.get("fingerprint")
        if made_for != (attempt.content, attempt.fingerprint):
            hint = "another attempt makes it anew"
            raise Refused("contribution", "the one that was made for this attempt", "another", hint)

    def may_repeat(self, task: str, state: SiteState | None) -> bool:
        """Whether this site's operator agreed to another sum of the task after this attempt."""
        path, number = self.path(task, "repeat"), 0 if state is None else state.attempt.number
        return path.is_file() and path.read_bytes() == b"%d" % number

    def retry(self, task: str) -> tuple[SentVector, ...]:
        """Try again to add rows that were refused, or with other limits of the server.

        Returns the attempts in which this site has sent its vector. Their rules hold as before.
        """
        state, note = self.state(task), self.note(task)
        if state is None and not note.get("refused"):
            raise FileNotFoundError(f"{task}: no secure sum of this task at this site")
        self.set_note(task, refused="", limits=[], made=[])
        return () if state is None else state.sent

    def allow_repeat(self, task: str) -> None:
        """Take part in another sum of a task, also with other sites or rows, once."""
        try:
            self.retry(task)
            state = self.state(task)
        except Refused:  # it is damaged, and of no use
            self.path(task, "state").unlink()
            state = None
        number = 0 if state is None else state.attempt.number
        write_atomically(self.path(task, "repeat"), b"%d" % number)

    def agreements(self, task: str, state: SiteState | None) -> int:
        """How often the operator agreed to another sum, with an agreement that is not used yet."""
        return int(self.note(task).get("agreements", 0)) + self.may_repeat(task, state)

    def sent(self) -> dict[str, tuple[SentNoise, ...]]:
        """Task -> the noise that was sent with its rows."""
        notes = ((path.stem, read_json_object(path)) for path in self.folder.glob("*.note"))
        return {task: found for task, note in notes if (found := read_sent(note))}

    def note_sent(self, state: SiteState) -> None:
        """Note what an answer with a masked vector, or with shares, may reveal of the rows."""
        attempt, note = state.attempt, self.note(state.attempt.task)
        if not note.get("noise"):
            return
        before, agreement = read_sent(note), int(note.get("agreements", 0))
        same = [s for s in before if (s.agreement, s.content) == (agreement, attempt.content)]
        new = SentNoise(agreement, attempt.number, attempt.content, *note["noise"])
        entry = replace(same[0] if same else new, attempt=attempt.number)
        if Stage.REVEAL in state.answers:
            entry = replace(entry, members=state.survivors)
        kept = [asdict(s) for s in (*before, entry) if s not in same]
        self.set_note(attempt.task, sent=kept)

    def settle(self, receipt: Receipt) -> None:
        """Keep the server's receipt, and delete the secrets of a sum that the server has."""
        task, state = receipt.task, self.state(receipt.task)
        told, known = {"code": receipt.code.value, "digest": receipt.digest}, self.note(task)
        if state is None or told.items() <= known.items():
            return
        self.set_note(task, **told, reason=receipt.reason)
        log.info("task %s: %s %s", printable(task), receipt.outcome, printable(receipt.reason))
        if receipt.settled:
            self.path(task, "vector").unlink(missing_ok=True)
            self.path(task, "omega").unlink(missing_ok=True)
            empty = dict.fromkeys(state.answers, b"")
            self.save(replace(state, secrets={}, held={}, answers=empty))

    def waiting(self) -> list[str]:
        """Tasks whose sum this site has revealed, without knowing that the server has it."""
        found, settled = [], {task for task, _ in self.settled()}
        for task in sorted({path.stem for path in self.folder.glob("*.state")} - settled):
            with suppress(Refused):  # damaged: its next request is refused
                state = self.state(task)
                if state is not None and Stage.REVEAL in state.answers:
                    found.append(task)
        return found

    def settled(self) -> list[tuple[str, str]]:
        """Tasks and digests of the sums that the server has, as far as this site knows."""
        notes = ((path.stem, read_json_object(path)) for path in self.folder.glob("*.note"))
        accepted = (Code.ACCEPTED.value, Code.DUPLICATE.value)
        return sorted((task, str(n["digest"])) for task, n in notes if n.get("code") in accepted)


@dataclass(frozen=True)
class Participant:
    """Answers the requests of one message."""

    identity: SiteIdentity
    files: SumFiles
    limits: SiteSettings
    make_vector: MakeVector

    @classmethod
    def load(
        cls, folder: Path, settings: SiteSettings, shown: object, make_vector: MakeVector
    ) -> Participant:
        """The site in ``folder``, after the roster that the server shows was compared."""
        state = folder / settings.state
        pinned = PinnedRoster(state)
        pinned.require(read_clients(shown))
        identity = SiteIdentity(
            settings.client, SiteKey.load(folder / settings.key), pinned.clients
        )
        return cls(identity, SumFiles(state), settings, make_vector)

    def answer(self, offer: Offer, request: bytes, content: object, omega: bytes) -> bytes:
        """The answer to one request. It is on disk before it is returned."""
        found = Request.read(request)
        task = found.attempt.task
        files, state = self.files, self.files.state(task)
        if found.stage is Stage.ADVERTISE:
            self._prepare(replace(offer, task=task, earlier=()), found.attempt, content, omega)
            repeat = files.may_repeat(task, state)
            newest, answer = masking.advertise(
                request, self.identity, state, min_sites=self.limits.min_sites, repeat=repeat
            )
            used = repeat and newest is not state
            if used:
                files.set_note(task, code="pending", agreements=files.agreements(task, state))
            files.save(newest)  # with its number, so the operator's agreement is used up
            if used:
                files.path(task, "repeat").unlink()
            return answer
        if state is None:
            raise Refused("attempt", "one in which this site takes part", found.attempt.number)
        if found.stage is Stage.MASK:
            files.require_made_for(state.attempt)
            state, answer = masking.mask(state, request, self.identity, files.vector(task))
            files.note_sent(state)
        else:
            steps = {
                Stage.SHARE: masking.share,
                Stage.CONFIRM: masking.confirm,
                Stage.REVEAL: masking.reveal,
            }
            state, answer = steps[found.stage](state, request, self.identity)
            if found.stage is Stage.REVEAL:
                files.note_sent(state)
        files.save(state)
        return answer

    def last_number(self, request: bytes) -> int:
        """The number of the newest attempt at the sum of a request's task; 0 before the first."""
        try:
            state = self.files.state(Request.read(request).attempt.task)
        except Refused:
            return 0
        return 0 if state is None else state.attempt.number

    def _prepare(self, offer: Offer, attempt: Attempt, given: object, omega: bytes) -> None:
        """Make the contribution for an attempt, unless it exists.

        Whatever the attempt says about the task must agree with the offer and the content.
        """
        content, fingerprint = Content.read(given), offer.features().fingerprint
        expected = {
            "federation": offer.federation,
            "fingerprint": fingerprint.hash,
            "content": content.digest,
            "length": content.length(fingerprint),
        }
        for name, value in expected.items():
            if getattr(attempt, name) != value:
                raise Refused(f"{name} of the attempt", str(value), getattr(attempt, name))
        self._check_limits(offer, attempt, content)
        task, files = offer.task, self.files
        state, note = files.state(task), files.note(task)
        if note.get("refused"):
            raise NoContribution(CANNOT_ADD, failed=True)
        if state is not None and state.attempt == attempt:
            return
        agreement = files.agreements(task, state)
        if any(s.agreement < agreement and s.content == content.digest for s in read_sent(note)):
            raise Refused(
                "content",
                "another draw of noise, because this site agreed to another sum",
                "one with which it has sent its rows before",
                hint="the server's owner runs `fedran federation recharge`",
            )
        known = task in (name for name, _ in files.settled())
        # Others may have revealed a sum with this site's vector. Sent again, it must be the same:
        # the difference would tell what changed, and new noise could be averaged out.
        sent = () if state is None else state.sent
        fixed = known or any(s.survivors or s.content == content.digest for s in sent)
        if fixed and not files.may_repeat(task, state):
            same = note.get("content") == content.digest
            if same and files.path(task, "vector").is_file():
                return
            raise Refused(
                "sum",
                "a task whose sum the server does not have yet",
                task,
                hint="two sums differ by what has changed at one site; `fedran federation repeat "
                "--another-sum` at this site agrees to that",
            )
        # Whether rows fit is one bit about them. A server that could ask with one limit after the
        # other would find out their number and classes, and with one test matrix after the other
        # the size of their sketch.
        limits = [content.max_rows, *content.classes]
        made = sorted({*note.get("made", []), f"{content.digest} {attempt.fingerprint}"})
        if content.noise is None and (note.get("limits") or limits) != limits:
            raise Refused(
                "content",
                "the classes and max_rows of the first request for this task",
                "others",
                hint="`fedran federation repeat` at this site accepts them",
            )
        if content.noise is None and len(made) > MAX_CONTENTS:
            raise Refused(
                "content",
                f"one of the first {MAX_CONTENTS} for this task",
                "another",
                hint="`fedran federation repeat` at this site accepts it",
            )
        if content.omega:
            write_atomically(files.path(task, "omega"), omega)
        files.set_note(task, content="", fingerprint="")  # until it is complete, it is not sent
        try:
            self.make_vector(offer, content)
        except Exception as reason:
            if isinstance(reason, NoContribution) and not reason.failed:
                raise NoContribution(f"no rows for task {task} yet", failed=False) from None
            asked = f"max_rows {content.max_rows} and {len(content.classes)} classes"
            log.error("task %s refused: %s; the server asked with %s", task, reason, asked)
            files.set_note(task, refused=f"{reason}; the server asked with {asked}")
            raise NoContribution(CANNOT_ADD, failed=True) from None
        noise = content.noise and (content.noise.epsilon, content.noise.delta)
        files.set_note(task, fingerprint=attempt.fingerprint, limits=limits, made=made, noise=noise)

    def _check_limits(self, offer: Offer, attempt: Attempt, content: Content) -> None:
        """Refuse more features, or less noise, than this site's settings allow.

        The sum has at least ``min_sites`` members. Some may work with the server, and each knows
        its own noise. So the guarantee may count on the noise of the others only.
        """
        noise, limits = content.noise, self.limits
        if offer.out_features > limits.max_out_features:
            expected = f"at most {limits.max_out_features}, the site's max_out_features"
            raise Refused("out_features", expected, offer.out_features)
        if (noise is not None) != (offer.privacy == "dp"):
            expected = "noise" if offer.privacy == "dp" else "no noise"
            raise Refused("content", f"{expected}, as the offer says", noise)
        if noise is None:
            return
        task, sent = attempt.task, self.files.sent()
        agreement = self.files.agreements(task, self.files.state(task))
        new = SentNoise(agreement, attempt.number, content.digest, noise.epsilon, noise.delta)
        sent[task] = (*sent.get(task, ()), new)
        row, person = (spent_epsilon(t, limits.max_delta) for t in ([sent[task]], sent.values()))
        total = math.inf if limits.max_total_epsilon is None else limits.max_total_epsilon
        for name, given, most in (
            ("delta", noise.delta, limits.max_delta),
            ("honest sites", noise.honest, attempt.min_sites - helpers(limits.min_sites)),
            ("epsilon of the task's rows", row, limits.max_epsilon),
            ("epsilon of a person with rows in all tasks", person, total),
        ):
            if given > most * (1 + 1e-9):
                raise Refused(name, f"at most {most:g}, as this site's settings demand", given)


def requests_of(
    fields: Mapping[str, Any], blobs: Mapping[str, bytes]
) -> list[tuple[str, bytes, object, bytes]]:
    """Name, request, content and test matrix of every request in a message."""
    contents = fields.get("contents")
    known = contents if isinstance(contents, Mapping) else {}
    names = [name for name in blobs if not name.endswith(OMEGA)]
    return [(n, blobs[n], known.get(n), blobs.get(f"{n}{OMEGA}", b"")) for n in sorted(names)]
