"""Receipts carry a code for programs and a reason for people."""

import json
import re
from pathlib import Path

import pytest

from fedran.core.errors import Refused
from fedran.federation.protocol.receipts import (
    SETTLED,
    Code,
    Receipt,
    read_receipts,
)


@pytest.mark.parametrize("code", Code)
def test_a_receipt_of_every_code_is_read_as_it_was_written(code):
    receipt = Receipt(code, "site-1", "may", "d", "a reason")
    fields = json.loads(json.dumps(receipt.fields()))
    assert fields["code"] == code.value
    assert read_receipts([fields]) == [receipt]


@pytest.mark.parametrize("code", Code)
def test_the_outcome_follows_from_the_code(code):
    receipt = Receipt(code, "site-1", "may", "d")
    assert receipt.outcome == (code.value if code in SETTLED else "refused")
    assert receipt.settled == (receipt.outcome != "refused")
    last = (Code.CONFLICT, Code.FORGOTTEN)
    assert receipt.final == (receipt.settled or code in last)


@pytest.mark.parametrize("code", [None, "", "banana", 3, [], {}, "ACCEPTED"])
def test_a_missing_or_unknown_code_means_refused(code):
    """Also if the peer says "accepted" in the field that people read."""
    fields = Receipt(Code.ACCEPTED, "site-1", "may", "d").fields()
    receipt = Receipt.read({**fields, "code": code})
    assert (receipt.code, receipt.outcome, receipt.final) == (Code.UNKNOWN, "refused", False)
    del fields["code"]
    assert Receipt.read(fields).code == Code.UNKNOWN


@pytest.mark.parametrize(
    "given", [None, 3, {}, ["x"], [{}], [{"client": 1, "task": "t", "digest": "d", "reason": ""}]]
)
def test_anything_but_a_list_of_receipts_is_refused(given):
    with pytest.raises(Refused, match="receipts: expected"):
        read_receipts(given)


def test_the_reference_lists_every_code_in_order():
    page = Path(__file__).parents[3] / "docs" / "reference" / "federation.md"
    table = page.read_text().partition("## Receipts")[2]
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == [code.value for code in Code]
