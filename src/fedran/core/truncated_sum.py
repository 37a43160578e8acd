"""A sum of summaries of bounded rank: the paper's spatial and temporal QR-SVD merges."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Array, Float, contiguous, namespace, to_device, to_numpy
from fedran.core._linalg.blas import gram
from fedran.core._linalg.truncation import leading, leading_qr, square_factor
from fedran.core.accounts import Accounts
from fedran.core.class_sums import ClassSums
from fedran.core.errors import positive_integer
from fedran.core.fingerprint import Fingerprint
from fedran.core.head import Head, make_head
from fedran.core.ridge import Ridge, solve_stack, solve_subspace
from fedran.core.summary import Summary

Order = Literal["flat", "paper"]
Complement = Literal["keep", "drop"]


class Part(NamedTuple):
    """A factor F (M, w) and the accounts of what it describes."""

    factor: Float[Array, "M w"]
    accounts: Accounts


class TruncatedSum:
    """A global factor of at most ``rank`` columns, the open task beside it, and class sums.

    ``order="paper"``: every arrival is merged into the open task by QR-SVD and truncated, and
    closing the task merges it into the global factor by another QR-SVD (Algorithm 1 of the
    paper). ``order="flat"``: the factors of a task wait side by side (without loss, at most M
    columns), and closing the task truncates everything once: fewer cuts, less work.

    A new task id closes the open task. A summary for a closed task is late: it is merged into
    the global factor at once.
    """

    def __init__(
        self, out_features: int, rank: int, order: Order, dtype: str, device: str | None
    ) -> None:
        self.rank = positive_integer(rank, "server_rank", or_none=" or None")
        self.out_features, self.order = out_features, order
        self.dtype, self.device = dtype, device
        self.class_sums = ClassSums.empty(out_features, device)
        self.open_task: str | None = None
        self.closed: set[str] = set()
        nothing = contiguous(to_device(np.zeros((out_features, 0)), device, dtype))
        self._empty = self._past = self._open = Part(nothing, Accounts())
        self.accounts = Accounts()
        """Accounts of the global factor and the open task together."""

    @property
    def width(self) -> int:
        """Columns of the global factor and of the open task together."""
        return int(self._past.factor.shape[1] + self._open.factor.shape[1])

    def add_summary(self, summary: Summary, task: str) -> None:
        """Merge a summary into its task, or into the global factor when the task is closed."""
        factor = contiguous(to_device(summary.factor, self.device, self.dtype))
        arrival = Part(factor, summary.accounts)
        if task in self.closed:
            self._past = self._merge(self._past, arrival, truncate=True)
        else:
            opening = task != self.open_task
            past = self.as_if_closed() if opening else self._past
            before = self._empty if opening else self._open
            merged = self._merge(before, arrival, truncate=self.order == "paper")
            # Nothing changes before this line, so that a failed merge leaves the state as it was.
            if opening and self.open_task is not None:
                self.closed.add(self.open_task)
            self._past, self._open, self.open_task = past, merged, task
        self.class_sums += summary.sums
        self.accounts = self._past.accounts + self._open.accounts

    def close_task(self) -> None:
        """Merge the open task into the global factor."""
        if self.open_task is not None:
            self._past, self._open = self.as_if_closed(), self._empty
            self.closed.add(self.open_task)
            self.open_task = None
            self.accounts = self._past.accounts

    def as_if_closed(self) -> Part:
        """The global factor as it would be if the open task were closed now."""
        if self.open_task is None:
            return self._past
        return self._merge(self._past, self._open, truncate=True)

    def solve(
        self,
        ridge: Ridge | float | None = None,
        fingerprint: Fingerprint | None = None,
        complement: Complement = "keep",
    ) -> Head:
        """The head of everything added; ``"drop"`` makes it zero outside the factor's span."""
        (factor, accounts), sums = self.as_if_closed(), self.class_sums
        lam = Ridge.parse(ridge).value(accounts)
        solver = solve_subspace if complement == "drop" else solve_stack
        solution = solver(factor, sums.sums, lam)
        return make_head(solution, sums.sums, lam, accounts, sums.classes, fingerprint)

    def gram(self) -> Float[Array, "M M"]:
        """F F' of the global factor as if the open task were closed, (M, M)."""
        return gram(self.as_if_closed().factor.T)

    def _merge(self, a: Part, b: Part, truncate: bool) -> Part:
        """[F_a F_b], truncated to the rank, or else to M columns without loss."""
        parts = [p.factor for p in (a, b) if p.factor.shape[1]]
        accounts = a.accounts + b.accounts
        if not parts:
            return Part(b.factor, accounts)
        factor = parts[0] if len(parts) == 1 else namespace(parts[0]).concat(parts, axis=1)
        if truncate and factor.shape[1] > self.rank:
            if self.order == "paper":
                result = leading_qr(factor, self.rank)
            else:
                result = leading(factor, self.rank, "the merged factor")
            return Part(contiguous(result.factor), accounts.after_merge_cut(result.loss))
        if factor.shape[1] > self.out_features:
            factor = square_factor(factor)
        return Part(contiguous(factor), accounts)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Plain values and arrays of the factors, for ``restore``. The arrays are not copied."""
        values = {
            "open_task": self.open_task,
            "closed": sorted(self.closed),
            "past_accounts": asdict(self._past.accounts),
            "open_accounts": asdict(self._open.accounts),
        }
        past, open_ = to_numpy(self._past.factor), to_numpy(self._open.factor)
        return values, {"past": past, "open": open_}

    def restore(self, values: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Replace the factors by what ``state`` returned."""
        self.open_task = values["open_task"]
        self.closed = set(values["closed"])
        self._past, self._open = (
            Part(
                contiguous(to_device(arrays[name], self.device, self.dtype)),
                Accounts(**values[f"{name}_accounts"]),
            )
            for name in ("past", "open")
        )
        self.accounts = self._past.accounts + self._open.accounts
