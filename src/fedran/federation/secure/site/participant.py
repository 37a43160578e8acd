"""A site's part in secure sums: it answers the server's requests, within its own limits, and makes
its contribution, the sums over a task's rows as integers.

``sum_files.py`` keeps what it must remember.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.features import RandomFeatures
from fedran.core.labels import encode_labels
from fedran.core.private.dp import Budget, Mechanism, gaussian_epsilon
from fedran.core.private.sketch_sums import sketch_sums
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.limits import BATCH_ROWS, MAX_CONTENTS
from fedran.federation.protocol.messages import Offer
from fedran.federation.secure.masking import masking
from fedran.federation.secure.masking.attempt import Attempt, Request, SiteIdentity, Stage, helpers
from fedran.federation.secure.masking.contribution import Content, encode_contribution
from fedran.federation.secure.site.pinning import PinnedRoster, read_clients
from fedran.federation.secure.site.sum_files import SumFiles, made_for, spent_epsilon
from fedran.federation.site.failures import NoContribution, text_for_server, time_limit
from fedran.federation.site.pseudo_labels import MappedRows, choose_rows, require_listed
from fedran.federation.site.settings import SiteSettings
from fedran.federation.site.source import NoRows
from fedran.federation.site.upload import Site

log = logging.getLogger(__name__)
CANNOT_ADD = (
    "this site cannot add its rows to the sum, and takes part in no sum of this task; its own log "
    "and status say why; corrected rows need a new task id"
)
"""All that a server learns if the rows do not fit what it asks for, whatever the reason is."""


@dataclass(frozen=True)
class Participant:
    """Answers the requests of one message."""

    file: Path
    """The site's configuration."""
    limits: SiteSettings
    identity: SiteIdentity
    files: SumFiles

    @classmethod
    def load(cls, file: Path, settings: SiteSettings, shown: object) -> Participant:
        """The site of a configuration, after the roster that the server shows was compared."""
        folder, state = file.parent, file.parent / settings.state
        pinned = PinnedRoster(state)
        pinned.require(read_clients(shown))
        identity = SiteIdentity(
            settings.client, SiteKey.load(folder / settings.key), pinned.clients
        )
        return cls(file, settings, identity, SumFiles(state))

    def answer(self, offer: Offer, request: bytes, content: object) -> bytes:
        """The answer to one request. It is on disk before it is returned."""
        found = Request.read(request)
        task, files = found.attempt.task, self.files
        before = files.state(task)
        if found.stage is Stage.ADVERTISE:
            least = self.limits.min_sites
            state, answer = masking.advertise(request, self.identity, before, min_sites=least)
            if state is not before:
                self._prepare(replace(offer, task=task, earlier=()), found.attempt, content)
        elif before is None:
            raise Refused("attempt", "one in which this site takes part", found.attempt.number)
        elif found.stage is Stage.MASK:
            vector, budget = files.vector(before.attempt)
            self._check_spending(task, budget)
            state, answer = masking.answer(before, request, self.identity, vector)
            files.set_note(task, sent=budget and (budget.epsilon, budget.delta))
        else:
            state, answer = masking.answer(before, request, self.identity)
        files.save(state)
        return answer

    def _prepare(self, offer: Offer, attempt: Attempt, given: object) -> None:
        """Make the contribution for an attempt.

        Whatever the attempt says about the task must agree with the offer and the content.
        """
        content, fingerprint = Content.read(given), offer.features().fingerprint
        expected = replace(
            attempt,
            federation=offer.federation,
            fingerprint=fingerprint.hash,
            content=content.digest,
            length=content.length(fingerprint),
        )
        expected.require(attempt)
        self._check_limits(offer, attempt, content)
        note = self.files.note(offer.task)
        if note.get("refused"):
            raise NoContribution(CANNOT_ADD)
        limits = [content.max_rows, *content.classes]
        asked = sorted({*note.get("asked", []), made_for(attempt)})
        if content.noise is None:
            _check_questions(asked, limits, note.get("limits", limits))
        self._make(offer, attempt, content)
        self.files.set_note(offer.task, limits=limits, asked=asked)

    def _make(self, offer: Offer, attempt: Attempt, content: Content) -> None:
        """Make the contribution, or note for good that the rows do not fit."""
        task, files = offer.task, self.files
        try:
            with time_limit(self.limits.seconds):
                vector = make_contribution(Site.load(self.file), offer, content)
        except NoRows:
            raise
        except (Exception, SystemExit) as reason:
            asked = f"max_rows {content.max_rows} and {len(content.classes)} classes"
            why = f"{text_for_server(reason, self.file.parent)}; the server asked with {asked}"
            log.error("task %s refused: %s", task, why)
            files.set_note(task, refused=why)
            raise NoContribution(CANNOT_ADD) from None
        files.put_vector(attempt, vector, content.noise)

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
        if noise is not None:
            _require_at_most("delta", noise.delta, limits.max_delta)
            most = attempt.min_sites - helpers(limits.min_sites)
            _require_at_most("honest sites", noise.honest, most)
            self._check_spending(attempt.task, noise.budget)

    def _check_spending(self, task: str, budget: Budget | None) -> None:
        """Refuse a sum with which this site's rows would spend more than its settings allow.

        This is checked before a contribution is made, and again before it leaves: sums of other
        tasks may have been under way.
        """
        if budget is None:
            return
        limits, sent = self.limits, {**self.files.sent(), task: budget}
        row = gaussian_epsilon(budget.mu, limits.max_delta)
        _require_at_most("epsilon of the task's rows", row, limits.max_epsilon)
        if limits.max_total_epsilon is not None:
            person = spent_epsilon(sent, limits.max_delta)
            what = "epsilon of a person with one row in every task"
            _require_at_most(what, person, limits.max_total_epsilon)


