"""All runs of an experiment that are not done yet; every result is on disk before the next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from fedran.bench.results.result import Result, append, finished
from fedran.bench.run.checkpoint import Checkpoint
from fedran.bench.run.config import Experiment
from fedran.bench.run.job import Job, jobs
from fedran.bench.run.memory import (
    BASE_MEMORY,
    Needs,
    affordable,
    estimated_needs,
    require_fit,
)
from fedran.bench.run.progress import Reporter
from fedran.bench.run.runner import Run
from fedran.bench.run.workers import Planned, run_all, sentence
from fedran.data.stream_file import save_stream
from fedran.methods.analytic.base import OneRound


@dataclass(frozen=True)
class Outcome:
    """What a sweep left behind."""

    file: Path
    done: int
    skipped: int
    failed: tuple[str, ...]


def execute(
    experiment: Experiment,
    out: Path,
    reporter: Reporter,
    *,
    device: str | None = None,
    workers: int = 1,
    streams: Path | None = None,
) -> Outcome:
    """Run what is not done yet; every result is on disk before the next run starts.

    A run that fails is reported and the others go on. ``streams`` is a folder for the streams,
    one file each, so that others can run on the same rows.
    """
    for folder in (out, streams):
        if folder is not None:
            _make_folder(folder)
    file = out / f"{Path(experiment.source).stem or experiment.name}.jsonl"
    known = finished(file)
    todo, impossible, skipped = _plan(jobs(experiment, device), known, file, streams)
    largest = Needs(
        max([BASE_MEMORY, *(p.needs.host for p in todo)]), max([0, *(p.needs.device for p in todo)])
    )
    workers = affordable(workers, largest, device, reporter)
    listed = [(str(p.job), p.job.choice.label, p.steps) for p in todo]
    listed += [(str(job), job.choice.label, 0) for job, _ in impossible]
    reporter.begin(listed, skipped, workers)
    for result in known.values():
        reporter.learn(result)
    failed = [f"{job}: {reason}" for job, reason in impossible]
    for job, reason in impossible:
        reporter.failed(str(job), reason)
    done = 0
    for planned, outcome in run_all(todo, workers, reporter):
        if isinstance(outcome, Result):
            append(file, outcome)
            Checkpoint(planned.checkpoint).remove()
            reporter.finished(str(planned.job), outcome)
            done += 1
        else:
            failed.append(f"{planned.job}: {outcome}")
            reporter.failed(str(planned.job), outcome)
    return Outcome(file, done, skipped, tuple(failed))


def _plan(
    wanted: list[Job], known: dict[str, Result], file: Path, streams: Path | None
) -> tuple[list[Planned], list[tuple[Job, str]], int]:
    """What to run, what cannot be run and why, and how much is done already.

    A finished run that now belongs to another study is written again under that study.
    """
    todo: dict[str, Planned] = {}
    impossible: list[tuple[Job, str]] = []
    skipped = 0
    for job in wanted:
        try:
            prepared = job.prepare()
            name = prepared.run_id
            if name in todo or (name in known and _complete(known[name], prepared)):
                skipped += 1
                if name in known and known[name].study != job.study:
                    known[name] = replace(known[name], study=job.study)
                    append(file, known[name])
            else:
                needs = estimated_needs(prepared)
                require_fit(needs, job.device)
                place = file.parent / "checkpoints" / name
                todo[name] = Planned(job, place, prepared.steps, needs)
        except Exception as reason:
            impossible.append((job, sentence(reason)))
            continue
        if streams is not None:
            _keep(prepared, streams / f"{job.dataset_name}-{prepared.stream.hash[:12]}.json")
    if wanted and len(impossible) == len(wanted):
        raise ValueError(impossible[0][1])  # nothing can run: one reason is enough
    return list(todo.values()), impossible, skipped


def _complete(result: Result, prepared: Run) -> bool:
    """Whether a result of the same run also holds all that is to be measured now."""
    has_gram = getattr(type(prepared.method), "gram", None) is not OneRound.gram
    gram = not (prepared.gram_error and has_gram) or result.tasks[0].gram_error is not None
    timed = prepared.seconds_per_row is not None and prepared.method.input == "features"
    seconds = not timed or result.tasks[0].seconds.extraction is not None
    return gram and seconds and result.budgets == prepared.budgets


def _keep(prepared: Run, path: Path) -> None:
    if not path.exists():
        save_stream(prepared.stream, path)


def _make_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: this is a file; expected a folder for the results")
    folder.mkdir(parents=True, exist_ok=True)
