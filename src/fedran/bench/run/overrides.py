"""``--set key=value``: changes to an experiment for once."""

from __future__ import annotations

import tomllib
from typing import Any

from fedran.core.errors import nearest, printable
from fedran.methods.registry import METHODS, settings


def override(fields: dict[str, Any], text: str) -> None:
    """Apply ``key=value``: ``stream.beta=0.5``, ``method.rank=[64,128]``, ``methods=exact,afl``.

    ``method.NAME`` sets NAME for every method that has it; ``methods=`` keeps only those keys.
    Values are TOML where they parse as such, plain text otherwise.
    """
    key, equals, raw = text.partition("=")
    key, raw = key.strip(), raw.strip()
    if not equals or not key:
        raise ValueError(f"--set expects key=value, got {printable(text)!r}")
    if key == "methods":
        _keep_methods(fields, [k.strip() for k in raw.split(",")])
        return
    value = _value(raw)
    section, dot, name = key.partition(".")
    if not dot:
        fields[key] = value
    elif section == "method":
        _set_in_methods(fields, name, value)
    else:
        target = fields.setdefault(section, {})
        if not isinstance(target, dict):
            raise ValueError(f"--set {key}: {section!r} is not a section")
        target[name] = value


def _keep_methods(fields: dict[str, Any], keys: list[str]) -> None:
    require_methods(fields.get("method", []))
    present = [m.get("key") for m in fields.get("method", [])]
    for key in keys:
        if key not in METHODS:
            raise ValueError(f"--set methods: no method {key!r}{nearest(key, METHODS)}")
    kept = [m for m in fields.get("method", []) if m.get("key") in keys]
    fields["method"] = kept + [{"key": k} for k in keys if k not in present]


def _set_in_methods(fields: dict[str, Any], name: str, value: Any) -> None:
    names: set[str] = set()
    for method in fields.get("method", []):
        if isinstance(method, dict) and method.get("key") in METHODS:
            names |= set(settings(method["key"]))
            if name in settings(method["key"]):
                method[name] = value
    if name not in names:
        raise ValueError(
            f"--set method.{name}: no method here has this setting{nearest(name, names)}"
        )


def _value(raw: str) -> Any:
    try:
        return tomllib.loads(f"v = {raw}")["v"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return raw


def require_methods(entries: Any) -> None:
    """Refuse what is not a list of tables."""
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise ValueError("methods are written as [[method]] sections with a key each")
