"""Runs all jobs of an experiment that are not done yet, and writes every result at once to disk."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from fedran.backbones.backbone import torch_device
from fedran.bench.results.grouping import counted
from fedran.bench.results.result import Result, append, finished
from fedran.bench.run.checkpoint import Checkpoint
from fedran.bench.run.config import Experiment
from fedran.bench.run.job import Job, clear_data_cache, jobs
from fedran.bench.run.memory import (
    BASE_MEMORY,
    Needs,
    estimate_needs,
    require_fit,
    workers_that_fit,
)
from fedran.bench.run.progress import PlannedJob, Reporter
from fedran.bench.run.runner import PreparedJob
from fedran.bench.run.tracking import make_tracker
from fedran.bench.run.workers import one_line, run_here, run_in_processes
from fedran.core.errors import MissingExtra
from fedran.data.stream_file import save_stream
from fedran.methods.base import BaseMethod
from fedran.wire.sizes import larger_than_rows

DEFAULT_OUT = Path("runs")
"""Default folder of the results."""
HOW_TO_CONTINUE = "the same command continues from here"
"""Told to the user after an interrupt."""


@dataclass(frozen=True)
class Outcome:
    """The results file of a sweep, and how many runs were done, skipped, or failed and why."""

    file: Path
    done: int
    skipped: int
    failed: tuple[str, ...]
    remark: str = ""
    """What the user should know about the size of the uploads."""

    @property
    def summary(self) -> str:
        """The numbers in words, where the results are and how to look at them."""
        done = counted(self.done, "run")
        numbers = f"{done} done, {self.skipped} skipped, {len(self.failed)} failed"
        if not self.done + self.skipped:
            return numbers
        lines = [f"{numbers}. Results: {self.file}", self.remark]
        lines.append(f"Look at them: fedran report {shlex.quote(str(self.file.parent))}")
        return "\n".join(line for line in lines if line)


def execute(
    experiment: Experiment,
    out: Path,
    reporter: Reporter,
    *,
    device: str | None = None,
    workers: int = 0,
    streams: Path | None = None,
    trackers: Sequence[str] = (),
) -> Outcome:
    """Run what is not done yet. Every result is on disk before the next run starts.

    A run that fails is reported and the others continue. ``workers`` processes compute side by
    side. With 0 the runs are done in this process, which then ends if memory runs out, and reacts
    to an interrupt only after the current computation. Each stream is written to a file in the
    folder ``streams``, so that others can run on the same rows. ``trackers`` are names of
    ``TRACKERS`` or classes as ``module:Class``.
    """
    if device is not None:
        if find_spec("torch") is None:
            raise MissingExtra(f"the device {device!r} needs PyTorch", "torch")
        torch_device(device)
    for folder in (out, streams):
        if folder is not None and folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder}: expected a folder for the results, found a file")
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):  # found out now, not after the first run
                raise PermissionError(f"{folder}: this folder cannot be written; name another one")
    file = _results_file(experiment, out)
    reporter.trackers = [make_tracker(name, out) for name in trackers]
    try:
        known = finished(file)
        planned, skipped, notes = _plan(jobs(experiment, device), known, file, streams)
        for note in notes:
            reporter.note(note)
        todo = [p for p in planned if not p.problem]
        needs = [Needs(BASE_MEMORY), *(p.needs for p in todo if p.needs)]
        largest = Needs(max(n.host for n in needs), max(n.device for n in needs))
        workers = workers_that_fit(workers, largest, device, reporter.note)
        reporter.begin(planned, skipped, workers)
        for result in known.values():
            reporter.learn(result)
        failed = []
        for impossible in (p for p in planned if p.problem):
            failed.append(f"{impossible.name}: {impossible.problem}")
            reporter.failed(impossible.name, impossible.problem)
        done, remark = 0, ""
        if workers:
            # Workers load their own data, and their peak memory starts at the size of this process.
            clear_data_cache()
        runs = run_in_processes(todo, workers, reporter) if workers else run_here(todo, reporter)
        for job, outcome in runs:
            if isinstance(outcome, Result):
                append(file, outcome)
                Checkpoint(job.checkpoint).remove()
                reporter.finished(job.name, outcome)
                done += 1
                remark = remark or _size_remark(outcome, job)
            else:
                failed.append(f"{job.name}: {outcome}")
                reporter.failed(job.name, outcome)
        return Outcome(file, done, skipped, tuple(failed), remark)
    finally:
        reporter.tell_trackers("close")


def _results_file(experiment: Experiment, out: Path) -> Path:
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", experiment.name).strip("-.")[:80]
    return out / f"{Path(experiment.source).stem or words or 'results'}.jsonl"


def list_runs(
    experiment: Experiment, out: Path, device: str | None = None
) -> tuple[list[str], bool]:
    """One line per run, and notes on the datasets; and whether all runs are possible.

    Nothing runs. Data is opened and every stream is made, so that a missing file or an impossible
    split is found here. ValueError where no run is possible.
    """
    planned, lines = [], []
    notes: dict[str, None] = {}
    known = finished(_results_file(experiment, out), repair=False)
    for job in jobs(experiment, device):
        try:
            prepared = job.prepare()
            notes[prepared.dataset.note] = None
            planned.append(PlannedJob(job))
            done = _complete(known.get(prepared.run_id), prepared)
            lines.append(planned[-1].name + (": already done" if done else ""))
        except Exception as error:
            planned.append(PlannedJob(job, problem=one_line(error)))
            lines.append(f"{planned[-1].name}: cannot run: {planned[-1].problem}")
    _require_one(planned)
    lines += [note for note in notes if note]
    return lines, not any(p.problem for p in planned)


def _plan(
    wanted: Sequence[Job], known: dict[str, Result], file: Path, streams: Path | None
) -> tuple[list[PlannedJob], int, list[str]]:
    """The jobs that are not done yet, the number of those that are, and notes on the datasets.

    A finished run that now belongs to another study is written again under that study.
    """
    planned: dict[str, PlannedJob] = {}
    skipped = 0
    notes: dict[str, None] = {}  # in their order, each once
    for job in wanted:
        try:
            prepared = job.prepare()
            notes[prepared.dataset.note] = None
            name = prepared.run_id
            if name in planned or _complete(known.get(name), prepared):
                skipped += 1
                if name in known and known[name].study != prepared.study:
                    known[name] = replace(known[name], study=prepared.study)
                    append(file, known[name])
            else:
                needs = estimate_needs(prepared)
                require_fit(needs, job.device)
                checkpoint = file.parent / "checkpoints" / name
                planned[name] = PlannedJob(
                    job, prepared.steps, checkpoint, needs, row_shape=prepared.row_shape
                )
        except Exception as error:
            planned[str(job)] = PlannedJob(job, problem=one_line(error))
            continue
        if streams is not None:
            path = streams / f"{job.dataset_name}-{prepared.stream.hash[:12]}.json"
            if not path.exists():
                save_stream(prepared.stream, path)
    if not skipped:
        _require_one(list(planned.values()))
    return list(planned.values()), skipped, [note for note in notes if note]


def _require_one(planned: Sequence[PlannedJob]) -> None:
    if planned and all(p.problem for p in planned):
        raise ValueError(planned[0].problem)  # the others usually have the same reason


def _complete(result: Result | None, prepared: PreparedJob) -> bool:
    """Whether there is a result of the run that holds everything that is to be measured now."""
    if result is None:
        return False
    has_gram = getattr(type(prepared.method), "gram", None) is not BaseMethod.gram
    gram = not (prepared.gram_error and has_gram) or result.tasks[0].gram_error is not None
    timed = prepared.seconds_per_row is not None and prepared.method.input == "features"
    seconds = not timed or result.tasks[0].seconds.extraction is not None
    return gram and seconds and result.budgets == prepared.budgets


def _size_remark(result: Result, job: PlannedJob) -> str:
    """A sentence if all uploads of a method with a rank exceed the features of all rows."""
    if "rank" not in result.params or job.row_shape is None:
        return ""
    text = larger_than_rows(sum(sum(t.bytes_up) for t in result.tasks), *job.row_shape)
    return text and f"{result.label}: {text}."
