import pickle

from hypothesis import given
from hypothesis import strategies as st

from fedran.core.errors import Refused, printable
from helpers.core.reference import quick


def test_refused_is_a_value_error_that_says_field_expected_got_and_hint():
    error = Refused("rank", "at most 3", 4, hint="send less")
    assert isinstance(error, ValueError)
    assert str(error) == "rank: expected at most 3, got 4; send less"
    assert str(Refused("rank", "at most 3", 4)) == "rank: expected at most 3, got 4"


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
