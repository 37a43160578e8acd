"""A rank-bounded sum of summaries: the paper's spatial and temporal QR-SVD merges."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

import numpy as np

from fedran.core._linalg.arrays import Array, namespace, to_device, to_numpy
from fedran.core._linalg.truncation import Leading, leading, leading_qr, square_factor
from fedran.core.accounts import Accounts
from fedran.core.exact_sum import contiguous
from fedran.core.summary import Summary

Order = Literal["flat", "paper"]


class RankedSum:
    """Holds a global factor of at most ``rank`` columns and the open task beside it.

    ``order="paper"``: every arrival is merged into the open task by QR-SVD and truncated, and
    closing merges the task into the global factor by another (Algorithm 1 of the paper).
    ``order="flat"``: a task's factors wait side by side (without loss, at most M columns), and
    closing makes one truncation of everything: fewer cuts, less work.

    A new task id closes the open task. A summary for a task that is closed already is late: it
    is merged into the global factor at once.
    """

    def __init__(
        self, out_features: int, rank: int, order: Order, dtype: str, device: str | None
    ) -> None:
        if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or rank < 1:
            raise ValueError(f"server_rank must be a positive integer or None, got {rank!r}")
        self.out_features, self.rank, self.order = out_features, int(rank), order
        self.dtype, self.device = dtype, device
        self.open_task: str | None = None
        self.closed: set[str] = set()
        self._past: tuple[Array, Accounts] = (self._mine(np.zeros((out_features, 0))), Accounts())
        self._open = self._past

    @property
    def width(self) -> int:
        """Columns held in all."""
        return int(self._past[0].shape[1] + self._open[0].shape[1])

    def accounts(self) -> Accounts:
        """Accounts of the global factor and the open task together."""
        return self._past[1] + self._open[1]

    def add(self, summary: Summary, task: str) -> None:
        """Merge a summary into its task, or into the past when the task is closed."""
        arrival = (self._mine(summary.factor), summary.accounts)
        if task in self.closed:
            self._past = self._merge(self._past, arrival, truncate=True)
            return
        opening = task != self.open_task
        past = self.as_if_closed() if opening and self.open_task is not None else self._past
        before = self._empty() if opening else self._open
        merged = self._merge(before, arrival, truncate=self.order == "paper")
        if opening:
            if self.open_task is not None:
                self.closed.add(self.open_task)
            self._past, self.open_task = past, task
        self._open = merged

    def close_task(self) -> None:
        """Merge the open task into the global factor."""
        if self.open_task is not None:
            self._past, self._open = self.as_if_closed(), self._empty()
            self.closed.add(self.open_task)
            self.open_task = None

    def as_if_closed(self) -> tuple[Array, Accounts]:
        """The global factor as it would be if the open task were closed now."""
        if self.open_task is None:
            return self._past
        return self._merge(self._past, self._open, truncate=True)

    def _merge(
        self, a: tuple[Array, Accounts], b: tuple[Array, Accounts], truncate: bool
    ) -> tuple[Array, Accounts]:
        """[F_a F_b], cut to the rank or, when not truncating, to M columns without loss."""
        parts = [f for f, _ in (a, b) if f.shape[1]]
        accounts = a[1] + b[1]
        if not parts:
            return b[0], accounts
        factor = parts[0] if len(parts) == 1 else namespace(parts[0]).concat(parts, axis=1)
        if truncate and factor.shape[1] > self.rank:
            result = self._cut(factor)
            return contiguous(result.factor), accounts.after_merge_cut(result.loss)
        if factor.shape[1] > self.out_features:
            factor = square_factor(factor)
        return contiguous(factor), accounts

    def _cut(self, factor: Array) -> Leading:
        if self.order == "paper":
            return leading_qr(factor, self.rank)
        return leading(factor, self.rank, "the merged factor")

    def _empty(self) -> tuple[Array, Accounts]:
        return self._mine(np.zeros((self.out_features, 0))), Accounts()

    def _mine(self, array: Array) -> Array:
        moved = to_device(array, self.device)
        xp = namespace(moved)
        return contiguous(xp.astype(moved, getattr(xp, self.dtype), copy=False))

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Plain values and arrays, for ``restore``."""
        values = {
            "open_task": self.open_task,
            "closed": sorted(self.closed),
            "past_accounts": asdict(self._past[1]),
            "open_accounts": asdict(self._open[1]),
        }
        return values, {"past": to_numpy(self._past[0]), "open": to_numpy(self._open[0])}

    def restore(self, values: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Take over what ``state`` returned."""
        self.open_task = values["open_task"]
        self.closed = set(values["closed"])
        self._past = (self._mine(arrays["past"]), Accounts(**values["past_accounts"]))
        self._open = (self._mine(arrays["open"]), Accounts(**values["open_accounts"]))
