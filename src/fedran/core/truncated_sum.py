"""A sum of summaries of bounded rank: the paper's spatial and temporal QR-SVD merges."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Array, Float, contiguous, to_device, to_numpy
from fedran.core._linalg.blas import gram
from fedran.core.accounts import Accounts
from fedran.core.class_sums import ClassSums
from fedran.core.errors import Refused, positive_integer
from fedran.core.features import RandomFeatures
from fedran.core.fingerprint import Fingerprint
from fedran.core.head import Head, make_head
from fedran.core.mixture import Mixture
from fedran.core.ridge import Complement, Ridge, solve_stack, solve_subspace
from fedran.core.summary import SAME_CENTER, Center, Summary

Order = Literal["flat", "paper"]


class TruncatedSum:
    """A global factor of at most ``rank`` columns, the open task beside it, and class sums.

    ``order="paper"``: every arrival is merged into the open task by QR-SVD and truncated, and
    closing the task merges it into the global factor by another QR-SVD (Algorithm 1 of the
    paper). ``order="flat"``: the factors of a task wait side by side (without loss, at most M
    columns), and closing the task truncates everything once: fewer cuts, less work.

    The factors describe what those of the summaries describe: rows minus their class means, or
    the rows themselves. A new task id closes the open task. A summary for a closed task is late:
    it is merged into the global factor at once.
    """

    def __init__(
        self, out_features: int, rank: int, order: Order, dtype: str, device: str | None
    ) -> None:
        self.limit = positive_integer(rank, "server_rank", or_none=" or None")
        self.out_features, self.order = out_features, order
        self.dtype, self.device = dtype, device
        self.open_task: str | None = None
        self.closed: set[str] = set()
        self._past = self._open = self._nothing("class")

    @property
    def class_sums(self) -> ClassSums:
        """Class sums of the global factor and the open task together."""
        return self._past.sums + self._open.sums

    @property
    def accounts(self) -> Accounts:
        """Accounts of the global factor and the open task together."""
        return self._past.accounts + self._open.accounts

    @property
    def rank(self) -> int:
        """Columns of the global factor and of the open task together."""
        return self._past.rank + self._open.rank

    def check(self, message: Summary | Mixture) -> None:
        """Refuse a message that cannot be merged with what is held."""
        if isinstance(message, Mixture):
            raise Refused(
                "message",
                f"a summary, as this aggregator is bounded to rank {self.limit}",
                "a mixture",
                hint="mixtures need the exact sum: leave out server_rank",
            )
        held = self._past.accounts.n_rows + self._open.accounts.n_rows
        if held and message.center != self._open.center:
            got = repr(message.center)
            raise Refused("center", repr(self._open.center), got, hint=SAME_CENTER)

    def add_summary(self, summary: Summary, task: str) -> None:
        """Merge a summary into its task, or into the global factor when the task is closed."""
        self.check(summary)
        factor = contiguous(to_device(summary.factor, self.device, self.dtype), copy=True)
        sums = ClassSums.empty(self.out_features, self.device) + summary.sums  # a copy
        center = summary.center
        arrival = Summary(factor, sums, summary.accounts, center=center)
        if task in self.closed:
            self._past = self._merge(self._past, arrival, truncate=True)
            return
        opening = task != self.open_task
        past = self.as_if_closed() if opening else self._past
        before = self._nothing(center) if opening else self._open
        merged = self._merge(before, arrival, truncate=self.order == "paper")
        # Nothing changes before this line, so that a failed merge leaves the state as it was.
        if opening and self.open_task is not None:
            self.closed.add(self.open_task)
        self._past, self._open, self.open_task = past, merged, task

    def add_mixture(self, mixture: Mixture, _phi: RandomFeatures) -> None:
        """Refuse the mixture: a sum of bounded rank takes summaries only."""
        self.check(mixture)

    def close_task(self) -> None:
        """Merge the open task into the global factor."""
        if self.open_task is not None:
            self._past, self._open = self.as_if_closed(), self._nothing(self._open.center)
            self.closed.add(self.open_task)
            self.open_task = None

    def as_if_closed(self) -> Summary:
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
        total = self.as_if_closed()
        lam = Ridge.parse(ridge).value(total.accounts)
        solver = solve_subspace if complement == "drop" else solve_stack
        solution = solver(total.gram_factor(), total.class_sums, lam)
        return make_head(solution, total.sums, lam, total.accounts, fingerprint)

    def gram(self) -> Float[Array, "M M"]:
        """The (M, M) Gram as if the open task were closed."""
        return gram(self.as_if_closed().gram_factor().T)

    def _nothing(self, center: Center | None) -> Summary:
        """A summary of no rows."""
        factor = to_device(np.zeros((self.out_features, 0)), self.device, self.dtype)
        sums = ClassSums.empty(self.out_features, self.device)
        return Summary(contiguous(factor), sums, Accounts(), center=center)

    def _merge(self, a: Summary, b: Summary, truncate: bool) -> Summary:
        """a + b, truncated to the rank, or else to M columns without loss."""
        total = b if not a.accounts.n_rows else a + b
        if truncate and total.rank > self.limit:
            total = total.truncate(self.limit, "qr" if self.order == "paper" else "gram")
        return replace(total, factor=contiguous(total.factor))

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Plain values and arrays, for ``restore``. The arrays are not copied."""
        values: dict[str, Any] = {
            "open_task": self.open_task,
            "closed": sorted(self.closed),
            "center": self._open.center,
        }
        arrays: dict[str, NDArray[Any]] = {}
        for name, part in (("past", self._past), ("open", self._open)):
            labelled, sums = part.sums.state()
            values[name] = {"accounts": asdict(part.accounts)} | labelled
            arrays |= {name: to_numpy(part.factor), f"{name}_sums": sums}
        return values, arrays

    def restore(self, values: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Replace everything by what ``state`` returned."""
        self.open_task = values["open_task"]
        self.closed = set(values["closed"])
        self._past, self._open = (
            Summary(
                contiguous(to_device(arrays[name], self.device, self.dtype)),
                ClassSums.from_state(values[name], arrays[f"{name}_sums"], self.device),
                Accounts(**values[name]["accounts"]),
                center=values["center"],
            )
            for name in ("past", "open")
        )