def _require_at_most(what: str, given: float, most: float) -> None:
    if given > most * (1 + 1e-9):
        raise Refused(what, f"at most {most:g}, as this site's settings demand", f"{given:.4g}")


def _check_questions(asked: Sequence[str], limits: list[Any], before: list[Any]) -> None:
    """Refuse to try one content after the other.

    Whether rows fit is one bit about them. A server that could ask with one limit after the other
    would find out their number and classes, and with one sketch after the other the size of their
    Gram. With noise, no refusal depends on the rows. Classes may be added to the list: labels that
    were in it still are, so the answer tells nothing new.
    """
    hint = "use a new task id"
    if limits[0] != before[0] or not set(before[1:]) <= set(limits[1:]):
        expected = "the max_rows and at least the classes of the last request for this task"
        raise Refused("content", expected, "others", hint)
    if len(asked) > MAX_CONTENTS:
        expected = f"one of the first {MAX_CONTENTS} for this task"
        raise Refused("content", expected, "another", hint)


def make_contribution(site: Site, offer: Offer, content: Content) -> NDArray[np.uint32]:
    """The integers that this site adds for the offered task.

    Classes with fewer than ``min_class_count`` rows are withheld, as in an upload: another site may
    have none of them, and then the sum reveals theirs. Batches of rows are added up, so memory
    does not grow with the number of rows.
    """
    offer = replace(offer, classes=content.classes)
    data = site.rows(offer)
    if content.noise is None:
        require_listed(data.y, offer, local=True)
    phi, H = offer.features(), site.random_features(data, offer)
    assert isinstance(phi, RandomFeatures)
    if content.noise is not None:
        return private_contribution(content.mechanism(phi.fingerprint), H, data.y, content)
    capacity = site.capacity(phi.out_features)
    y, kept = choose_rows(H, data.y, capacity, offer, site.settings)
    omega = content.test_matrix(phi.out_features)
    batches = [kept[i : i + BATCH_ROWS] for i in range(0, len(kept), BATCH_ROWS)]
    found = sum(
        sketch_sums(H(rows), [y[i] for i in rows], content.classes, omega) for rows in batches
    )
    assert not isinstance(found, int)  # there is at least one row
    log.info("task %s: totals of %d rows for a secure sum", offer.task, len(kept))
    return encode_contribution(found, content, phi.fingerprint)


def private_contribution(
    mechanism: Mechanism,
    H: MappedRows,
    y: list[Any],
    content: Content,
) -> NDArray[np.uint32]:
    """The sums of all rows of the listed classes and this site's share of the noise, modulo 2^32.

    No class is withheld and no pseudo-label is given: both would let one row decide about others,
    and the noise only covers its own contribution. For the same reason no label and no number of
    rows is refused: the site's log tells instead. Too many rows make the sum useless, not less
    private.
    """
    found, codes = encode_labels(y, len(y))
    listed = np.array([label in content.classes for label in found] + [False])
    labelled = np.flatnonzero(listed[codes])  # the last entry is for rows without a label
    if strange := int(np.sum(codes >= 0)) - len(labelled):
        log.warning("%d rows are left out: the server does not list their labels", strange)
    if missing := int(np.sum(codes < 0)):
        log.warning("%d of %d rows have no label and are left out", missing, len(y))
    if len(labelled) > content.max_rows:
        log.warning("%d rows, and the server's max_rows is %d", len(labelled), content.max_rows)
    vector = mechanism.noise(len(content.classes))
    for i in range(0, len(labelled), BATCH_ROWS):
        rows = labelled[i : i + BATCH_ROWS]
        vector += mechanism.sums(H(rows), [y[k] for k in rows], content.classes)
    return vector.astype(np.uint32)
