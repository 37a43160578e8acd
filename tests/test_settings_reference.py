"""Tables of settings in the documentation equal the code."""

import runpy
from pathlib import Path

from fedran.bench.results.result import STUDIES

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "benchmarks" / "settings_reference.py"))


def test_the_tables_of_settings_are_generated_from_the_code():
    pages = [p for p in (ROOT / "docs").rglob("*.md") if "<!-- settings" in p.read_text()]
    assert ROOT / "docs/reference/configuration.md" in pages
    for page in pages:
        text = page.read_text()
        assert text == SCRIPT["filled"](text), f"run benchmarks/settings_reference.py for {page}"
        assert len(SCRIPT["MARKED"].findall(text)) == text.count("<!-- settings")


def test_a_table_can_leave_out_the_settings_of_another_dataclass():
    base = "fedran.methods.trained.finetune.Finetune"
    lines = SCRIPT["table"]("fedran.methods.trained.fedewc.FedEWC", base)
    names = [line.split("`")[1] for line in lines[2:]]
    assert names == ["weight_decay", "strength", "flavour"]


def test_every_study_is_documented():
    page = (ROOT / "docs/reference/configuration.md").read_text()
    for name, purpose in STUDIES.items():
        assert f"| `{name}` | {purpose} |" in page
