"""Runs all jobs of an experiment that are not done yet, and writes every result at once to disk."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fedran.backbones.backbone import torch_device
from fedran.core.errors import MissingExtra
from fedran_bench.results.result import Result, append, finished
from fedran_bench.run.config import Experiment
from fedran_bench.run.job import Job, clear_data_cache, jobs
from fedran_bench.run.processes import one_line, run_here, run_in_processes
from fedran_bench.run.progress import Reporter


@dataclass(frozen=True)
class Outcome:
    """The results file of a sweep, and how many runs were done, skipped, or failed and why."""

    file: Path
    done: int
    skipped: int
    failed: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Every job of an experiment, and what is known before any of them runs."""

    todo: list[Job]
    done: list[Job]
    """Those whose result exists already, or that are the same run as an earlier job."""
    impossible: dict[Job, str]
    """Those that cannot run, and why."""
    notes: list[str]
    """On the datasets, each once."""

    @classmethod
    def of(cls, experiment: Experiment, device: str | None, known: dict[str, Result]) -> Plan:
        """The plan beside the ``known`` results. ValueError where no job is possible.

        Data is opened and every stream is made, so that a missing file or an impossible split is
        found here.
        """
        plan, seen, notes = cls([], [], {}, []), set[str](), dict[str, None]()
        for job in jobs(experiment, device):
            try:
                prepared = job.prepare()
                name = prepared.run_id
                result = known.get(name)
                again = name in seen or (result is not None and result.study == prepared.study)
            except Exception as error:
                plan.impossible[job] = one_line(error)
                continue
            (plan.done if again else plan.todo).append(job)
            seen.add(name)
            notes[prepared.dataset.note] = None
        if not plan.todo and not plan.done:
            raise ValueError(next(iter(plan.impossible.values())))  # usually all have this reason
        plan.notes.extend(note for note in notes if note)
        return plan


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
    plan = Plan.of(experiment, device, finished(file))
    for note in plan.notes:
        reporter.note(note)
    reporter.begin([*plan.impossible, *plan.todo], len(plan.done))
    failed: list[str] = []

    def fail(job: Job, reason: str) -> None:
        failed.append(f"{job}: {reason}")
        reporter.failed(job, reason)

    for job, reason in plan.impossible.items():
        fail(job, reason)
    if workers:
        clear_data_cache()  # the peak memory of a new process starts at the size of this one
        runs = run_in_processes(plan.todo, workers, reporter)
    else:
        runs = run_here(plan.todo, reporter)
    done = 0
    for job, outcome in runs:
        if isinstance(outcome, Result):
            append(file, outcome)
            reporter.finished(job, outcome)
            done += 1
        else:
            fail(job, outcome)
    return Outcome(file, done, len(plan.done), tuple(failed))


def list_runs(
    experiment: Experiment, out: Path, device: str | None = None
) -> tuple[list[str], bool]:
    """One line per run, and notes on the datasets; and whether all runs are possible.

    Nothing runs. ValueError where no run is possible.
    """
    plan = Plan.of(experiment, device, finished(_results_file(experiment, out), repair=False))
    lines = [
        *map(str, plan.todo),
        *(f"{job}: already done" for job in plan.done),
        *(f"{job}: cannot run: {reason}" for job, reason in plan.impossible.items()),
    ]
    return lines + plan.notes, not plan.impossible


def _results_file(experiment: Experiment, out: Path) -> Path:
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", experiment.name).strip("-.")[:80]
    return out / f"{Path(experiment.source).stem or words or 'results'}.jsonl"
