"""The gate without rows at the server: sites test a new head, and none outvotes the others."""

import json

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Error, MessageType

import fedran
from fedran.core.errors import Refused
from fedran.federation.flower.records import make_record
from fedran.federation.flower.serverapp import FlowerNetwork
from fedran.federation.protocol.class_counts import (
    calibration_of,
    count_correct,
    counts_to_json,
    is_right,
)
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.server.head import gate
from fedran.federation.server.head.head import judged, update_head
from fedran.federation.server.round import site_validation
from fedran.federation.server.round.messenger import Messenger
from fedran.federation.server.round.site_validation import SiteValidation
from fedran.wire.validation import plain_calibration
from helpers.federation.fleet import Fleet, Site, heads
from helpers.federation.flower_messages import blobs_of, fields_of
from helpers.federation.gated import PHI, flipped, gated_sites, honest, rows, send, store_of

CLASSES = (0, 1, 2, 3, 4)


class Examiner:
    """A site with validation rows of its own."""

    def __init__(self, client, n=60):
        self.client, self.rows = client, rows(sum(map(ord, client)), CLASSES, n)

    def __call__(self, message):
        assert message.metadata.message_type == MessageType.EVALUATE
        right, histograms = {}, {}
        for name, blob in blobs_of(message).items():
            head = fedran.decode(blob)
            scores = head.scores(PHI(self.rows.X))
            right[name] = is_right(scores, head.classes, self.rows.y)
            histograms[name] = plain_calibration(calibration_of(scores, head.classes, self.rows.y))
        first = right[fields_of(message)["first"]]
        counts = {
            name: self.tell(name, counts_to_json(count_correct(found, first, self.rows.y)))
            for name, found in right.items()
        }
        fields = {"client": self.client, "counts": counts, "histograms": histograms}
        return make_record(fields, {})

    def tell(self, name, counts):
        return counts


class Liar(Examiner):
    """Says of every head but the first that it alone is right, on a million rows."""

    first = None

    def tell(self, name, counts):
        self.first = self.first or name
        gained = 0 if name == self.first else 10**6
        return [[label, 10**6, gained, gained] for label, *_ in counts]


class Moody(Examiner):
    """Has other rows for every head."""

    calls = 0

    def tell(self, name, counts):
        self.calls += 1
        return [[label, n + self.calls, 0, 0] for label, n, *_ in counts]


@pytest.fixture(scope="module")
def sites():
    return gated_sites()


@pytest.fixture
def store(sites, tmp_path, monkeypatch):
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(site_validation, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(site_validation, "TEST_SECONDS", 0.3)
    found = store_of(sites, tmp_path / "state")
    yield found
    found.close()


def validation(store, **others):
    """The validation of all sites; some may be replaced."""
    made = {f"site-{i}": Examiner(f"site-{i}") for i in range(1, 6)} | {
        name.replace("_", "-"): node for name, node in others.items()
    }
    nodes = {n: made[name] for n, name in enumerate(made, 11)}
    clients = dict(zip(nodes, made, strict=True))
    uploads = store.database.uploads()
    messenger = Messenger(FlowerNetwork(Fleet(nodes)))
    return SiteValidation(messenger, clients, uploads, lambda *_: None)


def aside(store, task, **others):
    update_head(store, validation(store, **others), task)
    return {(a["client"], a["label"], a["evidence"]) for a in judged(store)["set_aside"]}


def test_honest_tasks_go_into_service_with_an_accuracy(store, sites):
    for task, classes in (("may", (0, 1)), ("june", (2, 3)), ("july", (4,))):
        honest(store, sites, task, classes, range(1, 6))
        assert aside(store, task) == set()
    assert all(0.8 < head.accuracy <= 1 for head in store.database.heads())


def test_what_sites_report_calibrates_the_head_until_a_site_is_forgotten(store, sites):
    honest(store, sites, "may", (0, 1), range(1, 6))
    aside(store, "may")
    honest(store, sites, "june", (2, 3), range(1, 6))
    blob, _ = update_head(store, validation(store), "june")
    head, new = fedran.decode(blob, fedran.Head), rows(99, (0, 1, 2, 3), 200)
    assert not head.diagnosis.accuracy
    right = head.predict(PHI(new.X)) == np.array(new.y)
    sure = head.predict_proba(PHI(new.X)).max(axis=1)
    assert abs(right.mean() - sure.mean()) < 0.08
    assert fedran.encode(store.solve()) == blob
    store.forget("site-1", "june", "owner", SiteKey.generate())
    assert store.solve().calibration is None
    blob, _ = update_head(store, validation(store), "june")
    assert fedran.decode(blob, fedran.Head).calibration.total > 100


@pytest.mark.parametrize("how", [Examiner, Liar, Moody])
def test_a_site_that_ruins_the_head_is_named_by_the_rows_of_the_others(
    how, store, sites, monkeypatch
):
    """Also if it reports that all is well, and if its points prove nothing."""
    monkeypatch.setattr(gate, "VOTE", 10**9)
    honest(store, sites, "may", (0, 1), range(1, 5))
    assert send(store, sites, "site-5", "may", flipped(rows(7, (0, 1), 40), 0, 1), times=50)
    assert aside(store, "may", site_5=how("site-5")) == {("site-5", None, "rows")}


def test_no_site_can_have_another_one_set_aside_alone(store, sites):
    honest(store, sites, "may", (0, 1), range(1, 6))
    assert aside(store, "may", site_3=Liar("site-3")) == set()


@pytest.mark.parametrize("answer", [None, Error(1, "x"), make_record({"counts": {}}, {})])
def test_sites_that_do_not_answer_change_nothing(answer, store, sites):
    honest(store, sites, "may", (0, 1), range(1, 6))
    silent = {f"site_{i}": lambda _: answer for i in range(1, 6)}
    assert aside(store, "may", **silent) == set()
    assert store.database.heads()[0].accuracy is None


def test_a_node_of_another_site_is_not_counted(store, sites):
    honest(store, sites, "may", (0, 1), range(1, 6))
    asked = validation(store)

    def wrong(node, client):
        raise Refused("client", "another", client)

    asked.check_owner = wrong
    head = store.solve()
    assert asked.compare([(None, head), (("site-1", None), head)]) == {}
    assert asked.test(head) == (None, None)


@pytest.mark.parametrize("asked", [False, True])
def test_a_round_asks_the_sites_that_have_validation_rows(asked, server, sites, monkeypatch):
    monkeypatch.setattr(site_validation, "POLL_SECONDS", 0.01)
    tests = []

    class Validating(Site):
        def __call__(self, message):
            if message.metadata.message_type != MessageType.EVALUATE:
                body = super().__call__(message)
                fields = {**json.loads(body["fields"]["json"]), "validated": [0, 1]}
                return make_record(fields, {n: a.data for n, a in body["blobs"].items()})
            tests.append(self.client)
            names = blobs_of(message)
            counts = {name: [[0, 4, 3, 0], [1, 4, 3, 0]] for name in names}
            return make_record({"client": self.client, "counts": counts}, {})

    nodes = {11: Validating("site-1", sites.envelope("site-1", "may"))}
    nodes |= {12: Validating("site-2", sites.envelope("site-2", "may"))}
    nodes |= {13: Site("site-3", sites.envelope("site-3", "may"))}
    server("may", nodes, site_validation=asked)
    assert heads(server)[0].accuracy == (0.75 if asked else None)
    assert set(tests) == ({"site-1", "site-2"} if asked else set())
