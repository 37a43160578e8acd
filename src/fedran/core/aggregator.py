"""The server's state over all clients and tasks, and the head it solves for."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from fedran.core._linalg.arrays import Array, namespace, to_device, to_numpy
from fedran.core._linalg.blas import gram as gram_of
from fedran.core.accounts import Accounts
from fedran.core.bounds import GramBounds, gram_bounds
from fedran.core.errors import Refused
from fedran.core.exact_sum import ExactSum, symmetric
from fedran.core.fingerprint import Fingerprint, check_fingerprint, require_same
from fedran.core.head import Head, make_head
from fedran.core.labels import Label, ordered
from fedran.core.ridge import Ridge, Solution, solve_gram, solve_stack, solve_subspace
from fedran.core.summary import Summary
from fedran.core.truncated_sum import Order, RankedSum

Complement = Literal["keep", "drop"]
Key: TypeAlias = tuple[str, str]
FLOAT32_ENERGY = (1e-20, 1e37)
"""Total energies whose Gram float32 can hold."""
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Aggregator:
    """Adds summaries of any number of clients and tasks; solves for a head at any time.

    By default the sum is exact: no truncation at the server, so the order of arrival matters
    only to rounding, and a late client is as good as an early one. With ``server_rank`` the
    state is bounded to that rank by merges as in the paper, beside the open task; see
    ``RankedSum``.

    Parameters
    ----------
    out_features:
        M, the width of the random features.
    server_rank:
        None for the exact sum; an int for rank-bounded QR-SVD merges.
    order:
        With ``server_rank``: ``"flat"`` merges a task's summaries in one truncation when the
        task closes, ``"paper"`` one client after the other, then into the past.
    fingerprint:
        Binds the aggregator to one feature map from the start. Without it, the first summary
        binds it; in a federation it should come from the server's configuration.
    dtype:
        Of the Gram and factors, ``"float32"`` or ``"float64"``. Class sums are float64.
    device:
        A torch device such as ``"cuda"``; None for NumPy.

    Notes
    -----
    Absorbing is idempotent by (client, task): the same message again changes nothing, another
    message under a known key is refused. A summary that was encoded is another message than the
    one it was encoded from. Calls from several threads wait for each other.

    Examples
    --------
    >>> import numpy as np, fedran
    >>> agg = Aggregator(out_features=2)
    >>> s = fedran.summarize(np.eye(2), [0, 1], rank=2)
    >>> agg.absorb(s, client="site-1", task="may"), agg.absorb(s, client="site-1", task="may")
    (True, False)
    """

    def __init__(
        self,
        out_features: int,
        server_rank: int | None = None,
        *,
        order: Order = "flat",
        fingerprint: Fingerprint | None = None,
        dtype: Literal["float32", "float64"] = "float32",
        device: str | None = None,
    ) -> None:
        if isinstance(out_features, bool) or not isinstance(out_features, (int, np.integer)):
            raise ValueError(f"out_features must be a positive integer, got {out_features!r}")
        if out_features < 1:
            raise ValueError(f"out_features must be a positive integer, got {out_features!r}")
        if dtype not in ("float32", "float64"):
            raise ValueError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
        if order not in ("flat", "paper"):
            raise ValueError(f"order must be 'flat' or 'paper', got {order!r}")
        check_fingerprint(fingerprint)
        to_device(np.zeros(1), device)  # a missing torch or device is noticed here, not later
        self.out_features = int(out_features)
        self.server_rank = server_rank
        self.order = order
        self.fingerprint = fingerprint
        self.dtype: Literal["float32", "float64"] = dtype
        self.device = device
        self._exact: ExactSum | None = None
        self._ranked: RankedSum | None = None
        if server_rank is None:
            self._exact = ExactSum(self.out_features, dtype, device)
        else:
            self._ranked = RankedSum(self.out_features, server_rank, order, dtype, device)
        self._accounts = Accounts()
        self._sums: dict[Label, Array] = {}
        self._counts: dict[Label, int] = {}
        self._ledger: dict[Key, str] = {}
        self.lock = threading.RLock()

    @property
    def classes(self) -> tuple[Label, ...]:
        """All labels seen so far, in canonical order whatever the order of arrival."""
        return ordered(self._sums)

    @property
    def counts(self) -> dict[Label, int]:
        """Labelled rows of each class."""
        return {c: self._counts[c] for c in self.classes}

    @property
    def accounts(self) -> Accounts:
        """Accounts of everything absorbed, merges included."""
        return self._accounts if self._ranked is None else self._ranked.accounts()

    @property
    def bounds(self) -> GramBounds:
        """Theorem 1 and its relatives for the present state."""
        return gram_bounds(self.accounts)

    @property
    def ledger(self) -> dict[Key, str]:
        """(client, task) -> digest of what was absorbed under that key."""
        return dict(self._ledger)

    @property
    def rank(self) -> int:
        """Columns held (a sum over clients), or M once the state is an (M, M) matrix."""
        if self._ranked is not None:
            return self._ranked.width
        assert self._exact is not None
        return min(self._exact.width, self.out_features)

    def absorb(self, summary: Summary, *, client: str, task: str) -> bool:
        """Add one summary under (client, task). True if it was new, False if already known.

        Everything is checked before anything changes; a refusal leaves the state as it was.
        """
        with self.lock:
            if not self.check(summary, client=client, task=task):
                return False
            self._absorb(summary, client, task)
            return True

    def check(self, summary: Summary, *, client: str, task: str) -> bool:
        """What ``absorb`` would return or raise, without absorbing anything."""
        if not isinstance(summary, Summary):
            raise TypeError(
                f"absorb takes a Summary, got {type(summary).__name__}; decode(blob) makes one"
            )
        key = (check_id(client, "client"), check_id(task, "task"))
        digest = summary.content_digest()
        known = self._ledger.get(key)
        if known == digest:
            return False
        if known is not None:
            raise Refused(
                "digest",
                f"the message already absorbed for client {client}, task {task} ({known[:12]}...)",
                f"another one ({digest[:12]}...)",
                hint="a client sends one message a task; use a new task id for more data",
            )
        if summary.out_features != self.out_features:
            raise Refused("out_features", str(self.out_features), summary.out_features)
        self._check_fingerprint(summary)
        summary.validate()
        self._check_scale(summary)
        return True

    def _absorb(self, summary: Summary, client: str, task: str) -> None:
        if self._exact is not None:
            self._exact.add(summary.factor)
            self._accounts = self._accounts + summary.accounts
        else:
            assert self._ranked is not None
            self._ranked.add(summary, task)
        self._add_sums(summary)
        if self.fingerprint is None:
            self.fingerprint = summary.fingerprint
        self._ledger[client, task] = summary.content_digest()

    def close_task(self) -> None:
        """Commit the open task (``server_rank`` only; the exact sum has nothing to close)."""
        if self._ranked is not None:
            with self.lock:
                self._ranked.close_task()

    def solve(self, ridge: Ridge | float | None = None, complement: Complement = "keep") -> Head:
        """The head ``W = (G + lambda I)^-1 B`` of everything absorbed so far.

        ``ridge``: None for the default rule, a number for an absolute lambda, or a
        ``Ridge``. ``complement="drop"`` (with ``server_rank`` only) is the paper's head,
        zero outside the retained subspace. Never changes the state, an open task included.
        """
        if complement not in ("keep", "drop"):
            raise ValueError(f"complement must be 'keep' or 'drop', got {complement!r}")
        if complement == "drop" and self._ranked is None:
            raise ValueError(
                "complement='drop' needs a rank-bounded state: Aggregator(..., server_rank=r)"
            )
        if not self._sums:
            what = "no labelled rows" if self._ledger else "nothing"
            raise ValueError(f"cannot solve: {what} absorbed yet; absorb a labelled summary first")
        ridge = Ridge.parse(ridge)
        with self.lock:
            columns = [self._sums[c] for c in self.classes]
            B = namespace(columns[0]).stack(columns, axis=1)
            accounts, solution = self._solution(B, ridge, complement)
        return make_head(
            solution, B, ridge.value(accounts), accounts, self.classes, self.fingerprint
        )

    def gram(self) -> Array:
        """What everything absorbed adds up to, (M, M), as a copy: for inspection and tests."""
        with self.lock:
            if self._ranked is not None:
                factor = self._ranked.as_if_closed()[0]
            else:
                assert self._exact is not None
                if self._exact.form == "gram":
                    return symmetric(self._exact.gram())
                factor = self._exact.factor()
            return gram_of(factor.T)

    def _solution(
        self, B: Array, ridge: Ridge, complement: Complement
    ) -> tuple[Accounts, Solution]:
        if self._ranked is not None:
            factor, accounts = self._ranked.as_if_closed()
            solver = solve_subspace if complement == "drop" else solve_stack
            return accounts, solver(factor, B, ridge.value(accounts))
        assert self._exact is not None
        lam = ridge.value(self._accounts)
        if self._exact.form == "stack":
            return self._accounts, solve_stack(self._exact.factor(), B, lam)
        return self._accounts, solve_gram(self._exact.gram(), B, lam)

    def _check_fingerprint(self, summary: Summary) -> None:
        if self.fingerprint is not None or self._ledger:
            require_same(self.fingerprint, summary.fingerprint, "aggregator and summary")

    def _check_scale(self, summary: Summary) -> None:
        """A float32 Gram must neither overflow nor sink into subnormal numbers."""
        energy = self.accounts.energy + summary.accounts.energy
        if (
            self.dtype == "float32"
            and energy > 0
            and not FLOAT32_ENERGY[0] < energy < FLOAT32_ENERGY[1]
        ):
            low, high = FLOAT32_ENERGY
            raise Refused(
                "accounts.energy",
                f"a total between {low:g} and {high:g} for a float32 aggregator",
                f"{energy:g}",
                hint="rescale the features, or use dtype='float64'",
            )

    def _add_sums(self, summary: Summary) -> None:
        sums = to_device(summary.class_sums, self.device)
        xp = namespace(sums)
        for j, (c, n) in enumerate(zip(summary.classes, summary.counts, strict=True)):
            column = xp.astype(sums[:, j], xp.float64)
            self._sums[c] = self._sums[c] + column if c in self._sums else column
            self._counts[c] = self._counts.get(c, 0) + n

    def state(self) -> AggregatorState:
        """Everything needed to go on, as NumPy arrays and plain values (for ``wire``).

        Hands out the arrays themselves, as a copy of the Gram would double the memory: write
        or copy them before absorbing more, holding ``lock`` where other threads may.
        """
        arrays: dict[str, Any] = {}
        if self._exact is not None:
            form, width = self._exact.form, self._exact.width
            held = self._exact.factor() if form == "stack" else self._exact.gram()
            arrays[form] = to_numpy(held)
            extra: dict[str, Any] = {"form": form, "width": width}
        else:
            assert self._ranked is not None
            extra, arrays = self._ranked.state()
        columns = [to_numpy(self._sums[c]) for c in self.classes]
        arrays["class_sums"] = (
            np.stack(columns) if columns else np.zeros((0, self.out_features), dtype=np.float64)
        )
        return AggregatorState(arrays, self._accounts, self.counts, self.ledger, extra)

    def restore(self, state: AggregatorState) -> None:
        """Take over a state; the aggregator must be new and have the same parameters."""
        if self._exact is not None:
            form = state.extra["form"]
            self._exact.restore(form, state.arrays[form], state.extra["width"])
        else:
            assert self._ranked is not None
            self._ranked.restore(state.extra, state.arrays)
        self._accounts = state.accounts
        self._counts = dict(state.counts)
        rows = to_device(state.arrays["class_sums"], self.device)
        self._sums = {c: rows[i] for i, c in enumerate(state.counts)}
        self._ledger = dict(state.ledger)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.lock = threading.RLock()

    def __repr__(self) -> str:
        kind = "exact" if self.server_rank is None else f"server_rank={self.server_rank}"
        return (
            f"Aggregator(M={self.out_features}, {kind}, uploads={len(self._ledger)}, "
            f"rows={self.accounts.n_rows}, classes={len(self._sums)})"
        )


@dataclass(frozen=True)
class AggregatorState:
    """An aggregator taken apart: arrays, accounts, counts by class, ledger, form."""

    arrays: dict[str, Any]
    accounts: Accounts
    counts: dict[Label, int]
    ledger: dict[Key, str]
    extra: dict[str, Any]


def check_id(value: object, what: str) -> str:
    """A client or task id: 1 to 64 of A-Z a-z 0-9 . _ -"""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        expected = "a str of 1 to 64 ASCII letters, digits, '.', '_' or '-'"
        raise Refused(what, expected, f"{type(value).__name__} {value!r}")
    return value
