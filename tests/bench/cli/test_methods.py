"""``fedran bench methods``: every method, in 80 columns and as JSON."""

import json
import re

from fedran_bench.methods.registry import METHODS, make_method, settings


def unwrapped(text):
    """One space between words, so that a line may be broken anywhere."""
    return " ".join(text.split())


def test_every_method_is_listed_within_80_columns(cli):
    code, out, err = cli("bench", "methods")
    assert (code, err) == (0, "")
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "…" not in out
    table, _, rest = out.partition("Also with")
    listed = re.findall(r"^  (\S+) ", table, re.M)
    assert sorted(listed) == sorted(METHODS)
    assert len(out.splitlines()) < 80
    flavours = [key for key in METHODS if "flavour" in settings(key)]
    assert flavours
    assert f"(flavour = 'as_published'): {', '.join(flavours)} " in unwrapped(rest)


def test_an_unknown_method_is_one_sentence_with_the_nearest_key(cli):
    code, out, err = cli("bench", "methods", "fedrun")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "did you mean 'fedran'" in err


def test_json_holds_everything_and_the_settings(cli):
    code, out, _ = cli("bench", "methods", "--json")
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
