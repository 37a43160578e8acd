"""Tables of settings in the documentation equal the code."""

import runpy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from fedran.settings import Settings, at_least, between
from fedran_bench.results.result import STUDIES

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "benchmarks" / "settings_reference.py"))


def test_the_tables_of_settings_are_generated_from_the_code():
    pages = [p for p in (ROOT / "docs").rglob("*.md") if "<!-- settings" in p.read_text()]
    assert ROOT / "docs/reference/configuration.md" in pages
    for page in pages:
        text = page.read_text()
        assert text == SCRIPT["filled"](text), f"run benchmarks/settings_reference.py for {page}"
        assert len(SCRIPT["MARKED"].findall(text)) == text.count("<!-- settings")


@dataclass(frozen=True)
class Base(Settings):
    seed: Annotated[int, between(0, 99)] = 0
    """Seeds the
    generator."""


@dataclass(frozen=True)
class Example(Base):
    name: str = field(kw_only=True)
    rank: Annotated[int | None, at_least(1)] = None
    """Columns kept | all."""
    flag: bool = False
    device: str | None = None


def test_the_reference_holds_every_setting_with_type_default_and_explanation():
    assert SCRIPT["table_of"](Example)[2:] == [
        "| `seed` | an integer, from 0 to 99 | 0 | Seeds the generator. |",
        "| `name` | text | required |  |",
        "| `rank` | an integer, at least 1 | none | Columns kept \\| all. |",
        "| `flag` | true or false | false |  |",
    ]


def test_a_table_can_leave_out_the_settings_of_another_dataclass():
    base = "fedran_bench.methods.trained.finetune.Finetune"
    lines = SCRIPT["table"]("fedran_bench.methods.trained.fedewc.FedEWC", base)
    names = [line.split("`")[1] for line in lines[2:]]
    assert names == ["weight_decay", "strength"]


def test_every_study_is_documented():
    page = (ROOT / "docs/reference/configuration.md").read_text()
    for name, purpose in STUDIES.items():
        assert page.count(f"| `{name}` | {purpose} |") == 1
