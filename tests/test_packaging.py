"""What is published besides the code: metadata, notes of a release, the table of extras."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import fedran

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_citation_names_this_version_and_the_authors_of_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"title", "message", "authors", "type"} <= set(citation)
    assert citation["version"] == fedran.__version__
    assert citation["license"] == PROJECT["license"]
    (paper,) = citation["references"]
    assert paper["title"] == "Accurate and Resource-Efficient Federated Continual Learning"
    assert all({"family-names", "given-names"} <= set(author) for author in paper["authors"])


def test_the_workflows_run_the_checks_of_this_repository():
    jobs = [
        job
        for path in (ROOT / ".github/workflows").glob("*.yml")
        for job in yaml.safe_load(path.read_text())["jobs"].values()
    ]
    assert len(jobs) == 2
    for job in jobs:
        assert any(step.get("run") == ".ci/run" for step in job["steps"])
        (versions,) = [
            s["with"]["python-version"]
            for s in job["steps"]
            if "with" in s and "python-version" in s["with"]
        ]
        claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
        assert sorted(versions.split()) == sorted(claimed)


def test_release_notes_are_the_section_of_the_version():
    script = load(ROOT / ".github/release_notes.py")
    newest = "## 0.2.0 (2026-12-01)\n\n- New.\n\n### Fixed\n\n- Old.\n"
    changelog = f"# Changelog\n\n{newest}\n## 0.1.0\n- First.\n"
    assert script.notes(changelog, "0.2.0") == "- New.\n\n### Fixed\n\n- Old.\n"
    assert script.notes(changelog, "0.1.0") == "- First.\n"
    with pytest.raises(SystemExit, match=r"no section 0\.3\.0; it has 0\.2\.0, 0\.1\.0"):
        script.notes(changelog, "0.3.0")
    with pytest.raises(SystemExit, match="write the date"):
        script.notes("## 0.2.0 (unreleased)\n- x\n", "0.2.0")
    with pytest.raises(SystemExit, match="says nothing"):
        script.notes("## 0.2.0 (2026-12-01)\n\n## 0.1.0\n- x\n", "0.2.0")


def test_the_changelog_has_a_section_for_this_version():
    assert f"\n## {fedran.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_extra_is_described_and_measured():
    extras = {*PROJECT["optional-dependencies"]} - {"dev", "docs"}
    page = (ROOT / "docs/install.md").read_text()
    assert set(re.findall(r"^\|[^|]*\| `(\w+)` \|$", page, re.M)) == extras
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.M)) == extras
    assert set(load(ROOT / "benchmarks/footprint.py").EXTRAS) - {""} == extras
