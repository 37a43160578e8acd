"""Results of the ablations, arranged by what they vary: label rate, rank and width, components."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedran.bench.results.grouping import (
    Group,
    Setting,
    by_setting_and_beta,
    comparisons,
    groups,
    identity,
    setting_title,
)
from fedran.bench.results.result import Result
from fedran.data.catalogue import dataset_title

LABEL_KEYS = {
    "fedran": "labelled only",
    "fedran-prototype": "prototype pseudo-labels",
    "fedran-margin": "margin pseudo-labels",
}
FEATURES = {
    "raw": "raw features",
    "linear": "linear projection",
    "relu": "ReLU",
    "cosine": "cosine, GELU",
    "hellinger": "Hellinger, GELU",
}
LOW_RANK = "low rank"


@dataclass(frozen=True)
class LabelStudy:
    """Accuracy over the label rate: ``lines[variant][rate]``."""

    title: str
    dataset: str
    beta: float | None
    lines: dict[str, dict[float, Group]]


@dataclass(frozen=True)
class RankStudy:
    """One method over rank and width: ``lines[M][rank]``."""

    title: str
    setting: Setting
    beta: float | None
    lines: dict[int, dict[int, Group]]


@dataclass(frozen=True)
class ComponentStudy:
    """Components added one after the other at several ridge parameters: ``bars[step][lam]``."""

    title: str
    dataset: str
    bars: dict[tuple[str, str], dict[str, Group]]
    """A step is a component as in ``paper.COMPONENTS`` and its description."""

    @property
    def backbones(self) -> str:
        """Which figures come from which backbone."""
        ours = dataset_title(self.dataset)
        return (
            f"Ours: {ours}, frozen. Printed: ViT-B/16, fine-tuned in task 0, 10 tasks, β = 1. The "
            "backbones differ, so only the steps between components can be compared."
        )

    @property
    def lams(self) -> list[str]:
        """The ridge parameters in order of appearance."""
        return list(dict.fromkeys(lam for row in self.bars.values() for lam in row))


def label_studies(results: Sequence[Result]) -> list[LabelStudy]:
    """Variants with missing labels or at several label rates, by setting and beta."""
    pool = [r for r in results if r.key in LABEL_KEYS and r.study not in {"rank", "components"}]
    cases: dict[tuple[Setting, float | None], dict[str, dict[float, Group]]] = {}
    for g in groups(pool):
        case = (replace(g.setting, label_rate=1.0), g.beta)
        line = cases.setdefault(case, {}).setdefault(identity(g.first), {})
        line[g.setting.label_rate] = g
    studies = []
    for (setting, beta), variants in cases.items():
        lines = [
            dict(sorted(line.items()))
            for line in variants.values()
            if len(line) > 1 or min(line) < 1
        ]
        firsts = [next(iter(line.values())) for line in lines]
        keys = [g.key for g in firsts]
        # Two variants with the same description are distinguished by their names.
        names = [LABEL_KEYS[g.key] if keys.count(g.key) == 1 else g.name for g in firsts]
        if lines:
            named = dict(zip(names, lines, strict=True))
            studies.append(LabelStudy(setting_title(setting, beta), setting.dataset, beta, named))
    return studies


def rank_studies(results: Sequence[Result]) -> list[RankStudy]:
    """FedRAN and the paper's FedRAN where they were run at several ranks of one width."""
    methods = ("fedran", "fedran-paper")
    pool = _of_study("rank", results, [r for r in results if r.key in methods])
    studies = []
    for (setting, beta), found in by_setting_and_beta(groups(pool)).items():
        for key in methods:
            members = [
                g
                for g in found
                if g.key == key
                and all(isinstance(g.params.get(k), int) for k in ("rank", "out_features"))
            ]
            for name, variant in _variants(members).items():
                lines: dict[int, dict[int, Group]] = {}
                for g in sorted(variant, key=_width_and_rank):
                    width, rank = _width_and_rank(g)
                    lines.setdefault(width, {})[rank] = g
                if any(len(line) > 1 for line in lines.values()):
                    title = f"{name}; {setting_title(setting, beta)}"
                    studies.append(RankStudy(title, setting, beta, lines))
    return studies


def _width_and_rank(g: Group) -> tuple[int, int]:
    return g.params["out_features"], g.params["rank"]


def _variants(members: Sequence[Group]) -> dict[str, list[Group]]:
    """One variant, unless two groups have the same width and rank."""
    if len({_width_and_rank(g) for g in members}) == len(members):
        labels = {g.first.label for g in members}
        name = labels.pop() if len(labels) == 1 else (members[0].key if members else "")
        return {name: list(members)}
    variants: dict[str, list[Group]] = {}
    for g in members:
        rest = {k: v for k, v in g.params.items() if k not in {"rank", "out_features"}}
        variants.setdefault(f"{g.key} {json.dumps(rest, sort_keys=True)}", []).append(g)
    return variants


def component_studies(results: Sequence[Result]) -> list[ComponentStudy]:
    """Settings in which the exact Gram matrix was computed on several kinds of features."""
    pool = _of_study("components", results, [r for r in results if "features" in r.params])
    studies = []
    for (setting, beta), found in by_setting_and_beta(groups(pool)).items():
        bars: dict[tuple[str, str], dict[str, Group]] = {}
        for g in sorted(filter(_component, found), key=_step_order):
            component, lam = _component(g), g.params.get("lam")
            description = FEATURES.get(component, component)
            if component != "raw" and g.params.get("out_features"):
                description += f", M = {g.params['out_features']}"
            if component == LOW_RANK:
                description += f", r = {g.params.get('rank')}"
            ridge = "λ by FedRAN's rule" if lam is None else f"λ = {float(lam):g}"
            bars.setdefault((component, description), {})[ridge] = g
        if len({component for component, _ in bars} - {LOW_RANK}) > 1:
            studies.append(ComponentStudy(setting_title(setting, beta), setting.dataset, bars))
    return studies


def _component(g: Group) -> str:
    """The component that a run adds last; empty for a run that belongs to no step."""
    features = str(g.params.get("features"))
    component = str(g.params.get("kind")) if features == "random" else features
    if g.key == "exact" and component in FEATURES:
        return component
    return LOW_RANK if g.key == "fedran" else ""


def _step_order(g: Group) -> tuple[int, int, float]:
    """By component, then by width, then by ridge parameter."""
    lam = g.params.get("lam")
    width = g.params.get("out_features") or 0
    return [*FEATURES, LOW_RANK].index(_component(g)), width, -1.0 if lam is None else float(lam)


def _of_study(name: str, results: Sequence[Result], otherwise: list[Result]) -> list[Result]:
    """The runs of a study; if there are none, those of the comparisons."""
    return [r for r in results if r.study == name] or comparisons(otherwise)
