"""The Flower app of a site answers every message and reveals nothing private."""

import json
import logging
import shutil
import time

import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedran.federation.flower.clientapp import answer_offer, receive_results
from fedran.federation.flower.records import make_record
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.site.app import VARIABLE
from helpers.federation.site_app import OFFER, Place, asked, call, context

DIGEST = "ab" * 32


def fields_of_body(body):
    return json.loads(body["fields"]["json"])


def receipts(*found):
    return {"receipts": [receipt.fields() for receipt in found]}


def test_an_offer_is_answered_with_everything_pending(place):
    fields, blobs = call(answer_offer, asked())
    nothing = {"client": "site-1", "head": "", "settled": [], "waiting": []}
    nothing |= {"told": "", "failed": False, "more": False}
    assert (fields, set(blobs)) == (nothing, {"may"})
    assert open_envelope(blobs["may"]).statement.key == ("site-1", "may")
    assert set(call(answer_offer, asked("june"))[1]) == {"may", "june"}
    call(receive_results, make_record(receipts(Receipt(Code.ACCEPTED, "site-1", "may", "d")), {}))
    assert set(call(answer_offer, asked("june"))[1]) == {"june"}


def test_the_offered_task_is_sent_first_then_older_ones_and_the_server_asks_again(
    place, monkeypatch
):
    """Eleven uploads of 1.5 MB that the server lacks must not starve the offered one."""
    for task in ("april", "march", "zz"):
        shutil.copy(place.folder / "data" / "may.npz", place.folder / "data" / f"{task}.npz")
    for task in ("march", "april", "zz"):
        call(answer_offer, asked(task))
    size = len(place.outbox.envelope("zz"))
    monkeypatch.setattr("fedran.federation.site.app.MESSAGE_BYTES", 2 * size + 200)
    offer = asked("zz", earlier=["march", "april", "may"])
    fields, blobs = call(answer_offer, offer)
    assert (list(blobs), fields["more"]) == (["zz", "march"], True)
    arrived = [Receipt(Code.ACCEPTED, "site-1", task, "d") for task in blobs]
    again = {"offer": fields_of_body(offer)["offer"], **receipts(*arrived)}
    fields, blobs = call(answer_offer, make_record(again, {}))
    assert (list(blobs), fields["more"]) == (["april", "may"], False)


def test_without_an_offer_pending_uploads_are_sent_and_none_is_made(place, monkeypatch):
    assert call(answer_offer, make_record({"offer": None, "sync": True}, {}))[1] == {}
    call(answer_offer, asked())
    assert set(call(answer_offer, make_record({"offer": None}, {}))[1]) == {"may"}
    refused = Receipt(Code.UNKNOWN_CLIENT, "site-1", "may", "d", "roster")
    call(receive_results, make_record(receipts(refused), {}))
    assert call(answer_offer, make_record({"offer": None}, {}))[1] == {}
    again = {"offer": OFFER.fields(), **receipts(refused)}
    assert call(answer_offer, make_record(again, {}))[1] == {}, "refused in this run"
    assert set(call(answer_offer, asked("june"))[1]) == {"june"}, "refused a moment ago"
    later = time.time() + 3700
    monkeypatch.setattr(time, "time", lambda: later)
    assert set(call(answer_offer, asked("june"))[1]) == {"may", "june"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (asked("../../etc/passwd"), "task: expected"),
        (asked("/etc/passwd"), "Refused at the site; its log says more"),
        (asked(federation="other"), "federation: "),
        (asked(protocol=99, task={"new": "meaning"}), "protocol: "),
        (asked(privacy="secure"), "out_features: "),
        (asked(min_group=0), "min_group: "),
        (asked(source={"backbone": 3}), "source: "),
        (asked("august"), "no rows for task august yet"),
        (asked(in_features=7), "task may: "),
        (asked(budget_bytes=1023), "budget_bytes: "),
        (make_record({"offer": "may"}, {}), "offer: "),
        (RecordDict(), "message: "),
        (RecordDict({"fields": ConfigRecord({"json": "[" * 10**5})}), "message: "),
        (RecordDict({"fields": ConfigRecord({"json": "3"})}), "message: "),
        (RecordDict({"fields": ArrayRecord({})}), "message: "),
    ],
)
def test_a_bad_offer_is_reported_and_pending_uploads_are_sent(body, words, place):
    call(answer_offer, asked("june"))
    fields, blobs = call(answer_offer, body)
    assert words in fields["told"]
    assert (fields["client"], set(blobs)) == ("site-1", {"june"})
    assert str(place.folder) not in fields["told"]


