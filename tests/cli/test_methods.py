"""``fedran methods``: every method, in 80 columns and as JSON."""

import json
import re

from fedran.methods.registry import METHODS, make_method, settings


def unwrapped(text):
    """One space between words, so that a line may be broken anywhere."""
    return " ".join(text.split())


def test_every_method_is_listed_within_80_columns(cli):
    code, out, err = cli("methods")
    assert (code, err) == (0, "")
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "…" not in out
    listed = re.findall(r"^  (\S+) ", out.rpartition("Next:")[0], re.M)
    assert sorted(listed) == sorted(METHODS)
    assert len(out.splitlines()) < 80


def test_an_unknown_method_is_one_sentence_with_the_nearest_key(cli):
    code, out, err = cli("methods", "fedrun")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "did you mean 'fedran'" in err


def test_family_verification_and_settings_of_each_method_are_shown(cli):
    out = unwrapped(cli("methods", *METHODS)[1])
    for key in METHODS:
        method = make_method(key)
        own = out[out.index(f"{key} {method.name}, {method.family}") :]
        assert method.verified in own[:600]
        assert f"settings {next(iter(method.params()), 'none')}" in own[:800]


def test_json_holds_everything_and_the_settings(cli):
    code, out, _ = cli("methods", "--json")
    assert code == 0
    rows = {row["key"]: row for row in json.loads(out)}
    assert list(rows) == list(METHODS)
    for key, row in rows.items():
        method = make_method(key)
        assert row["name"] == method.name
        assert row["family"] == method.family
        assert row["sends"] == method.sends
        assert row["verified"] == method.verified
        assert set(row["claims"]) == {"order_free", "partition_free", "exact", "one_round"}
        assert set(row["settings"]) == set(settings(key)) - {"execution"}  # how, not what
