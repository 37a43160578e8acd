"""``python -m fedran.bench.run CONFIG.toml``: experiments on machines without typer and rich."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedran.bench.run.config import load_or_quick
from fedran.bench.run.progress import PlainReporter
from fedran.bench.run.sweep import DEFAULT_OUT, HOW_TO_CONTINUE, execute, list_runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when all runs are done, 1 when some failed, 2 for a wrong configuration."""
    parser = argparse.ArgumentParser(
        prog="python -m fedran.bench.run",
        description="Run an experiment or a sweep. Runs that are already done are skipped.",
    )
    parser.add_argument(
        "config", type=Path, nargs="?", help="configuration of the experiment (.toml)"
    )
    for name in ("method", "dataset"):
        parser.add_argument(
            f"--{name}", action="append", default=[], help=f"without a file: a {name} of the runs"
        )
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder for the results")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="change a setting: stream.beta=0.5, method.rank=64, methods=afl",
    )
    parser.add_argument("--device", help="accelerator for methods that can use one, e.g. cuda")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--streams", type=Path, help="folder to which the streams are written")
    parser.add_argument(
        "--track", action="append", default=[], help="csv, tensorboard or module:Class"
    )
    parser.add_argument("--dry-run", action="store_true", help="open the data and list the runs")
    options = parser.parse_args(arguments)
    try:
        if options.jobs < 1:
            raise ValueError(f"--jobs must be at least 1, got {options.jobs}")
        experiment = load_or_quick(
            options.config, options.method, options.dataset, options.overrides
        )
        if options.dry_run:
            lines, possible = list_runs(experiment, options.out, options.device)
            print("\n".join(lines))
            return 0 if possible else 1
        outcome = execute(
            experiment,
            options.out,
            PlainReporter(),
            device=options.device,
            workers=options.jobs,
            streams=options.streams,
            trackers=options.track,
        )
    except KeyboardInterrupt:
        print(f"fedran: stopped; {HOW_TO_CONTINUE}", file=sys.stderr)
        return 130
    except (ValueError, OSError) as reason:
        print(f"fedran: {' '.join(str(reason).split())}", file=sys.stderr)
        return 2
    print(outcome.summary)
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main())
