"""``fedran plan``."""

import json


def test_plan_finds_a_rank_for_a_budget_and_the_costs_of_a_rank(cli):
    sizes = ("--out-features", "8192", "--classes", "20")
    code, out, _ = cli("plan", "--budget", "1.5MiB", *sizes, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["upload"] <= 1.5 * 2**20
    code, out, _ = cli("plan", "--rank", str(found["rank"]), *sizes, "--json")
    assert json.loads(out)["upload"] == found["upload"]
    code, _, err = cli("plan", "--budget", "10kB", *sizes)
    assert code == 2
    assert "10kB is too small: the sums of 20 classes and one column" in err
    assert "with --in-features and --rows, a mixture is considered too" in err


def test_plan_names_no_mixture_that_leaves_out_the_classes_and_no_budget_that_is_too_small(cli):
    sizes = ("--out-features", "512", "--classes", "20", "--in-features", "10", "--rows")
    for rows in ("2", "20", "99"):  # a mixture leaves out classes with fewer than five rows
        code, out, _ = cli("plan", "--budget", "1GB", *sizes, rows)
        assert (code, "mixture" in out) == (0, False)
        assert "all that these rows have" in out
        assert "; no message fits into that.\n" in out
    code, out, _ = cli("plan", "--budget", "1GB", *sizes, "100")
    assert (code, "mixture" in out) == (0, True)
    code, _, err = cli("plan", "--budget", "800", *sizes, "20")
    assert (code, "a mixture does not fit either" in err) == (2, True)


def test_plan_recommends_a_mixture_for_a_small_budget(cli):
    sizes = ("--out-features", "8192", "--classes", "20", "--in-features", "1280", "--rows", "2000")
    code, out, _ = cli("plan", "--budget", "150kB", *sizes, "--json")
    found = json.loads(out)
    assert (code, found["message"]) == (0, "mixture")
    assert found["mixture_upload"] <= 150_000
    code, out, _ = cli("plan", "--budget", "150kB", *sizes)
    assert code == 0
    assert "mixture  the rank is below a sixteenth of the rows" in out
    assert "group size" in out
    code, out, _ = cli("plan", "--budget", "2MB", *sizes, "--json")
    assert json.loads(out)["message"] == "summary"