def test_messages_and_run_configurations_cannot_choose_a_path(place, tmp_path):
    other = Place(tmp_path / "other", "site-9")
    strange = {"folder": str(other.folder / "data"), "entry": "os:abort", "state": "/tmp/x"}
    strange |= {"site": str(other.file), VARIABLE: str(other.file), "task": "june"}
    body = make_record(
        {"offer": {**OFFER.fields(), "x": 1, **strange, "task": "may"}, **strange}, {}
    )
    fields, blobs = call(answer_offer, body, context(5, **strange))
    assert (fields["client"], fields["told"], set(blobs)) == ("site-1", "", {"may"})
    assert sorted(p.name for p in other.folder.iterdir()) == ["data", "site.key", "site.toml"]


def test_a_folder_of_sites_gives_each_node_the_site_of_its_number(tmp_path, monkeypatch):
    for name in ("b", "a", "c"):
        Place(tmp_path / "sites" / name, f"site-{name}")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "sites"))
    told = [call(answer_offer, asked(), context(n))[0] for n in range(3)]
    assert [t["client"] for t in told] == ["site-a", "site-b", "site-c"]
    for wrong in (3, -1, True, 1.0, "../b", None):
        fields, blobs = call(answer_offer, asked(), context(wrong))
        assert (fields["client"], blobs) == ("", {})
        assert fields["told"] == "Refused at the site; its log says more"


def test_what_is_wrong_at_a_site_reaches_the_server_without_a_path(
    place, tmp_path, caplog, monkeypatch
):
    secret = tmp_path / "patients of Dr Who"
    toml = place.file.read_text()
    place.file.write_text(toml.replace('folder = "data"', f'folder = "{secret}"'))
    told = [call(answer_offer, asked())[0]["told"]]
    assert str(secret) in caplog.text
    place.file.write_text("nonsense")
    told.append(call(answer_offer, asked())[0]["told"])
    place.file.write_text(toml)
    (place.folder / "data" / "may.npz").write_bytes(b"PK nonsense")
    told.append(call(answer_offer, asked())[0]["told"])
    (place.folder / "site.key").unlink()
    told.append(call(answer_offer, asked())[0]["told"])
    assert all(text and "/" not in text and "Who" not in text for text in told)
    monkeypatch.delenv(VARIABLE)
    assert call(receive_results, asked())[0]["client"] == ""


def test_an_offer_for_other_features_is_refused_before_any_work(tmp_path, monkeypatch):
    place = Place(tmp_path / "site", more='[source]\nbackbone = "mine"\n')
    monkeypatch.setenv(VARIABLE, str(place.file))
    fields, blobs = call(answer_offer, asked())
    assert "backbone 'mine' at the site and 'test' at the server" in fields["told"]
    assert blobs == {}
    assert set(call(answer_offer, asked(source="mine"))[1]) == {"may"}


def test_foreign_and_wrong_receipts_change_nothing(place, caplog):
    call(answer_offer, asked())
    mine = Receipt(Code.ACCEPTED, "site-1", "may", "d").fields()
    wrong = [
        receipts(Receipt(Code.ACCEPTED, "site-2", "may", "d")),
        receipts(Receipt(Code.ACCEPTED, "site-1", "../may", "d")),
        {"receipts": [{**mine, "code": "banana\x1b"}]},
        {"receipts": 3},
        {"receipts": [{}]},
    ]
    for fields in wrong:
        with caplog.at_level(logging.INFO):
            assert call(receive_results, make_record(fields, {}))[0]["client"] == "site-1"
        assert place.outbox.pending() == ["may"]
    assert "\x1b" not in caplog.text


def told(code):
    return make_record(receipts(Receipt(code, "site-1", "may", DIGEST)), {})


def test_a_site_reports_what_it_believes_to_be_settled_and_sends_it_again_if_asked(place):
    first = call(answer_offer, asked())[1]["may"]
    call(receive_results, told(Code.ACCEPTED))
    fields, blobs = call(answer_offer, asked())
    assert (fields["settled"], blobs) == ([["may", DIGEST]], {})
    call(receive_results, told(Code.LOST))
    fields, blobs = call(answer_offer, asked())
    assert (fields["settled"], blobs) == ([], {"may": first})
    (place.outbox.folder / "may.envelope").unlink()
    call(receive_results, told(Code.LOST))
    assert set(call(answer_offer, asked())[1]) == {"may"}, "made again from the rows"
    call(receive_results, told(Code.FORGOTTEN))
    assert call(answer_offer, asked())[1] == {}
