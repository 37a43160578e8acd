"""Attempts, thresholds and messages: hostile bytes are refused before anything is computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedran.core.errors import Refused
from fedran.federation.protocol.limits import MAX_SITES
from fedran.federation.secure.masking import unmasking
from fedran.federation.secure.masking.attempt import (
    Answer,
    Request,
    Stage,
    roster_digest,
    threshold,
    unpack_parts,
)
from fedran.wire.container import pack
from helpers.federation.secure_sums import KEYS, made_attempt, made_cohort


@given(st.integers(1, MAX_SITES))
def test_the_threshold_leaves_no_room_for_two_lists(n_sites):
    """Two lists need 2 t signatures. Honest sites give one each, dishonest ones two."""
    t = threshold(n_sites)
    dishonest = n_sites // 3
    assert 2 * t > n_sites + dishonest
    assert n_sites / 2 < t <= n_sites
    assert n_sites - t == (n_sites - 1) // 3  # so many sites may drop out


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("federation", "a/b"),
        ("task", ""),
        ("number", 0),
        ("number", True),
        ("number", 10**9 + 1),
        ("fingerprint", "F" * 64),
        ("content", "f" * 63),
        ("roster", None),
        ("length", 0),
        ("length", 2**26),
        ("min_sites", 1),
        ("min_sites", MAX_SITES + 1),
        ("federation", 7),
        ("federation", "x" * 10**6),
        ("task", {"may": [1]}),
        ("number", "1"),
        ("length", 1.5),
        ("roster", ["f" * 64]),
    ],
)
def test_impossible_attempts_are_refused(field, value):
    attempt = made_attempt({})
    with pytest.raises(Refused, match=field):
        replace(attempt, **{field: value})
    fields = {"attempt": {**attempt.fields, field: value}, "stage": "mask"}
    with pytest.raises(Refused, match=field):
        Request.read(pack("secure request", fields, {}))
    del fields["attempt"][field]
    with pytest.raises(Refused, match=field):
        Request.read(pack("secure request", fields, {}))


def test_requests_and_answers_survive_the_trip():
    attempt = made_attempt({"a": KEYS[0].public})
    request = Request(attempt, Stage.MASK, {"b": b"12", "a": b"", "c": bytes(100)})
    assert Request.read(request.to_bytes()) == request
    answer = Answer.sign(attempt, Stage.MASK, "a", {"vector": b"1234"}, KEYS[0])
    roster = {"a": KEYS[0].public}
    assert Answer.read(answer.to_bytes(), attempt, Stage.MASK, "a", roster) == answer


@given(st.binary(max_size=300))
@settings(max_examples=50)
def test_random_bytes_are_refused(blob):
    with pytest.raises(Refused):
        Request.read(blob)
    with pytest.raises(Refused):
        Answer.read(blob, made_attempt({}), Stage.MASK, "a", {"a": KEYS[0].public})


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_an_altered_message_is_refused(data):
    cohort = made_cohort(3).run(until=Stage.SHARE)
    request = unmasking.request(cohort.server, "s00")
    answer = cohort.ask("s00")
    for blob, read in (
        (request, Request.read),
        (answer, lambda altered: unmasking.collect(cohort.server, "s00", altered)),
    ):
        place = data.draw(st.integers(0, len(blob) - 1))
        bit = 1 << data.draw(st.integers(0, 7))
        with pytest.raises(Refused):
            read(blob[:place] + bytes([blob[place] ^ bit]) + blob[place + 1 :])


def test_parts_that_are_no_byte_strings_are_refused():
    for tensor in (np.zeros(2, np.float32), np.zeros((2, 2), np.uint8)):
        with pytest.raises(Refused, match=r"a: expected a tensor U8 \[n\]"):
            unpack_parts("kind", pack("kind", {}, {"a": tensor}))


def test_messages_of_another_kind_are_refused():
    attempt = made_attempt({})
    request = Request(attempt, Stage.MASK).to_bytes()
    with pytest.raises(Refused, match="kind: expected secure answer, got secure request"):
        Answer.read(request, attempt, Stage.MASK, "a", {"a": KEYS[0].public})
    with pytest.raises(Refused, match="stage: expected one of advertise, share"):
        Request.read(pack("secure request", {"attempt": attempt.fields, "stage": "x"}, {}))
    with pytest.raises(Refused, match="client"):
        Request.read(Request(attempt, Stage.MASK, {"a/b": b""}).to_bytes())


def test_signatures_that_are_no_signatures_are_refused():
    attempt, roster = made_attempt({}), {"a": KEYS[0].public}
    for text in ("", "zz", "00" * 63, "00" * 64, "é" * 10):
        fields = {"client": "a", "stage": "mask", "signature": text}
        blob = pack("secure answer", fields, {"vector": b""})
        with pytest.raises(Refused, match="signature of a"):
            Answer.read(blob, attempt, Stage.MASK, "a", roster)


def test_the_digest_of_a_roster_changes_with_every_name_and_key():
    first, second = KEYS[0].public, KEYS[1].public
    rosters = [
        {},
        {"a": first},
        {"b": first},
        {"a": second},
        {"a": first, "b": second},
        {"a": second, "b": first},
    ]
    assert len({roster_digest(roster) for roster in rosters}) == len(rosters)
    assert roster_digest({"b": second, "a": first}) == roster_digest({"a": first, "b": second})
    with pytest.raises(Refused):
        roster_digest({"a": "ed25519:short"})
