"""What README and docs claim is what the committed results say."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedran_bench.report.export import FIRST_MARK, LAST_MARK, markdown
from fedran_bench.report.pages import load_results, make_pages

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def results():
    return load_results(ROOT / "results")


def test_the_results_page_is_generated_from_the_results(results):
    page = (ROOT / "docs/results.md").read_text()
    made = page.partition(FIRST_MARK)[2].partition(LAST_MARK)[0].strip()
    assert made == markdown(make_pages(results, "results"), results)
    assert len(page.split()) <= 4000


def test_the_privacy_page_shows_the_measured_leakage():
    lines = (ROOT / "results/leakage.ndjson").read_text().splitlines()
    pages = [(ROOT / p).read_text() for p in ("docs/explanation/privacy.md", "results/leakage.md")]
    for line in map(json.loads, lines):
        for page in pages:
            starts = f"| {line['name']} |", f"| {line['name']} * |"  # of an earlier version
            rows = [row for row in page.splitlines() if row.startswith(starts)]
            assert any(f"{line['auc']:.3f}" in row for row in rows), line["name"]


def measured(results, key, dataset="cifar100-efficientnet_lite0", **params):
    key, _, flavour = key.partition(" ")
    study = "training" if key in ("finetune", "fedicarl") else "accuracy"
    found = [
        r
        for r in results
        if (r.key, r.study, r.stream["beta"]) == (key, study, 0.1)
        if r.dataset == dataset and r.stream["clients"] == 5 and "arrival" not in r.stream
        if r.params.get("flavour", "").startswith(flavour)
        if all(r.params[name] == value for name, value in params.items())
    ]
    assert {r.seeds["order"] for r in found} == {1993, 7, 11}
    newest = {r.seeds["order"]: r for r in found}.values()
    means = (np.mean([r.A_avg for r in newest]), np.mean([r.A_T for r in newest]))
    return *means, max(r.max_upload for r in newest) / 2**20


@pytest.mark.parametrize(
    ("row", "key", "params"),
    [
        ("every row, 4096 landmarks", "fedran-points", {"group_size": 1, "landmarks": 4096}),
        ("at least 1 row each", "fedran-points", {"group_size": 5, "min_group": 1}),
        ("at least 5 rows", "fedran-points", {"group_size": 5, "min_group": 5}),
        ("fedran, summaries", "fedran", {"rank": 256, "out_features": 8192}),
        ("our implementation of the paper", "fedran-paper", {"rank": 2048}),
        ("the exact Gram", "exact", {"out_features": 8192}),
        ("STSA", "stsa", {"out_features": 5000}),
        ("AFL", "afl", {}),
        ("FediCaRL as published", "fedicarl as_published", {}),
        ("FedNCM", "fedncm", {}),
    ],
)
def test_the_readme_table_is_measured(results, row, key, params):
    lines = (ROOT / "README.md").read_text().splitlines()
    (line,) = [x for x in lines if x.startswith("| ") and row in x]
    shown = re.findall(r"\d+\.\d+", line)
    assert shown == [f"{v:.2f}" for v in measured(results, key, **params)]


def test_the_readme_table_of_the_papers_backbone_is_measured(results):
    text = (ROOT / "README.md").read_text().partition("On the paper's own backbone")[2]
    for row, key, params in (
        ("our implementation of its algorithm", "fedran-paper", {}),
        ("every row", "fedran-points", {"group_size": 1}),
        ("of 1 row or more", "fedran-points", {"group_size": 5, "min_group": 1}),
        ("of 5 rows or more", "fedran-points", {"group_size": 5, "min_group": 5}),
    ):
        (line,) = [x for x in text.splitlines() if x.startswith("| ") and row in x]
        for cell, name in zip(line.split("|")[2:4], ("cifar100", "vtab50"), strict=True):
            found = [float(x) for x in re.findall(r"\d+\.\d+", cell)]
            if found:
                now = measured(results, key, f"{name}-resnet18", **params)
                np.testing.assert_allclose(found, now, atol=0.00501)


def test_the_budget_table_is_measured(results):
    text = (ROOT / "docs/how-to/budget.md").read_text()
    rows = re.findall(r"^\| ([\d.]+) MiB \| (.+) \| ([\d.]+) \| ([\d.]+) \|$", text, re.M)
    assert len(rows) >= 5
    for mib, message, *shown in rows:
        numbers = [float(x) for x in re.findall(r"[\d.]+\d|\d", message)]
        if message.startswith("summary"):
            key, names = "fedran", ("rank", "bits")
            numbers = [*numbers, 5.0][:2]
        else:
            key, names = "fedran-points", ("group_size", "min_group", "step", "landmarks")
            numbers = [*numbers, None][:4]
        found = {
            r.seeds["order"]: r
            for r in results
            if (r.dataset, r.key) == ("cifar100-efficientnet_lite0", key)
            if (r.stream["clients"], r.stream["beta"]) == (5, 0.1)
            if r.study in ("accuracy", "communication")
            if [r.params[name] for name in names] == numbers
        }
        assert len(found) == 3, message
        measured = np.mean([(r.A_avg, r.A_T) for r in found.values()], axis=0)
        assert shown == [f"{v:.2f}" for v in measured]
        assert mib == f"{max(r.max_upload for r in found.values()) / 2**20:.2f}"


def test_every_result_of_one_file_uses_the_same_streams(results):
    streams = {}
    for r in results:
        place = (r.dataset, str(sorted(r.stream.items())), str(sorted(r.seeds.items())))
        streams.setdefault(place, set()).add(r.hashes["stream"])
    assert all(len(hashes) == 1 for hashes in streams.values())


def test_no_result_is_larger_than_a_megabyte():
    assert all(p.stat().st_size < 10**6 for p in (ROOT / "results").glob("*"))


def test_the_costs_of_a_federation_are_the_measured_ones():
    measured = (ROOT / "results/federation.md").read_text().splitlines()
    page = (ROOT / "docs/explanation/federation.md").read_text().splitlines()
    rows = [line for line in page if line.startswith("| ") and "MiB" in line]
    assert len(rows) >= 4
    assert all(row in measured for row in rows)
