"""Runs all jobs of an experiment that are not done yet, and writes every result at once to disk."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fedran.backbones.backbone import torch_device
from fedran.core.errors import MissingExtra
from fedran_bench.results.grouping import counted
from fedran_bench.results.result import Result, append, finished
from fedran_bench.run.config import Experiment
from fedran_bench.run.job import clear_data_cache, jobs
from fedran_bench.run.processes import one_line, run_here, run_in_processes
from fedran_bench.run.progress import PlannedJob, Reporter

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

    @property
    def summary(self) -> str:
        """The numbers in words, where the results are and how to look at them."""
        done = counted(self.done, "run")
        numbers = f"{done} done, {self.skipped} skipped, {len(self.failed)} failed"
        if not self.done + self.skipped:
            return numbers
        look = f"Look at them: fedran bench report {shlex.quote(str(self.file.parent))}"
        return f"{numbers}. Results: {self.file}\n{look}"


def execute(
    experiment: Experiment,
    out: Path,
    reporter: Reporter,
    *,
    device: str | None = None,
    workers: int = 0,
) -> Outcome:
    """Run what is not done yet. Every result is on disk before the next run starts.

    A run that fails is reported and the others continue. ``workers`` processes compute side by
    side. With 0 the runs are done in this process, which then ends if memory runs out, and reacts
    to an interrupt only after the current computation.
    """
    if device is not None:
        if find_spec("torch") is None:
            raise MissingExtra(f"the device {device!r} needs PyTorch", "torch")
        torch_device(device)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out}: expected a folder for the results, found a file")
    out.mkdir(parents=True, exist_ok=True)
    if not os.access(out, os.W_OK):  # found out now, not after the first run
        raise PermissionError(f"{out}: this folder cannot be written; name another one")
    file = _results_file(experiment, out)
    planned, notes = _plan(experiment, device, finished(file))
    for note in notes:
        reporter.note(note)
    todo = [p for p in planned if not p.done]
    skipped = len(planned) - len(todo)
    reporter.begin(todo, skipped)
    failed: list[str] = []
    done = 0

    def fail(run: str, reason: str) -> None:
        failed.append(f"{run}: {reason}")
        reporter.failed(run, reason)

    for impossible in (p for p in todo if p.problem):
        fail(impossible.name, impossible.problem)
    todo = [p for p in todo if not p.problem]
    if workers:  # the peak memory of a new process starts at the size of this one
        clear_data_cache()
    runs = run_in_processes(todo, workers, reporter) if workers else run_here(todo, reporter)
    for job, outcome in runs:
        if isinstance(outcome, Result):
            append(file, outcome)
            reporter.finished(job.name, outcome)
            done += 1
        else:
            fail(job.name, outcome)
    return Outcome(file, done, skipped, tuple(failed))


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
    file = _results_file(experiment, out)
    planned, notes = _plan(experiment, device, finished(file, repair=False))
    lines = []
    for job in planned:
        state = f": cannot run: {job.problem}" if job.problem else ": already done" * job.done
        lines.append(job.name + state)
    return lines + notes, not any(p.problem for p in planned)


def _plan(
    experiment: Experiment, device: str | None, known: dict[str, Result]
) -> tuple[list[PlannedJob], list[str]]:
    """All jobs, and notes on the datasets. ValueError where no job is possible.

    A job is done if its result is ``known``, or if an earlier job is the same run.
    """
    planned: list[PlannedJob] = []
    seen: set[str] = set()
    notes: dict[str, None] = {}  # in their order, each once
    for job in jobs(experiment, device):
        try:
            prepared = job.prepare()
            name = prepared.run_id
            result = known.get(name)
            done = name in seen or (result is not None and result.study == prepared.study)
            planned.append(PlannedJob(job, prepared.steps, done))
        except Exception as error:
            planned.append(PlannedJob(job, problem=one_line(error)))
            continue
        seen.add(name)
        notes[prepared.dataset.note] = None
    if planned and all(p.problem for p in planned):
        raise ValueError(planned[0].problem)  # the others usually have the same reason
    return planned, [note for note in notes if note]
