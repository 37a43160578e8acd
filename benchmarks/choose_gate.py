"""Choose the two constants with which the server's gate judges points, on training rows.

    FEDRAN_DATA=... python benchmarks/choose_gate.py     about ten minutes

Streams as in ``attacks.py``, with other seeds; test rows are never used. ``CLEARLY`` says when a
point is contradicted, and ``ALIKE`` how much honest sites differ. The probabilities that honest
sites get must not be too small. Writes results/gate_constants.md.
"""

from __future__ import annotations

import datetime
import itertools
from collections import defaultdict
from collections.abc import Collection, Sequence
from unittest.mock import patch

from attacks import ROOT, TASKS, Setting, World, called, relabelled, rounds_of, send
from fedran.core.solve import kernel_ridge
from fedran.core.sums.stored_points import Part
from fedran.data.catalogue import dataset_title
from fedran.federation.protocol import limits
from fedran.federation.server.head import gate

STREAMS = {"digits": range(101, 109), "cifar100-vit_ti16": range(101, 102)}
CLEARLY, ALIKE = (1.0, 2.0, 3.0), (8, 16, 32, 64, 128)
ATTACKS = (("", None), ("flip", relabelled()), ("one class", called(False)))
HEAD = """| data | CLEARLY | ALIKE | honest tests | below 0.001 | false alarms | of rounds \
| flips found | one class found |
|---|---:|---:|---:|---:|---:|---:|---:|---:|"""


def chances(said: gate.Opinions, silent: Collection[Part], alike: int) -> dict[Part, float]:
    """The probability of each test, times the number of tests of the round."""
    with patch.object(gate, "ALIKE", alike):
        tests = gate._tests(said, silent)
        return {t.part: t.chance * len(tests) for t in tests}


def rows_of(name: str, seeds: Sequence[int]) -> list[str]:
    """The rows of the table about some streams."""
    honest: dict[tuple[float, int], list[float]] = defaultdict(list)
    rounds: dict[tuple[float, int], int] = defaultdict(int)
    found: dict[tuple[str, float, int], list[bool]] = defaultdict(list)
    for seed, beta, noise, (attack, forge) in itertools.product(
        seeds, (0.1, 0.5), (0.0, 0.1), ATTACKS
    ):
        if noise and attack:
            continue
        setting = Setting(name, beta, 5, noise, seed=seed)
        world, judged = World(setting), rounds_of(setting)
        silent = {("site-5", None)} if attack else set()
        with world.store() as store:
            for task in range(TASKS[name]):
                send(world, store, task, forge, [4] if attack else [])
                if task not in judged[-1:] if attack else task not in judged:
                    continue
                for clearly in CLEARLY:
                    with patch.object(kernel_ridge, "CLEARLY", clearly):
                        said = store.what_others_say(silent)
                    for alike in ALIKE:
                        told, key = chances(said, silent, alike), (clearly, alike)
                        if attack:
                            mine = [p for (site, _), p in told.items() if site == "site-5"]
                            found[attack, *key].append(min(mine, default=1.0) < limits.FALSE_ALARMS)
                        else:
                            honest[key] += [p / len(told) for p in told.values()]
                            rounds[key] += min(told.values(), default=1.0) < limits.FALSE_ALARMS
    lines = []
    for key, values in honest.items():
        low = sum(p < 0.001 for p in values) / len(values)
        liars = [f"{sum(f)} of {len(f)}" for f in (found["flip", *key], found["one class", *key])]
        lines.append(
            f"| {dataset_title(name)} | {key[0]:g} | {key[1]} | {len(values)} | {low:.5f} | "
            f"{rounds[key]} | {4 * len(seeds) * len(judged)} | {' | '.join(liars)} |"
        )
    return lines


def main() -> None:
    """Measure, and write the page."""
    lines = [line for name, seeds in STREAMS.items() for line in rows_of(name, seeds)]
    page = f"""# How the gate judges points: two constants

Made by `python benchmarks/choose_gate.py` on {datetime.date.today()}, on training rows of streams
that are reported nowhere else: five sites, beta 0.1 and 0.5, honest ones also with 10 % label
noise.

- Below 0.001: share of the tests of honest sites with a probability below 0.001.
- False alarms: honest rounds with a test beyond chance.
- Found: liars with a test beyond chance, after the last task.

The probabilities are right if about 0.001 of them, or fewer, are below 0.001. Of the values for
which that holds, those in use find most liars.

`CLEARLY` = {kernel_ridge.CLEARLY:g} and `ALIKE` = {limits.ALIKE} are in use.

{HEAD}
{chr(10).join(lines)}
"""
    (ROOT / "results" / "gate_constants.md").write_text(page)


if __name__ == "__main__":
    main()
