"""Settings from TOML tables and keyword tables, validated against a dataclass.

A dataclass describes a table: its fields are the settings, their type hints say which values are
allowed, and the string below a field explains it. Limits are part of the hint:

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Stream(Settings):
...     clients: Annotated[int, at_least(1)]
...     beta: Annotated[float, positive] = 0.5

The same checks hold for a table and for direct construction. Errors are one sentence.

>>> check_table(Stream, {"clients": 5, "beta": 1})
{'clients': 5, 'beta': 1.0}
>>> check_table(Stream, {"clients": 5, "bta": 1}, where="[stream]")
Traceback (most recent call last):
...
ValueError: [stream] has no setting 'bta' (did you mean 'beta'?); it has clients, beta
>>> Stream(clients=0)
Traceback (most recent call last):
...
ValueError: clients must be at least 1, got 0

Only the standard library is needed, so that methods and benchmarks can use this module on machines
where no validation library is installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from fedran.core.errors import nearest, printable

TYPE_NAMES = {
    int: "an integer",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "a table",
    list: "a list",
    tuple: "a list",
    NoneType: "none",
}


@dataclass(frozen=True)
class Rule:
    """A limit on a value that has the right type. ``None`` is never tested."""

    holds: Callable[[Any], bool]
    phrase: str
    """Completes the sentence "X must be ..."."""


def at_least(low: float) -> Rule:
    """A finite number not below ``low``."""
    return Rule(lambda v: low <= v < math.inf, f"at least {digits(low)}")


def between(low: float, high: float) -> Rule:
    """A number from ``low`` to ``high``, both included."""
    return Rule(lambda v: low <= v <= high, f"from {digits(low)} to {digits(high)}")


def one_of(*choices: str) -> Rule:
    """One of these texts, for choices that are only known at run time."""
    return Rule(lambda v: v in choices, f"one of {', '.join(choices)}")


positive = Rule(lambda v: 0 < v < math.inf, "positive and finite")
share = Rule(lambda v: 0 < v <= 1, "above 0 and at most 1")
below_one = Rule(lambda v: 0 <= v < 1, "at least 0 and below 1")
one_line = Rule(lambda v: bool(v) and v.isprintable(), "text in one line")


class Settings:
    """Base class of dataclasses whose fields are settings: validates on construction.

    Subclasses with their own ``__post_init__`` call ``super().__post_init__()`` first.
    """

    def __post_init__(self) -> None:
        for name, hint in hints(type(self)).items():
            object.__setattr__(self, name, check_value(getattr(self, name), hint, name))


def check_table(
    kind: type[Any],
    table: Mapping[str, Any],
    where: str = "the table",
    prefix: str = "",
    *,
    lists: bool = False,
    partial: bool = False,
) -> dict[str, Any]:
    """The values of ``table``, each checked against the field of ``kind`` with its name.

    ``where`` names the table in errors about its keys. ``prefix`` precedes the name of a setting
    in errors about its value. With ``lists``, a list gives several values, and each of them is
    checked. With ``partial``, settings without a default may be missing.
    """
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} must be a table, got {printable(table)}")
    known = hints(kind)
    checked = {}
    for name, value in table.items():
        if name not in known:
            close, listed = nearest(name, known), ", ".join(known) or "none"
            shown = printable(name, 100)
            raise ValueError(f"{where} has no setting {shown!r}{close}; it has {listed}")
        if lists and isinstance(value, list):
            if not value:
                raise ValueError(f"{prefix}{name} is an empty list; give at least one value")
            checked[name] = [check_value(item, known[name], prefix + name) for item in value]
        else:
            checked[name] = check_value(value, known[name], prefix + name)
    required = [f.name for f in fields(kind) if f.name in known and default_of(f) is MISSING]
    for name in required if not partial else ():
        if name not in table:
            found = ", ".join(map(str, table)) or "nothing"
            raise ValueError(f"{where} needs the setting {name!r}, found {printable(found)}")
    return checked


def check_value(value: Any, hint: Any, name: str) -> Any:
    """``value`` if the hint allows it, an int as float where the hint says so.

    >>> check_value(3, float, "lr"), check_value(None, int | None, "rank")
    (3.0, None)
    >>> check_value("b", Literal["margin", "none"], "pseudo_labels")
    Traceback (most recent call last):
    ...
    ValueError: pseudo_labels must be one of margin, none, got 'b'
    """
    plain, rules = split_hint(hint)
    if not has_type(value, plain):
        choices = [c for kind in alternatives(plain) for c in get_args(kind)]
        close = nearest(value, map(str, choices)) if isinstance(value, str) and choices else ""
        raise ValueError(f"{name} must be {type_name(plain)}, got {_shown(value)}{close}")
    if isinstance(value, int) and not isinstance(value, bool) and float in alternatives(plain):
        value = value if int in alternatives(plain) else float(value)
    for rule in rules if value is not None else ():
        if not rule.holds(value):
            raise ValueError(f"{name} must be {rule.phrase}, got {_shown(value)}")
    return value


def hints(kind: type[Any]) -> dict[str, Any]:
    """The settings of a dataclass and their type hints. ``device`` is not a setting."""
    resolved = get_type_hints(kind, include_extras=True)
    return {f.name: resolved[f.name] for f in fields(kind) if f.init and f.name != "device"}


def type_name(hint: Any) -> str:
    """A type hint in words.

    >>> type_name(float | None), type_name(Literal["a", "b"]), type_name(dict[str, int])
    ('a number or none', 'one of a, b', 'a table')
    """
    names = []
    for kind in alternatives(split_hint(hint)[0]):
        if get_origin(kind) is Literal:
            names.append("one of " + ", ".join(map(str, get_args(kind))))
        else:
            names.append(TYPE_NAMES[get_origin(kind) or kind])
    return " or ".join(dict.fromkeys(names))


def split_hint(hint: Any) -> tuple[Any, tuple[Rule, ...]]:
    """The plain type of a hint and the rules attached to it."""
    if get_origin(hint) is not Annotated:
        return hint, ()
    plain, *extras = get_args(hint)
    return plain, tuple(rule for rule in extras if isinstance(rule, Rule))


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def has_type(value: object, hint: Any) -> bool:
    """Whether a value fits a type hint. An integer is a number too, a truth value is not.

    >>> has_type(3, float), has_type(True, int), has_type(None, str | None)
    (True, False, True)
    """
    hint = split_hint(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        return any(has_type(value, kind) for kind in get_args(hint))
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return any(value == c and type(value) is type(c) for c in arguments)
    if isinstance(value, bool):
        return kind is bool
    if kind is dict and isinstance(value, Mapping):
        keys, values = arguments or (Any, Any)
        return all(
            (keys is Any or has_type(k, keys)) and (values is Any or has_type(v, values))
            for k, v in value.items()
        )
    if kind in (list, tuple) and isinstance(value, (list, tuple)):
        return not arguments or all(has_type(item, arguments[0]) for item in value)
    return isinstance(value, (int, float) if kind is float else kind)


def digits(number: float) -> str:
    """A number as TOML accepts it, large integers in groups of three digits.

    >>> digits(1993), digits(1500000), digits(0.05)
    ('1993', '1_500_000', '0.05')
    """
    large = isinstance(number, int) and abs(number) >= 100_000
    return f"{number:_}" if large else str(number)


def _shown(value: object) -> str:
    return repr(printable(value, 100)) if isinstance(value, str) else printable(value, 200)


def default_of(field: Field[Any]) -> Any:
    """The default of a setting, or ``MISSING``."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default
