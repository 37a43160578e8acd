"""The results file of a sweep: one line a run, appended and synced, read back to resume."""

from __future__ import annotations

import os
from pathlib import Path

from fedran.bench.results.result import Result
from fedran.wire.files import write_atomically


def finished(file: Path) -> dict[str, Result]:
    """Results in the file by run id; a last line that was cut off by a crash is removed."""
    if not file.exists():
        return {}
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
        write_atomically(file, "".join(lines).encode())
    found = {}
    for number, line in enumerate(lines, 1):
        try:
            result = Result.from_json(line)
        except ValueError as reason:
            raise ValueError(
                f"{file}, line {number}: {reason}; move the file away to start anew"
            ) from None
        found[result.run_id] = result
    return found


def append(file: Path, result: Result) -> None:
    """One more line, synced."""
    line = result.to_json() + "\n"
    with file.open("a", encoding="utf-8") as handle:
        handle.write(line)
        handle.flush()
        os.fsync(handle.fileno())
