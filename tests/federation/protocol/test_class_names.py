"""Labels that do not match are noticed: at the site before it sends, and at the server."""

import json
import logging
from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

from fedran.core.errors import Refused
from fedran.core.labels import variants
from fedran.federation.protocol.class_names import class_warnings, unknown_labels
from fedran.federation.protocol.messages import Offer
from fedran.federation.server.settings import ServerSettings
from helpers.made_site import OFFER, rows, site_of

CLOSED = replace(OFFER, classes=(0, 1, 2))


@pytest.mark.parametrize(
    ("labels", "groups"),
    [
        ([1, "1"], [(1, "1")]),
        (["digit 1", "Digit_1"], [("digit 1", "Digit_1")]),
        (["Cat", "cat", " CAT "], [("Cat", "cat", " CAT ")]),
        (["basal cell", "basal_cell", "basal-cell", "basal  cell"], 1),
        (["cat", "cats", "dog", 1, -1, "1.5", "?", "!"], []),
        (["<=50K", ">50K", "50K", "≤ 50 K", "c", "c++", "+", "-"], []),
        (["1.0", 10, "3-4", 34, "v1.2", "v12", "1 - 2", "-0.1", -1], []),
        (
            [1, "1.0", " -2", "-2.00", "3-4", "3 / 4"],
            [(1, "1.0"), (" -2", "-2.00"), ("3-4", "3 / 4")],
        ),
        (["a" * 200, "9" * 30, "²", "x" + "9" * 30], []),
        ([1, "digit 1", "digit 01", 10, "type 2"], [(1, "digit 1", "digit 01")]),
    ],
)
def test_variants_of_a_label_are_found(labels, groups):
    found = variants(labels)
    assert len(found) == groups if isinstance(groups, int) else found == groups


def test_the_offer_carries_the_classes_and_older_servers_send_none():
    settings = ServerSettings("trial", 6, 48, classes=["b", 2, "a"])
    offer = settings.offer("may")
    assert offer.classes == (2, "a", "b")
    fields = json.loads(json.dumps(replace(offer, known_classes=(1, "x")).fields()))
    assert Offer.read(fields) == replace(offer, known_classes=(1, "x"))
    del fields["classes"], fields["known_classes"]
    assert (Offer.read(fields).classes, Offer.read(fields).known_classes) == ((), ())
    assert ServerSettings("trial", 6, 48).offer("may").classes == ()


@pytest.mark.parametrize("classes", [[], [1, 1], ["\0"], ["x" * 300]])
def test_a_wrong_list_of_classes_is_refused(classes):
    with pytest.raises(ValueError, match=r"classes|label"):
        ServerSettings("trial", 6, 48, classes=classes)


def test_a_site_with_other_labels_sends_nothing_and_its_log_names_them(tmp_path, caplog):
    X, y = rows()
    named = ["1" if label == 1 else "digit 2" if label == 2 else label for label in y]
    site = site_of(tmp_path, X, named)
    with pytest.raises(Refused) as refused:
        site.prepare(CLOSED)
    told = str(refused.value)
    assert "labels: expected the 3 classes that the server lists, got 2 others" in told
    assert "digit" not in told  # the reason goes to the server
    assert "'1' (did you mean 1?), 'digit 2'" in caplog.text
    assert site.outbox.pending() == []
    assert site_of(tmp_path, X, y).prepare(CLOSED)


def test_other_spellings_of_known_classes_are_a_warning_where_new_ones_are_allowed(
    tmp_path, caplog
):
    X, y = rows()
    site = site_of(tmp_path, X, ["Cat" if label == 1 else label for label in y])
    with caplog.at_level(logging.WARNING):
        assert site.prepare(replace(OFFER, known_classes=(0, "cat")))
    assert "'Cat' (did you mean 'cat'?)" in caplog.text
    assert "2" not in caplog.text.split("known ones:")[1]  # a new class is no problem


def test_unlabelled_rows_are_no_unknown_label(tmp_path):
    X, y = rows()
    assert site_of(tmp_path, X, [None, *y[1:]], pseudo_labels="none").prepare(CLOSED)


def test_warnings_name_variants_and_classes_of_one_site_only():
    found = class_warnings({"a": [1, 2, "x"], "b": [1, 2], "c": ["1", 2, "digit 1"]})
    assert found == [
        "1, '1' and 'digit 1' may be meant as one class; '1' comes from c.",
        "Only one site has: 'x' (a), '1' (c), 'digit 1' (c).",
    ]
    assert class_warnings({"a": [1, 2]}) == []
    assert class_warnings({"a": [1], "b": [1]}) == []
    assert class_warnings({"cohort-1": [1, 2], "cohort-2": [2, 3]}) == [], "of several sites each"
    many = class_warnings({"a": range(100), "b": ["x\x1b[31m"]})
    assert len(many) == 1
    assert "96 more" in many[0]
    assert "\x1b" not in many[0]


def test_unknown_labels_name_the_known_one_that_was_meant():
    assert unknown_labels(["1", "cat ", "eel", 3], [1, "Cat", 3]) == {
        "1": 1,
        "cat ": "Cat",
        "eel": None,
    }
