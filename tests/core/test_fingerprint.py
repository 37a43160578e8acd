import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedran
from fedran.core.errors import Refused
from fedran.core.fingerprint import MAX_FIELDS, Fingerprint, require_same
from helpers.core.reference import quick

values = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from([0.0, 1.0, 0.5]), st.text()
)
fields = st.dictionaries(st.sampled_from(["d", "M", "seed", "backbone"]), values, min_size=1)


@quick
@given(fields)
def test_order_of_the_fields_does_not_matter(named):
    a, b = Fingerprint(named), Fingerprint(dict(reversed(named.items())))
    assert a == b
    assert hash(a) == hash(b)
    assert a.hash == b.hash
    assert a.differences(b) == ""
    assert pickle.loads(pickle.dumps(a)) == a


@quick
@given(fields, fields)
def test_unequal_fingerprints_name_every_field_that_differs(one, two):
    a, b = Fingerprint(one), Fingerprint(two)
    if a == b:
        return
    assert a.differences(b) != ""
    for name in {*one, *two}:
        if one.get(name, ...) != two.get(name, ...):
            assert f"{name} is" in a.differences(b)


@pytest.mark.parametrize(("one", "two"), [(1, 1.0), (1, True), (0.0, -0.0)])
def test_a_difference_in_kind_alone_is_named_or_is_none(one, two):
    a, b = Fingerprint.of(x=one), Fingerprint.of(x=two)
    assert (a == b) == (a.differences(b) == "")


def test_a_fingerprint_cannot_be_changed_and_prints_its_fields():
    named = {"d": 1}
    print_of = Fingerprint(named)
    named["d"] = 2
    assert repr(print_of) == "Fingerprint(d=1)"
    with pytest.raises(TypeError):
        print_of.fields["d"] = 3
    assert print_of != "Fingerprint(d=1)"


@pytest.mark.parametrize(
    "named",
    [
        {},
        {f"f{i}": i for i in range(MAX_FIELDS + 1)},
        {"a b": 1},
        {"": 1},
        {"x" * 65: 1},
        {1: 1},
        {"a\n": 1},
        {"a": "x" * 257},
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": [1]},
        {"a": b"x"},
    ],
)
def test_fields_outside_the_limits_are_refused(named):
    with pytest.raises(Refused, match="fingerprint"):
        Fingerprint(named)


def test_a_fingerprint_on_one_side_only_is_a_difference():
    mine = Fingerprint.of(d=1)
    require_same(None, None, "both")
    require_same(mine, Fingerprint.of(d=1), "both")
    with pytest.raises(Refused, match=r"the other has none.*phi\.fingerprint"):
        require_same(mine, None, "both")
    with pytest.raises(Refused, match="this one has none"):
        require_same(None, mine, "both")


@pytest.mark.parametrize("wrong", [fedran.RandomFeatures(2, 3), "abc", {"M": 3}])
def test_another_type_than_a_fingerprint_is_refused(wrong):
    with pytest.raises(TypeError, match=r"pass phi\.fingerprint"):
        fedran.summarize(np.eye(3), [0, 1, 2], fingerprint=wrong)
    with pytest.raises(TypeError, match=r"pass phi\.fingerprint"):
        fedran.Aggregator(3, fingerprint=wrong)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**400])
def test_integers_beyond_64_bits_are_refused(value):
    with pytest.raises(Refused, match="within 64 bits"):
        Fingerprint.of(d=value)
    assert Fingerprint.of(d=2**63 - 1).fields["d"] == 2**63 - 1
