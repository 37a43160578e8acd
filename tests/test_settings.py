"""One way to validate settings: types, limits, unknown and missing names."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest

from fedran.settings import (
    Settings,
    at_least,
    below_one,
    between,
    check_table,
    one_line,
    one_of,
    positive,
    share,
)


@dataclass(frozen=True)
class Base(Settings):
    seed: Annotated[int, between(0, 99)] = 0


@dataclass(frozen=True)
class Example(Base):
    name: Annotated[str, one_line] = "x"
    rank: Annotated[int | None, at_least(1)] = None
    lr: Annotated[float, positive] = 0.1
    mode: Literal["fast", "slow"] = "fast"
    codec: Annotated[str, one_of("int8", "mixed")] = "mixed"
    part: Annotated[float, share] = 1.0
    momentum: Annotated[float, below_one] = 0.9
    flag: bool = False
    source: str | dict[str, str] = ""
    sizes: tuple[int, ...] = ()
    device: str | None = None
    tags: dict[str, float] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("seed", ["3", 3.0, True, None, 100, -1]),
        ("name", ["", "a\nb"]),
        ("rank", [0, "all"]),
        ("lr", [0.0, float("inf"), float("nan")]),
        ("mode", ["fats", ["fast"]]),
        ("codec", ["int4"]),
        ("part", [0.0]),
        ("momentum", [1.0]),
        ("flag", [1]),
        ("source", [3, {"a": 1}]),
        ("sizes", [[1, "2"]]),
    ],
)
def test_a_wrong_value_is_refused_alike_from_a_table_and_from_keywords(name, values):
    for value in values:
        with pytest.raises(ValueError, match=f"^{name} must be ") as from_keywords:
            Example(**{name: value})
        assert value == "a\nb" or repr(value) in str(from_keywords.value)
        with pytest.raises(ValueError) as table:
            check_table(Example, {name: value}, prefix="run.")
        assert str(table.value) == f"run.{from_keywords.value}"


def test_an_integer_becomes_a_number_where_a_number_is_meant():
    made = Example(**check_table(Example, {"lr": 2, "rank": 4}))
    assert (made.lr, type(made.lr), type(made.rank)) == (2.0, float, int)
    assert type(Example(lr=3).lr) is float


def test_an_unknown_setting_names_the_nearest_and_lists_all():
    with pytest.raises(ValueError) as error:
        check_table(Example, {"ranks": 1}, where="method 'x'")
    assert "method 'x' has no setting 'ranks' (did you mean 'rank'?); it has seed, name" in str(
        error.value
    )
    assert "device" not in str(error.value)


def test_a_missing_setting_is_named_unless_the_table_is_partial():
    @dataclass(frozen=True)
    class Needs(Settings):
        client: str
        seed: int = 0

    with pytest.raises(ValueError, match="the file needs the setting 'client', found seed"):
        check_table(Needs, {"seed": 1}, where="the file")
    assert check_table(Needs, {"seed": 1}, partial=True) == {"seed": 1}


def test_a_list_stands_for_several_values_only_where_lists_are_allowed():
    assert check_table(Example, {"lr": [1, 0.5]}, lists=True) == {"lr": [1.0, 0.5]}
    with pytest.raises(ValueError, match="lr must be a number, got"):
        check_table(Example, {"lr": [1, 0.5]})
    with pytest.raises(ValueError, match="lr must be positive and finite, got -1"):
        check_table(Example, {"lr": [1, -1]}, lists=True)
    with pytest.raises(ValueError, match="lr is an empty list"):
        check_table(Example, {"lr": []}, lists=True)


def test_something_else_than_a_table_is_refused():
    with pytest.raises(ValueError, match=r"\[run\] must be a table, got \[1\]"):
        check_table(Example, [1], where="[run]")


def test_names_and_values_from_outside_cannot_write_to_the_terminal():
    with pytest.raises(ValueError) as error:
        check_table(Example, {"\x1b[31m": 1})
    assert "\x1b" not in str(error.value)
    with pytest.raises(ValueError) as error:
        check_table(Example, {"mode": "\x1b[31m"})
    assert "\x1b" not in str(error.value)
