"""Offers are read from messages with every field checked."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.core.errors import Refused
from fedran.federation.protocol.messages import Offer
from helpers.federation.made_site import OFFER, SUM


def test_an_offer_is_read_from_a_message_and_every_field_is_checked():
    table = replace(OFFER, source={"backbone": "toy", "weights": "ab"})
    for offer in (OFFER, table, SUM):
        assert Offer.read(json.loads(json.dumps(offer.fields()))) == offer
    assert Offer.read({**OFFER.fields(), "folder": "/etc", "entry": "os:system"}) == OFFER
    for wrong in (None, 3, "may", [], [1]):
        with pytest.raises(Refused, match="offer: expected an object"):
            Offer.read(wrong)
    for name, value in [
        ("task", "../etc"),
        ("group_size", 0),
        ("min_group", 2**40),
        ("in_features", "6"),
        ("budget_bytes", -1),
        ("kind", "tanh"),
        ("kind", "relu"),
        ("kind", None),
        ("kind", ["cosine"]),
        ("source", 3),
        ("source", None),
        ("source", {}),
        ("source", {"backbone": 3}),
        ("source", {"seed": "5"}),
        ("source", {"a b": "5"}),
        ("source", {"weights": "x" * 300}),
        ("source", "x" * 300),
        ("source", {f"f{n}": "" for n in range(17)}),
    ]:
        with pytest.raises(ValueError, match=name):
            Offer.read({**OFFER.fields(), name: value})
    for name, value in [("out_features", 2**40), ("out_features", 0), ("seed", -1)]:
        with pytest.raises(ValueError, match=name):
            Offer.read({**SUM.fields(), name: value})


def test_an_offer_carries_what_its_kind_of_upload_needs():
    assert {"group_size", "min_group"} <= OFFER.fields().keys()
    assert not {"out_features", "seed"} & OFFER.fields().keys()
    assert {"out_features", "seed"} <= SUM.fields().keys()
    assert isinstance(OFFER.features(), fedran.KernelFeatures)
    assert isinstance(SUM.features(), fedran.RandomFeatures)
    assert OFFER.fingerprint == OFFER.features().fingerprint
