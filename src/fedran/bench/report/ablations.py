"""Results of the ablations, arranged by what they vary: label rate, rank and width, components."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedran.bench.results.grouping import (
    Group,
    Setting,
    by_place,
    comparisons,
    groups,
    identity,
    place_title,
)
from fedran.bench.results.result import Result

LABEL_KEYS = {
    "fedran": "labelled only",
    "fedran-prototype": "prototype proxy labels",
    "fedran-margin": "margin proxy labels",
}
FEATURES = {"raw": "raw features", "linear": "linear projection", "relu": "ReLU"}
LOW_RANK = "low rank"


@dataclass(frozen=True)
class LabelStudy:
    """Accuracy over the label rate: for each variant its groups, by rate."""

    title: str
    dataset: str
    beta: float | None
    lines: dict[str, dict[float, Group]]


@dataclass(frozen=True)
class RankStudy:
    """One method over rank, a line for each width: lines[M][rank]."""

    title: str
    method: str
    key: str
    setting: Setting
    beta: float | None
    lines: dict[int, dict[int, Group]]


@dataclass(frozen=True)
class ComponentStudy:
    """Components added one after the other, for each ridge parameter: bars[step][lam]."""

    title: str
    setting: Setting
    beta: float | None
    bars: dict[tuple[str, str], dict[str, Group]]
    """Steps are (component as in ``paper.COMPONENTS``, its description)."""

    @property
    def lams(self) -> list[str]:
        """The ridge parameters, in order of appearance."""
        return list(dict.fromkeys(lam for row in self.bars.values() for lam in row))


def label_studies(results: Sequence[Result]) -> list[LabelStudy]:
    """Where the same variant was run at two label rates or more, or where labels are missing."""
    pool = [r for r in results if r.key in LABEL_KEYS and r.study not in {"rank", "components"}]
    found: dict[tuple[Setting, float | None], dict[str, dict[float, Group]]] = {}
    for g in groups(pool):
        place = (replace(g.setting, label_rate=1.0), g.beta)
        line = found.setdefault(place, {}).setdefault(identity(g.first), {})
        line[g.setting.label_rate] = g
    studies = []
    for (frame, beta), lines in found.items():
        kept = [
            dict(sorted(line.items())) for line in lines.values() if len(line) > 1 or min(line) < 1
        ]
        if kept:
            title = place_title(frame, beta)
            studies.append(LabelStudy(title, frame.dataset, beta, _titled(kept)))
    return studies


def _titled(lines: list[dict[float, Group]]) -> dict[str, dict[float, Group]]:
    """Variants by what they do; by name where two would read the same."""
    keys = [next(iter(line.values())).key for line in lines]
    return {
        LABEL_KEYS[key] if keys.count(key) == 1 else next(iter(line.values())).name: line
        for key, line in zip(keys, lines, strict=True)
    }


def rank_studies(results: Sequence[Result]) -> list[RankStudy]:
    """Where FedRAN or the paper's FedRAN was run at two ranks or more of one width."""
    pool = _of_study("rank", results, [r for r in results if r.key in {"fedran", "fedran-paper"}])
    studies = []
    for (setting, beta), found in by_place(groups(pool)).items():
        for key in ("fedran", "fedran-paper"):
            members = [g for g in found if g.key == key and _is_ranked(g)]
            for method, own in _variants(members).items():
                lines: dict[int, dict[int, Group]] = {}
                for g in sorted(own, key=lambda g: (g.params["out_features"], g.params["rank"])):
                    lines.setdefault(g.params["out_features"], {})[g.params["rank"]] = g
                if any(len(line) > 1 for line in lines.values()):
                    title = f"{method}; {place_title(setting, beta)}"
                    studies.append(RankStudy(title, method, key, setting, beta, lines))
    return studies


def _is_ranked(g: Group) -> bool:
    return all(isinstance(g.params.get(k), int) for k in ("rank", "out_features"))


def _variants(members: list[Group]) -> dict[str, list[Group]]:
    """One variant, unless two groups claim the same width and rank."""
    cells = [(g.params["out_features"], g.params["rank"]) for g in members]
    if len(set(cells)) == len(cells):
        labels = {g.first.label for g in members}
        name = labels.pop() if len(labels) == 1 else (members[0].key if members else "")
        return {name: members}
    variants: dict[str, list[Group]] = {}
    for g in members:
        rest = {k: v for k, v in g.params.items() if k not in {"rank", "out_features"}}
        variants.setdefault(f"{g.key} {json.dumps(rest, sort_keys=True)}", []).append(g)
    return variants


def component_studies(results: Sequence[Result]) -> list[ComponentStudy]:
    """Where the exact Gram was run on two kinds of features or more."""
    pool = _of_study("components", results, [r for r in results if "features" in r.params])
    studies = []
    for (setting, beta), found in by_place(groups(pool)).items():
        bars: dict[tuple[str, str], dict[str, Group]] = {}
        for g in sorted(found, key=_step_order):
            step = _step(g)
            if step:
                bars.setdefault(step, {})[_lam(g)] = g
        if len({component for component, _ in bars} - {LOW_RANK}) > 1:
            studies.append(ComponentStudy(place_title(setting, beta), setting, beta, bars))
    return studies


def _of_study(name: str, results: Sequence[Result], otherwise: list[Result]) -> list[Result]:
    """The runs of a study; where there are none, those of any comparison."""
    own = [r for r in results if r.study == name]
    return own or comparisons(otherwise)


def _step(g: Group) -> tuple[str, str] | None:
    width = f", M = {g.params['out_features']}" if g.params.get("out_features") else ""
    if g.key == "exact" and g.params.get("features") in FEATURES:
        kind = str(g.params["features"])
        return kind, FEATURES[kind] + ("" if kind == "raw" else width)
    if g.key == "fedran":
        return LOW_RANK, f"{LOW_RANK}{width}, r = {g.params.get('rank')}"
    return None


def _step_order(g: Group) -> tuple[int, int, float]:
    kinds = [*FEATURES, LOW_RANK]
    kind = LOW_RANK if g.key == "fedran" else g.params.get("features")
    lam = g.params.get("lam")
    place = kinds.index(kind) if kind in kinds else len(kinds)
    return place, g.params.get("out_features") or 0, -1.0 if lam is None else float(lam)


def _lam(g: Group) -> str:
    lam = g.params.get("lam")
    return "λ by our rule" if lam is None else f"λ = {float(lam):g}"
