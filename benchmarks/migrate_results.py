"""Results of older schemas to schema 4: ``python benchmarks/migrate_results.py [FILE.jsonl ...]``.

Schema 3 says in every line for which study a run was made. Schema 2 only had the name of the
configuration file. Schema 4 adds A_avg, A_T and the arguments of the command, which are unknown
for older lines. Without arguments all files of results/ are converted. Lines of schema 4 stay as
they are, and a run keeps its id, so that sweeps go on from converted files. The script may be run
again at any time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path, PurePosixPath

from fedran.bench.results.result import Result
from fedran.wire.files import write_atomically

STUDIES = {
    "configs/paper/communication.toml": "communication",
    "configs/paper/components.toml": "components",
    "configs/paper/labels.toml": "labels",
    "configs/paper/rank.toml": "rank",
    "configs/paper/runtime.toml": "runtime",
    "configs/paper/scratch.toml": "training",
    "configs/paper/speedup.toml": "speedup",
    "configs/paper/trained.toml": "training",
    "configs/paper/trained_vtab.toml": "training",
}
"""Studies of the committed configurations when schema 2 ended; all others compared methods."""


def migrated(line: str) -> str:
    """A line of schema 2 or 3 as schema 4; a line of schema 4 unchanged."""
    fields = json.loads(line)
    if fields["schema"] == 4:
        return line
    if fields["schema"] not in (2, 3):
        raise ValueError(f"expected schema 2, 3 or 4, got {fields['schema']}")
    if fields["schema"] == 2:
        config = PurePosixPath(fields["config"].replace("\\", "/")).as_posix()
        sends = fields["sends"].replace("bits a number", "bits per value")
        fields.update(schema=3, study=STUDIES.get(config, "accuracy"), sends=sends)
    return Result.from_json(json.dumps(fields)).to_json()


def migrate(path: Path) -> bool:
    """Convert a file in place. False where nothing had to change."""
    before = path.read_text(encoding="utf-8")
    after = "".join(migrated(line) + "\n" for line in before.splitlines())
    if after != before:
        write_atomically(path, after.encode())
    return after != before


if __name__ == "__main__":
    given = [Path(name) for name in sys.argv[1:]]
    root = Path(__file__).resolve().parent.parent
    for file in given or sorted((root / "results").glob("*.jsonl")):
        print(f"{file}: {'converted' if migrate(file) else 'nothing to do'}")
