"""``fedran plan``."""

import json

import pytest

import fedran

SITE = ("--in-features", "1280", "--classes", "20", "--rows", "2000")


def planned(cli, *options):
    code, out, _ = cli("plan", *options, "--json")
    assert code == 0
    return json.loads(out)


@pytest.mark.parametrize(("budget", "fits"), [("2MB", True), ("150kB", False)])
def test_the_first_line_says_whether_every_row_fits(budget, fits, cli):
    code, out, _ = cli("plan", "--budget", budget, *SITE)
    assert code == 0
    assert out.splitlines()[0].startswith("Every row fits" if fits else "Not every row fits")
    found = planned(cli, "--budget", budget, *SITE)
    assert found["all_rows_fit"] == fits
    assert (found["group_size"] == 1) == fits
    assert f"group size  {found['group_size']:>9}" in out
    assert found["upload"] <= found["budget"]


def test_options_are_those_of_the_function(cli):
    options = ("--min-group", "5")
    found = planned(cli, "--budget", "300kB", *SITE, *options, "--value-bits", "1.8")
    p = fedran.plan(300_000, 1280, 20, 2000, min_group=5, value_bits=1.8)
    assert all(getattr(p, name) == value for name, value in found.items())
    assert found["group_size"] >= 5
    _, out, _ = cli("plan", "--budget", "300kB", *SITE, *options)
    assert "rows per group, at least 5" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--budget", "1kB", *SITE), "no message fits into 1kB"),
        (("--budget", "1MB", *SITE[:4], "--rows", "60", "--min-group", "5"), "fewer than 5 rows"),
    ],
)
def test_what_cannot_be_planned_is_one_line(options, words, cli):
    code, out, err = cli("plan", *options)
    assert (code, out, err.count("\n"), words in err) == (2, "", 1, True), err


def test_rows_that_are_smaller_than_any_message_are_told(cli):
    sizes = ("--in-features", "2", "--classes", "2", "--rows", "20")
    assert "the rows themselves are smaller: 160 B" in cli("plan", "--budget", "1MB", *sizes)[1]
    assert "themselves" not in cli("plan", "--budget", "1MB", *SITE)[1]
