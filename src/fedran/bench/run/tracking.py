"""Experiment trackers: they are told when a run starts, after every task, and when it ends."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedran.bench.results.result import Result
from fedran.core.errors import MissingExtra, nearest
from fedran.methods.registry import import_class
from fedran.wire.sizes import human_bytes


@dataclass(frozen=True)
class TaskDone:
    """The figures of a task right after it was tested."""

    task: int
    """From 1 to ``tasks``."""
    tasks: int
    accuracy: float
    """A_t: accuracy over all classes seen so far, in percent."""
    upload: int
    """The largest upload of a client in this task, bytes."""
    seconds: float
    """Mean client plus server."""

    def __str__(self) -> str:
        return (
            f"task {self.task} of {self.tasks}: accuracy {self.accuracy:.2f}, "
            f"upload {human_bytes(self.upload)}, {self.seconds:.3g} s"
        )


class Tracker:
    """Base class of trackers. Override what is needed; every call does nothing by default.

    ``folder`` is the folder of the results. ``run`` is the name of a run: method, settings, dataset
    and stream in one line. All calls come from one thread of the main process, also when several
    runs compute side by side, and the calls of such runs alternate. A run that continues after an
    interruption starts again and reports only the tasks that were left.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, run: str, settings: Mapping[str, Any]) -> None:
        """A run begins; ``settings`` holds plain values: method, label, dataset, params, stream."""

    def task_done(self, run: str, done: TaskDone) -> None:
        """A task was tested."""

    def finished(self, run: str, result: Result) -> None:
        """The run is over and its result is on disk."""

    def failed(self, run: str, reason: str) -> None:
        """The run failed or could not start."""

    def close(self) -> None:
        """All runs are over."""


class CsvTracker(Tracker):
    """Appends one line per task to ``tasks.csv`` in the folder of the results."""

    COLUMNS = ("run", "method", "dataset", "task", "tasks", "accuracy", "upload", "seconds")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / "tasks.csv"
        self.settings: dict[str, Mapping[str, Any]] = {}

    def start(self, run: str, settings: Mapping[str, Any]) -> None:
        """Remember method and dataset."""
        self.settings[run] = settings

    def task_done(self, run: str, done: TaskDone) -> None:
        """Write the line, below a heading if the file is new."""
        known = self.settings.get(run, {})
        new = not self.file.exists()
        with self.file.open("a", encoding="utf-8", newline="") as out:
            writer = csv.writer(out)
            if new:
                writer.writerow(self.COLUMNS)
            figures = (done.task, done.tasks, f"{done.accuracy:.4f}", done.upload, done.seconds)
            writer.writerow([run, known.get("method"), known.get("dataset"), *figures])


class TensorBoardTracker(Tracker):
    """Writes accuracy, upload and seconds per task to ``tensorboard/RUN`` below the results."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise MissingExtra("TensorBoard files need tensorboardX", "tensorboard") from None
        self.make_writer = SummaryWriter
        self.writers: dict[str, Any] = {}

    def start(self, run: str, settings: Mapping[str, Any]) -> None:
        """Open a folder for the run and note its settings there."""
        words = re.sub(r"[^A-Za-z0-9._-]+", "-", run).strip("-.")[:150]
        self.writers[run] = self.make_writer(str(self.folder / "tensorboard" / words))
        self.writers[run].add_text("settings", json.dumps(settings, indent=2, default=str))

    def task_done(self, run: str, done: TaskDone) -> None:
        """Three points at step ``task``."""
        for name in ("accuracy", "upload", "seconds"):
            self.writers[run].add_scalar(name, getattr(done, name), done.task)
        self.writers[run].flush()

    def finished(self, run: str, result: Result) -> None:
        """Close the run's files."""
        self.writers[run].add_scalar("A_avg", result.A_avg, len(result.acc))
        self.writers.pop(run).close()

    def close(self) -> None:
        """Close the files of runs that did not finish."""
        for writer in self.writers.values():
            writer.close()


TRACKERS: dict[str, type[Tracker]] = {"csv": CsvTracker, "tensorboard": TensorBoardTracker}


def make_tracker(name: str, folder: Path) -> Tracker:
    """A tracker by name, or ``module:Class`` from the Python path or the current folder."""
    if name in TRACKERS:
        return TRACKERS[name](folder)
    if ":" not in name:
        known = ", ".join(TRACKERS)
        raise ValueError(
            f"no tracker {name!r}{nearest(name, TRACKERS)}; expected {known} or module:Class"
        )
    found = import_class(name, f"tracker {name!r}")
    if not issubclass(found, Tracker):
        raise ValueError(f"tracker {name!r}: {found.__name__} must be a subclass of Tracker")
    tracker: Tracker = found(folder)
    return tracker
