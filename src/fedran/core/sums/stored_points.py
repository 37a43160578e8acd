"""What an aggregator of points holds: the messages themselves, and the head they give.

Messages are put in the order of client and task before a solve, so that a head does not depend on
the order in which they arrived. Leaving a message out is a solve without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Int64, to_device
from fedran.core.errors import Refused, positive_integer, real_number
from fedran.core.fingerprint import Fingerprint
from fedran.core.labels import Label, ordered, recode
from fedran.core.points import Points, join
from fedran.core.solve.head import Head, make_kernel_head
from fedran.core.solve.kernel_ridge import Labelled, others_say, solve_points
from fedran.core.solve.ridge import Ridge

Key: TypeAlias = tuple[str, str]
"""(client, task)."""
Part: TypeAlias = tuple[str, Label | None]
"""All rows of a client, or (client, label) those with one label."""
ClassWeight: TypeAlias = Mapping[Label, float] | Literal["balanced"] | None


class Opinion(NamedTuple):
    """What all other clients say about the rows of a client with one label."""

    rows: int
    asked: int
    """Points of these rows, which are what the others are asked about."""
    wrong: int
    """Points that the others contradict: they are clearly surer of another label."""
    vouched: int
    """The most rows with this label at one other client, of points that all others confirm."""


class StoredPoints:
    """Points of clients and tasks.

    ``dtype`` is that of the kernel of all points where these are the support; with landmarks it is
    float64. Points are moved to ``device`` for a solve.
    """

    def __init__(self, dtype: str = "float32", device: str | None = None) -> None:
        self.dtype, self.device = dtype, device
        self.messages: dict[Key, Points] = {}
        self._labels: set[Label] = set()
        self._width: int | None = None

    def add(self, key: Key, points: Points) -> None:
        """Keep the points of a client and task."""
        self.messages[key] = points.to(None)
        if points.classes:
            self._labels.update(points.classes)
            self._width = points.in_features

    @property
    def classes(self) -> tuple[Label, ...]:
        """All labels, in canonical order."""
        return ordered(self._labels)

    @property
    def counts(self) -> dict[Label, int]:
        """Rows per class."""
        total = dict.fromkeys(self.classes, 0)
        for points in self.messages.values():
            for label, n in points.rows_per_class().items():
                total[label] += n
        return total

    def check_width(self, width: int) -> None:
        """Refuse points of another width than those that are held."""
        if self._width not in (None, width):
            raise Refused("means", f"{self._width} columns", width)

    def solve(
        self,
        ridge: float | Ridge | None,
        fingerprint: Fingerprint | None,
        *,
        landmarks: int | None,
        class_weight: ClassWeight = None,
        without: Collection[Key] = (),
        left_out: Collection[Part] = (),
    ) -> Head | None:
        """The head of all messages but some, and of all parts but some; None without a class."""
        if landmarks is not None:
            positive_integer(landmarks, "landmarks", or_none=" or None")
        rest = [(key, self.messages[key]) for key in sorted(self.messages) if key not in without]
        kept = [part for key, points in rest if (part := _without(key[0], points, left_out))]
        if not kept:
            return None
        points = join(kept)
        labelled = self._labelled(points, class_weight)
        solution = solve_points(labelled, landmarks, _number(ridge), self.dtype)
        return make_kernel_head(solution, labelled, points.classes, fingerprint)

    def what_others_say(self, left_out: Collection[Part]) -> dict[str, dict[Label, Opinion]]:
        """Client -> label -> what all other clients say, by ``others_say``.

        Parts that are left out say nothing, and are asked about. A label that no other client has
        is not listed.
        """
        keys = [key for key in sorted(self.messages) if self.messages[key].classes]
        clients = sorted({client for client, _ in keys})
        found: dict[str, dict[Label, Opinion]] = {client: {} for client in clients}
        if len(clients) < 2:
            return found
        points = join([self.messages[key] for key in keys])
        sites, codes = _origins(self.messages, keys, clients, points.classes)
        # ``join`` sorts by class and keeps the order of the messages within a class.
        sites = sites[np.argsort(codes, kind="stable")]
        silent = np.zeros((len(clients), len(points.classes)), dtype=bool)
        for client, label in left_out:
            if client in found and (label is None or label in points.classes):
                c = slice(None) if label is None else points.classes.index(label)
                silent[clients.index(client), c] = True
        labelled, counted = self._labelled(points, None), ~silent[sites, points.codes]
        contradicted, confirmed = others_say(labelled, sites, counted)

        def table(chosen: NDArray[np.bool_], weights: NDArray[Any] | None) -> NDArray[Any]:
            places = sites[chosen] * silent.shape[1] + points.codes[chosen]
            sums = np.bincount(places, None if weights is None else weights[chosen], silent.size)
            return sums.reshape(silent.shape).astype(int)

        every = np.ones(len(counted), dtype=bool)
        rows, asked = table(every, points.counts), table(every, None)
        wrong, sure = table(contradicted, None), table(confirmed, points.counts)
        heard = table(counted, None)
        for s, c in zip(*np.nonzero(asked), strict=True):
            others = np.arange(len(clients)) != s
            if heard[others, c].any():
                figures = rows[s, c], asked[s, c], wrong[s, c], sure[others, c].max()
                found[clients[s]][points.classes[c]] = Opinion(*map(int, figures))
        return found

    def _labelled(self, points: Points, class_weight: ClassWeight) -> Labelled:
        X = to_device(points.means, self.device)
        rows = np.array(list(points.rows_per_class().values()), dtype=np.float64)
        weights = class_weights(class_weight, points.classes, rows)
        if isinstance(class_weight, Mapping):
            unknown = sorted(map(repr, class_weight.keys() - set(points.classes)))
            if unknown:
                names = ", ".join(unknown[:5])
                raise ValueError(f"class_weight names labels without points: {names}")
        return Labelled.of(X, points.counts, points.codes, len(points.classes), weights)


def _without(client: str, points: Points, left_out: Collection[Part]) -> Points | None:
    """The points of a client without those that are left out; None if none remain."""
    if (client, None) in left_out:
        return None
    kept = [c for c in points.classes if (client, c) not in left_out]
    if not kept or len(kept) == len(points.classes):
        return points if kept else None
    chosen = np.isin(points.codes, [points.classes.index(c) for c in kept])
    codes = recode(points.codes[chosen], points.classes, tuple(kept))
    means, counts = points.means[chosen], points.counts[chosen]
    return (
        replace(points, classes=tuple(kept), codes=codes, means=means, counts=counts)
        if kept
        else None
    )


def _origins(
    messages: Mapping[Key, Points],
    keys: Collection[Key],
    clients: list[str],
    classes: tuple[Label, ...],
) -> tuple[Int64[NDArray[Any], " n"], Int64[NDArray[Any], " n"]]:
    """The number of the client and of the class of each point, message by message."""
    number = {client: i for i, client in enumerate(clients)}
    sites = [np.full(len(messages[key].codes), number[key[0]]) for key in keys]
    codes = [recode(messages[key].codes, messages[key].classes, classes) for key in keys]
    return np.concatenate(sites), np.concatenate(codes)


def class_weights(
    class_weight: ClassWeight, classes: Collection[Label], rows: NDArray[Any]
) -> NDArray[np.float64] | None:
    """A weight per class: "balanced" gives all classes the same total weight."""
    if class_weight is None:
        return None
    if class_weight == "balanced":
        return rows.sum() / (len(rows) * rows)
    if not isinstance(class_weight, Mapping):
        raise ValueError(f"class_weight must be 'balanced', a dict or None, got {class_weight!r}")
    weights = [real_number(w, f"weight of {c!r}") for c, w in class_weight.items()]
    if not all(0 < w < np.inf for w in weights):
        raise ValueError("class_weight must have finite, positive weights")
    return np.array([float(class_weight.get(c, 1.0)) for c in classes])


def _number(ridge: float | Ridge | None) -> float | None:
    """The ridge per row; None chooses it by leave-one-out."""
    if ridge is None:
        return None
    if isinstance(ridge, Ridge):
        if ridge.fixed is None:
            raise ValueError(
                "a rule relative to the features is for summaries; pass None, which chooses the "
                "ridge by leave-one-out, or a number"
            )
        return ridge.fixed
    value = real_number(ridge, "ridge")
    if not 0 < value < np.inf:
        raise ValueError(f"ridge must be a finite, positive number, got {ridge!r}")
    return value
