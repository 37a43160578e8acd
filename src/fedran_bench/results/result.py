"""Results: one line of JSON per run with the same schema for every method, and their files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy

import fedran
from fedran.core.errors import nearest
from fedran.core.labels import Label
from fedran.wire.files import write_atomically

SCHEMA = 4

DEFAULT_STUDY = "accuracy"
STUDIES = {
    "accuracy": "Compares methods on the same streams.",
    "communication": "Compares uploads with the cost of sending plain data.",
    "training": "Trains heads or whole networks on the same streams.",
    "labels": "Varies the share of labelled rows.",
    "rank": "Varies rank and width of the summaries.",
    "components": "Adds the components of the feature map one at a time.",
    "one_client": "One client holds all rows: what training reaches without a federation.",
    "privacy": "Accuracy under differential privacy, for several budgets ε.",
    "runtime": "Measures seconds, one run at a time.",
    "speedup": "Measures seconds of FedRAN and of trained methods, which may train for few rounds.",
}
"""Every study that a configuration may name, and what its runs are for."""
TITLES = {
    "digits": "Digits",
    "cifar100": "CIFAR-100",
    "cifar100-efficientnet_lite0": "CIFAR-100, EfficientNet-Lite0",
    "cifar100-vit_ti16": "CIFAR-100, ViT-Ti/16",
    "cifar100-resnet18": "CIFAR-100, ResNet-18 (layer 4 approximate)",
    "clinc150-minilm": "CLINC150, MiniLM",
    "vtab50-efficientnet_lite0": "VTAB-50, EfficientNet-Lite0",
    "vtab50-resnet18": "VTAB-50, ResNet-18 (layer 4 approximate)",
    "vtab50-vit_s14": "VTAB-50, ViT-S/14",
    "vtab50-vit_ti16": "VTAB-50, ViT-Ti/16",
    "har-dsa19": "Activity recognition",
}
"""What readers of tables see instead of the name: the data and the backbone of its features."""
ABLATIONS = frozenset({"labels", "rank", "components", "privacy"})
"""Studies that vary one setting. Their runs stay out of the comparisons of methods."""


@dataclass(frozen=True)
class Seconds:
    """Wall-clock time of one task."""

    client: list[float]
    """Per client, over all rounds."""
    server: float
    extraction: list[float] | None = None
    """Per client: rows times the measured seconds per row of the backbone, where known."""


@dataclass(frozen=True)
class TaskRecord:
    """Cost of one task, measured around the method's calls. Lists have one entry per client."""

    bytes_up: list[int]
    """Over all rounds."""
    bytes_down: list[int]
    seconds: Seconds
    rounds: int = 1
    formula_bytes: int | None = None
    """Bytes of an upload by the formula of the method's paper."""
    peak_rss: int | None = None
    """Largest resident memory of the run's process by the end of this task, in bytes."""
    label_rate: list[float | None] | None = None
    """Share of the rows that have a label; None for a client without rows."""
    accepted: list[float | None] | None = None
    """Share of the unlabelled rows that got a pseudo-label; None for a client without such rows."""
    precision: list[float | None] | None = None
    """Share of correct pseudo-labels; None for a client without pseudo-labels."""


