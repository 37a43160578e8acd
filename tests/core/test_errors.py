import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedran.core.errors import Refused, check_id, printable
from fedran.wire.container import pack, unpack
from fedran.wire.validation import DEFAULT_LIMITS
from helpers.core.reference import quick


def test_refused_is_a_value_error_that_says_field_expected_got_and_hint():
    error = Refused("rank", "at most 3", 4, hint="send less")
    assert isinstance(error, ValueError)
    assert str(error) == "rank: expected at most 3, got 4; send less"
    assert str(Refused("rank", "at most 3", 4)) == "rank: expected at most 3, got 4"


@pytest.mark.parametrize(
    "name", ["__metadata__", "..", ".a", "-r", "a  b", "a ", "", "ä", "a" * 65]
)
def test_names_that_mean_something_else_somewhere_are_no_ids(name):
    """A message has one tensor per site, and one file or folder has the name of one."""
    with pytest.raises(Refused, match="client: expected text of 1 to 64"):
        check_id(name, "client")


@quick
@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True))
def test_every_id_can_name_a_part_of_a_message(name):
    assert check_id(name, "client") == name
    assert unpack(pack("kind", {}, {name: b"x"}), DEFAULT_LIMITS).stream(name) == b"x"


@quick
@given(st.text(st.characters(), max_size=300))
def test_printable_is_one_printable_line(text):
    assert printable(text).isprintable()


def test_long_values_are_shortened():
    assert printable("x" * 10_000, 100) == "x" * 97 + "..."
    assert len(printable("\x1b" * 10_000, 100)) == 100


@quick
@given(st.text(st.characters(), max_size=300))
def test_a_refusal_survives_pickling_unchanged(text):
    error = Refused("field", "something", text, hint="hint")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert (copy.field, copy.expected, copy.hint) == ("field", "something", "hint")
