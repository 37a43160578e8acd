"""Validation by the sites: each tests new heads on rows of its own, and reports sums over them.

It takes the place of validation rows at the server. The reports are added with a bound on every
site, so that one that lies can move the accuracy on a class by a known share only.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

from fedran.core.errors import Refused
from fedran.core.labels import Label
from fedran.core.solve.calibration import Calibration
from fedran.core.solve.head import Head
from fedran.federation.protocol.class_counts import (
    Counts,
    accuracy,
    add_bounded,
    add_calibrations,
    counts_from_json,
)
from fedran.federation.protocol.limits import MAX_HEAD_BYTES, MAX_HEADS, POLL_SECONDS, TEST_SECONDS
from fedran.federation.protocol.messages import Question
from fedran.federation.server.round.messenger import Incoming, Messenger
from fedran.federation.server.store.schema import Upload
from fedran.wire.codec import encode
from fedran.wire.validation import Header

log = logging.getLogger(__name__)
Report: TypeAlias = tuple[Counts, Calibration]
"""What a site says about a head: rows that are right, and histograms of scores."""


class SiteValidation:
    """Tests heads at the sites that have validation rows.

    ``nodes`` maps the nodes to ask to their clients, ``tested`` are the classes for which any of
    them has rows, and ``uploads`` the accepted uploads, which limit what a site may report.
    """

    most_heads = MAX_HEADS - 1

    def __init__(
        self,
        messenger: Messenger,
        nodes: Mapping[int, str],
        tested: Collection[Label],
        uploads: Iterable[Upload],
        check_owner: Callable[[int, str], None],
    ) -> None:
        self.messenger, self.nodes, self.tested = messenger, nodes, tested
        self.check_owner = check_owner
        self.accepted: dict[str, dict[Label, int]] = {}
        for upload in uploads:
            of_site = self.accepted.setdefault(upload.client, {})
            for label, rows in upload.classes:
                of_site[label] = of_site.get(label, 0) + rows
        self.reports: dict[str, dict[str, Counts]] = {}
        """Digest of a head -> client -> what it reported last."""
        self.histograms: dict[str, dict[str, Calibration]] = {}
        """The same of what calibrates the head."""

    def counts(self, heads: Iterable[Head], earlier: Collection[Label]) -> list[Counts]:
        """The bounded sums of what the sites report, over those that report every head."""
        blobs: dict[str, bytes] = {}
        names = []
        for head in heads:
            blob = encode(head)
            if sum(map(len, blobs.values())) + len(blob) > MAX_HEAD_BYTES and blobs:
                log.warning("the heads are large, so only %d are tested at the sites", len(blobs))
                break
            names.append(hashlib.sha256(blob).hexdigest())
            blobs[names[-1]] = blob
        found = self._ask(blobs, earlier)
        for name in blobs:
            self.reports[name] = {client: told[name][0] for client, told in found.items()}
            self.histograms[name] = {client: told[name][1] for client, told in found.items()}
        return [add_bounded(self.reports[name], self.accepted) for name in names]

    def witnesses(self, before: Head, after: Head, labels: Collection[Label]) -> tuple[str, ...]:
        """Sites that report a lower accuracy of the second head on these classes."""
        first, second = (
            self.reports.get(hashlib.sha256(encode(head)).hexdigest(), {})
            for head in (before, after)
        )
        seen = []
        for client in sorted(first.keys() & second.keys()):
            old = accuracy(first[client], labels)
            new = accuracy(second[client], labels, fair=True)
            if old is not None and new is not None and new < old:
                seen.append(client)
        return tuple(seen)

    def accuracy(self, head: Head) -> float | None:
        """Accuracy over the reports about a head that was tested; None if it was not."""
        told = self.reports.get(hashlib.sha256(encode(head)).hexdigest(), {})
        return accuracy(add_bounded(told, self.accepted), head.classes)

    def calibration(self, head: Head) -> Calibration | None:
        """The sum of what sites report about a head, which they test now if they have not yet."""
        name = hashlib.sha256(encode(head)).hexdigest()
        if name not in self.histograms:
            self.counts([head], ())
        return add_calibrations(self.histograms.get(name, {}), self.accepted)

    def _ask(
        self, blobs: Mapping[str, bytes], earlier: Collection[Label]
    ) -> dict[str, dict[str, Report]]:
        """Client -> digest of a head -> its counts and histograms."""
        fields = {"heads": list(blobs), "earlier": list(earlier), "tested": list(self.tested)}
        self.messenger.unanswered.clear()  # answers to the offer that came too late
        for node in self.nodes:
            self.messenger.send(node, Question.VALIDATE, fields, blobs, TEST_SECONDS)
        found: dict[str, dict[str, Report]] = {}
        deadline = time.monotonic() + TEST_SECONDS
        log.info("waiting for %d sites to test %d heads", len(self.nodes), len(blobs))
        while self.messenger.unanswered and time.monotonic() < deadline:
            for node, reply in self.messenger.replies():
                client = self.nodes.get(node, "")
                try:
                    told = self._read(reply, blobs)
                    self.check_owner(node, client)
                except (Refused, OSError) as reason:
                    log.warning("%s: no counts of a new head: %s", client, reason)
                else:
                    found[client] = told
            time.sleep(POLL_SECONDS)
        log.info("%d of %d sites tested %d heads", len(found), len(self.nodes), len(blobs))
        return found

    def _read(self, reply: Incoming, blobs: Mapping[str, bytes]) -> dict[str, Report]:
        """The counts in a reply, which must be of the same rows for every head."""
        reply.require()
        given = reply.fields.get("counts")
        if not isinstance(given, dict) or given.keys() != blobs.keys():
            raise Refused("counts", "counts of every head", reply.fields.get("told") or "others")
        found = {name: counts_from_json(given[name]) for name in blobs}
        sizes = {tuple((c, n.rows) for c, n in counts.items()) for counts in found.values()}
        if len(sizes) > 1:
            raise Refused("counts", "the same rows for every head", "different ones")
        given = reply.fields.get("histograms")
        told = Header(given if isinstance(given, dict) else {}, "histograms")
        histograms = {name: told.calibration(name) or Calibration.empty() for name in blobs}
        return {name: (found[name], histograms[name]) for name in blobs}