@dataclass(frozen=True)
class Result:
    """Accuracy after each task, bytes, seconds, and everything needed to repeat the run."""

    key: str
    """The method's name in the registry."""
    label: str
    """Name in tables."""
    family: str
    params: dict[str, Any]
    claims: dict[str, bool]
    sends: str
    dataset: str
    stream: dict[str, Any]
    """Settings of the stream: tasks, clients, partitioner, beta, label_rate."""
    seeds: dict[str, int]
    """order, partition, mask, projection."""
    hashes: dict[str, str]
    """stream, features, weights (where known)."""
    acc: list[list[float]]
    """acc[t][j]: accuracy on the classes of task j after task t, in 0 .. 1."""
    test_rows: list[int]
    """Test rows of each task's classes."""
    classes: list[Label]
    """Every class, in the stream's order."""
    tasks: list[TaskRecord]
    bytes_down_final: int
    """What each client downloads after the last task."""
    machine: str
    """System, processor family and, where one was used, the accelerator."""
    date: str
    """Day of the run, ISO 8601."""
    side_by_side: int = 1
    """Runs that shared the machine. Above 1, the seconds are not comparable."""
    study: str = DEFAULT_STUDY
    """What the run was made for, one of ``STUDIES``."""
    config: str = ""
    """The configuration file of the run."""
    arguments: list[str] | None = None
    """What followed ``fedran bench run``: the file and every ``--set``. None: not recorded."""
    drift: list[float] = field(default_factory=list)
    """Feature drift on the reference rows (client 1, task 2), after task 2 and every later one,
    where the extractor is trained; empty where it is frozen."""
    versions: dict[str, str] = field(default_factory=lambda: library_versions())
    schema: int = SCHEMA

    @property
    def run_id(self) -> str:
        """Hash of configuration, stream and code version: equal for repeated runs."""
        return run_id(self.key, self.params, self.seeds, self.hashes, self.versions["fedran"])

    @cached_property
    def A(self) -> list[float]:
        """A_t in percent: accuracy over all test rows of the classes seen after task t."""
        return [
            100.0 * float(np.average(row, weights=self.test_rows[: len(row)])) for row in self.acc
        ]

    @property
    def A_avg(self) -> float:
        """Mean of A_t."""
        return float(np.mean(self.A))

    @property
    def A_T(self) -> float:
        """Accuracy after the last task."""
        return self.A[-1]

    @property
    def max_upload(self) -> int:
        """The paper's communication: the largest upload of any client in any task, bytes."""
        return max(max(t.bytes_up) for t in self.tasks)

    def to_json(self) -> str:
        """One line of JSON. ``run_id``, ``A_avg`` and ``A_T`` are there for readers of the file."""
        shown = {"A_avg": round(self.A_avg, 4), "A_T": round(self.A_T, 4)}
        values = {"run_id": self.run_id, **shown, **asdict(self)}
        return json.dumps(values, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Result:
        """Inverse of ``to_json``; ValueError when the line is not such a result."""
        try:
            values = json.loads(line)
            if values["schema"] != SCHEMA:
                raise ValueError(
                    f"expected results of schema {SCHEMA}, got schema {values['schema']}; run the "
                    "configuration again"
                )
            require_study(values["study"])
            values["tasks"] = [
                TaskRecord(**_known(TaskRecord, {**t, "seconds": Seconds(**t["seconds"])}))
                for t in values["tasks"]
            ]
            return cls(**_known(cls, values))
        except (KeyError, TypeError, AttributeError) as reason:
            raise ValueError(f"not a line of results: {reason}") from None


def dataset_title(name: str) -> str:
    """The title of a known dataset. Others are shown under their own name.

    >>> dataset_title("cifar100-vit_ti16"), dataset_title("my-photos")
    ('CIFAR-100, ViT-Ti/16', 'my-photos')
    """
    return TITLES.get(name, name)


def require_study(name: str) -> None:
    """Refuse a study that does not exist."""
    if name not in STUDIES:
        known = ", ".join(STUDIES)
        raise ValueError(f"study must be one of {known}; got {name!r}{nearest(name, STUDIES)}")


def run_id(
    key: str,
    params: Mapping[str, Any],
    seeds: Mapping[str, int],
    hashes: Mapping[str, str],
    version: str,
) -> str:
    """The id of a run, which is known before the run."""
    parts = [key, dict(params), dict(seeds), dict(hashes), version]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def library_versions() -> dict[str, str]:
    """Versions of the libraries and of this package, with a hash of the code that computes."""
    version = f"{fedran.__version__}+{code_hash()}"
    return {"fedran": version, "numpy": np.__version__, "scipy": scipy.__version__}


@cache
def code_hash() -> str:
    """Hash of the sources of core, wire and methods: other code gives other results."""
    sha = hashlib.sha256()
    library, benchmark = Path(fedran.__file__).parent, Path(__file__).parents[1]
    for room in (library / "core", benchmark / "methods", library / "wire"):
        for path in sorted(room.rglob("*.py")):
            sha.update(f"{path.relative_to(room.parent).as_posix()}\n".encode())
            sha.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return sha.hexdigest()[:8]


def _known(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a class, without those that are computed or that earlier versions had."""
    return {f.name: values[f.name] for f in fields(kind) if f.name in values}


def read_results(paths: Iterable[Path]) -> list[Result]:
    """All results of some JSON Lines files. Of runs repeated on one machine the last counts."""
    found: dict[tuple[str, str, str, str, int], Result] = {}
    for path in paths:
        for result in _parse(path, path.read_text(encoding="utf-8").splitlines()):
            where = (result.machine, result.side_by_side)
            found[(result.config, result.label, result.run_id, *where)] = result
    return list(found.values())


def finished(file: Path, repair: bool = True) -> dict[str, Result]:
    """Results in the file by run id, without a last line that a crash has cut off.

    With ``repair`` that line is also removed from the file.
    """
    if not file.exists():
        return {}
    text = file.read_text(encoding="utf-8")
    whole, _, cut = text.rpartition("\n")
    if cut and repair:
        write_atomically(file, text.removesuffix(cut).encode())
    lines = whole.split("\n") if whole else []
    found = _parse(file, lines, advice="; move the file away to start anew")
    return {result.run_id: result for result in found}


def _parse(path: Path, lines: Sequence[str], advice: str = "") -> Iterator[Result]:
    for number, line in enumerate(lines, 1):
        try:
            yield Result.from_json(line)
        except ValueError as reason:
            raise ValueError(f"{path}, line {number}: {reason}{advice}") from None


def append(file: Path, result: Result) -> None:
    """Append one line and sync the file."""
    line = result.to_json() + "\n"
    with file.open("a", encoding="utf-8") as handle:
        handle.write(line)
        handle.flush()
        os.fsync(handle.fileno())
