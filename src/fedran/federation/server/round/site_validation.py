"""Validation by the sites: each tests new heads on rows of its own and reports sums over them.

It takes the place of validation rows at the server. The reports are added with a bound on every
site, so that one that lies can move the accuracy on a class by a known share only.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from fedran.core.errors import Refused
from fedran.core.labels import Label
from fedran.core.solve.calibration import Calibration
from fedran.core.solve.head import Head
from fedran.core.sums.stored_points import Part
from fedran.federation.protocol.class_counts import (
    Counts,
    accuracy,
    add_bounded,
    add_calibrations,
    counts_from_json,
    gain,
)
from fedran.federation.protocol.limits import MAX_HEAD_BYTES, MAX_HEADS, POLL_SECONDS, TEST_SECONDS
from fedran.federation.protocol.lockfile import wait_until
from fedran.federation.protocol.messages import Question
from fedran.federation.server.head.gate import Gain
from fedran.federation.server.round.messenger import Incoming, Messenger
from fedran.federation.server.store.schema import Upload
from fedran.wire.codec import encode
from fedran.wire.validation import Header

log = logging.getLogger(__name__)
Report: TypeAlias = tuple[Counts, Calibration]
"""What a site says about a head: rows that are right, and histograms of scores."""


class SiteValidation:
    """Tests heads at the sites that have validation rows.

    ``nodes`` maps the nodes to ask to their clients, and ``uploads`` are the accepted uploads,
    which limit what a site may report.
    """

    most_heads = MAX_HEADS - 1

    def __init__(
        self,
        messenger: Messenger,
        nodes: Mapping[int, str],
        uploads: Iterable[Upload],
        check_owner: Callable[[int, str], None],
    ) -> None:
        self.messenger, self.nodes, self.check_owner = messenger, nodes, check_owner
        self.accepted: dict[str, dict[Label, int]] = {}
        for upload in uploads:
            of_site = self.accepted.setdefault(upload.client, {})
            for label, rows in upload.classes:
                of_site[label] = of_site.get(label, 0) + rows

    def compare(self, heads: Iterable[tuple[Part | None, Head]]) -> dict[Part, Gain]:
        """What leaving out each part gains, over the sites that report every head.

        A site does not speak in its own case. The others must say so also without the one that
        says it most, so that no site can have another one set aside.
        """
        blobs, names = dict[str, bytes](), dict[Part | None, str]()
        for part, head in heads:
            blob = encode(head)
            if sum(map(len, blobs.values())) + len(blob) > MAX_HEAD_BYTES and blobs:
                log.warning("the heads are large, so only %d are tested at the sites", len(blobs))
                break
            names[part] = hashlib.sha256(blob).hexdigest()
            blobs[names[part]] = blob
        told, found, first = self._ask(blobs), dict[Part, Gain](), next(iter(blobs), "")

        def summed(of_whom: Iterable[str], name: str) -> Counts:
            return add_bounded({client: told[client][name][0] for client in of_whom}, self.accepted)

        for part, name in names.items():
            others = [client for client in told if part is not None and client != part[0]]
            if part is None or len(others) < 2:
                continue
            fewer = [[client for client in others if client != left] for left in others]
            gains = [gain(summed(some, name), summed(some, first)) for some in fewer]
            found[part] = min(gains, key=lambda g: g[0] - g[1])
        return found

    def test(self, head: Head) -> tuple[float | None, Calibration | None]:
        """Accuracy over the reports about a head, and the sum of their histograms."""
        blob = encode(head)
        name = hashlib.sha256(blob).hexdigest()
        told = {client: of[name] for client, of in self._ask({name: blob}).items()}
        counts = add_bounded({client: said[0] for client, said in told.items()}, self.accepted)
        histograms = {client: said[1] for client, said in told.items()}
        return accuracy(counts, head.classes), add_calibrations(histograms, self.accepted)

    def _ask(self, blobs: Mapping[str, bytes]) -> dict[str, dict[str, Report]]:
        """Client -> digest of a head -> its counts and histograms, in the order of the heads."""
        if not blobs:
            return {}
        fields = {"heads": list(blobs), "first": next(iter(blobs))}
        self.messenger.unanswered.clear()  # answers to the offer that came too late
        for node in self.nodes:
            self.messenger.send(node, Question.VALIDATE, fields, blobs, TEST_SECONDS)
        found: dict[str, dict[str, Report]] = {}

        def tested() -> bool:
            for node, reply in self.messenger.replies():
                client = self.nodes.get(node, "")
                try:
                    told = self._read(reply, blobs)
                    self.check_owner(node, client)
                except (Refused, OSError) as reason:
                    log.warning("%s: no counts of a new head: %s", client, reason)
                else:
                    found[client] = told
            return not self.messenger.unanswered

        what = f"{len(self.nodes)} sites to test {len(blobs)} heads"
        wait_until(tested, TEST_SECONDS, POLL_SECONDS, what=what)
        log.info("%d of %d sites tested %d heads", len(found), len(self.nodes), len(blobs))
        return found

    def _read(self, reply: Incoming, blobs: Mapping[str, bytes]) -> dict[str, Report]:
        """The counts in a reply, which must be of the same rows for every head."""
        reply.require()
        given = reply.fields.get("counts")
        if not isinstance(given, dict) or given.keys() != blobs.keys():
            raise Refused("counts", "counts of every head", reply.fields.get("told") or "others")
        found = {name: counts_from_json(given[name]) for name in blobs}  # in the order of heads
        sizes = {tuple((c, n.rows) for c, n in counts.items()) for counts in found.values()}
        if len(sizes) > 1:
            raise Refused("counts", "the same rows for every head", "different ones")
        given = reply.fields.get("histograms")
        said = Header(given if isinstance(given, dict) else {}, "histograms")
        return {n: (found[n], said.calibration(n) or Calibration.empty()) for n in blobs}
