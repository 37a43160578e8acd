"""Lines and files of each package beside their limits: ``make size``.

The exit code is 1 where a limit is exceeded: a change that adds a feature removes something.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINES = {
    "src/fedran": 29_000,
    "src/fedran/federation": 12_500,
    "src/fedran_bench": 11_000,
    "tests": 39_000,
}
"""What a small team can read."""
FILES = {"src/fedran": 190}
ROOM = 16
"""Modules in one folder: more need a name for what some of them have in common."""
WORDS = 60_000
"""Words of documentation: each thing is said once."""


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    paths = [Path(name) for name in listed if (ROOT / name).is_file()]
    python = [path for path in paths if path.suffix == ".py"]
    too_large = False

    def show(what: str, number: int, limit: int) -> None:
        nonlocal too_large
        too_large |= number > limit
        print(f"{what:40} {number:7,}  limit {limit:7,}{'  TOO LARGE' * (number > limit)}")

    for package, limit in LINES.items():
        modules = [path for path in python if path.is_relative_to(package)]
        show(f"{package}, lines", sum(map(lines, modules)), limit)
        if package in FILES:
            show(f"{package}, files", len(modules), FILES[package])
    rooms = Counter(path.parent for path in python if path.parts[0] in ("src", "tests"))
    room, largest = rooms.most_common(1)[0]
    show(f"largest folder, {room}", largest, ROOM)
    pages = [path for path in paths if path.parts[0] == "docs" and path.suffix == ".md"]
    show("docs, words", sum(len((ROOT / path).read_text().split()) for path in pages), WORDS)
    return int(too_large)


def lines(path: Path) -> int:
    return len((ROOT / path).read_text().splitlines())


if __name__ == "__main__":
    sys.exit(main())
