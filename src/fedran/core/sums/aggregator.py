"""The server's state over all clients and tasks, and the head it solves for."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np

from fedran.core._linalg.arrays import Array, Float, to_device
from fedran.core.errors import Refused, check_id, positive_integer
from fedran.core.features import RandomFeatures
from fedran.core.fingerprint import Fingerprint, check_fingerprint, require_same
from fedran.core.labels import Label, warn_of_similar
from fedran.core.mixture import Mixture
from fedran.core.solve.head import Head
from fedran.core.solve.ridge import Ridge, seen_directions
from fedran.core.summary import Summary
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.class_sums import ClassSums
from fedran.core.sums.exact_sum import ExactSum

Key: TypeAlias = tuple[str, str]
"""(client, task)."""
FLOAT32_ENERGY = (1e-20, 1e37)
"""Total energies whose Gram float32 can hold."""


class Aggregator:
    """Adds messages of any number of clients and tasks; solves for a head at any time.

    The sum is exact (``ExactSum``): the server truncates nothing, so the order of arrival matters
    only to rounding, and a late client counts as much as an early one.

    Parameters
    ----------
    out_features:
        M, the width of the random features.
    fingerprint:
        Binds the aggregator to one feature map from the start. Without it, the first summary
        binds it; in a federation it should come from the server's configuration. Mixtures need
        it, because the aggregator itself computes their random features.
    dtype:
        Of the Gram and the factors, ``"float32"`` or ``"float64"``. Class sums are float64.
    device:
        A torch device such as ``"cuda"``; None for NumPy.

    Notes
    -----
    Absorbing is idempotent by (client, task): the same message again changes nothing, and a
    different message under a known key is refused. Under two keys, equal messages are two: both
    count, with a warning. Encoding rounds a summary, so a decoded summary differs from the
    original. Several threads may call all methods at the same time.

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
        *,
        fingerprint: Fingerprint | None = None,
        dtype: Literal["float32", "float64"] = "float32",
        device: str | None = None,
    ) -> None:
        self.out_features = positive_integer(out_features, "out_features")
        if dtype not in ("float32", "float64"):
            raise ValueError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
        check_fingerprint(fingerprint)
        if fingerprint is not None and fingerprint.fields.get("M", out_features) != out_features:
            raise Refused("fingerprint", f"M = {out_features}", fingerprint.fields["M"])
        to_device(np.zeros(1), device)  # a missing torch or device is noticed here, not later
        self.fingerprint = fingerprint
        self.dtype: Literal["float32", "float64"] = dtype
        self.device = device
        self._sum = ExactSum(self.out_features, dtype, device)
        self._absorbed: dict[Key, str] = {}
        self._digests: set[str] = set()
        self._map: RandomFeatures | None = None
        self.lock = threading.RLock()
        """Held by every method that changes or solves the state."""

    @property
    def classes(self) -> tuple[Label, ...]:
        """All labels seen so far, in canonical order, whatever the order of arrival."""
        return self._sum.class_sums.classes

    @property
    def counts(self) -> dict[Label, int]:
        """Labelled rows per class."""
        sums = self._sum.class_sums
        return dict(zip(sums.classes, sums.counts, strict=True))

    @property
    def class_sums(self) -> ClassSums:
        """Sum and number of the labelled rows of each class."""
        return self._sum.class_sums

    @property
    def accounts(self) -> Accounts:
        """Accounts of everything absorbed, merges included."""
        return self._sum.accounts

    @property
    def absorbed(self) -> dict[Key, str]:
        """(client, task) -> digest of the message absorbed under that key."""
        return dict(self._absorbed)

    @property
    def rank(self) -> int:
        """Columns of everything absorbed, at most M."""
        return self._sum.rank

    def absorb(self, message: Summary | Mixture, *, client: str, task: str) -> bool:
        """Add one message under (client, task). True if it was new, False if already known.

        Everything is checked before anything changes. A refused message leaves the state as it
        was. After an interruption while rows were added, the exact sum raises RuntimeError
        whenever it is used. A mixture is lifted to random features at the width of this
        aggregator, with draws that follow from its digest. Two warnings are given: of a message
        that another client has sent too, which counts twice, and of a new label that is like a
        known one.
        """
        with self.lock:
            if not self.check(message, client=client, task=task):
                return False
            digest = message.content_digest()
            if digest in self._digests and message.accounts.n_rows:
                other, earlier = next(key for key, d in self._absorbed.items() if d == digest)
                warnings.warn(
                    f"the message of {client}, task {task} equals that of {other}, task {earlier}; "
                    "its rows now count twice, so leave one of them out if this is the same upload",
                    stacklevel=2,
                )
            warn_of_similar(self.classes, message.classes, client)
            if isinstance(message, Mixture):
                self._sum.add_mixture(message, self._phi())
            else:
                self._sum.add_summary(message)
            if self.fingerprint is None:
                self.fingerprint = message.fingerprint
            self._absorbed[client, task] = digest
            self._digests.add(digest)
            return True

    def check(self, message: Summary | Mixture, *, client: str, task: str) -> bool:
        """The checks of ``absorb``. Returns whether the message is new."""
        _require_message(message)
        key = (check_id(client, "client"), check_id(task, "task"))
        digest = message.content_digest()
        known = self._absorbed.get(key)
        if known == digest:
            return False
        if known is not None:
            raise Refused(
                "digest",
                f"the message already absorbed for client {client}, task {task} ({known[:12]}...)",
                f"another one ({digest[:12]}...)",
                hint="a client sends one message per task; use a new task id for more data. "
                "Encoding rounds a summary, so it and its decoded copy are two messages",
            )
        if isinstance(message, Mixture):
            self._check_mixture(message)
            energy = self._phi().largest_gain ** 2 * message.energy
        else:
            self._check_summary(message)
            energy = message.accounts.energy
        energy += self.accounts.energy
        low, high = FLOAT32_ENERGY
        if self.dtype == "float32" and energy > 0 and not low < energy < high:
            # A float32 Gram would overflow, or vanish among the subnormal numbers.
            raise Refused(
                "accounts.energy",
                f"a total between {low:g} and {high:g} for a float32 aggregator",
                f"{energy:g}",
                hint="rescale the features, or use dtype='float64'",
            )
        return True

    def _check_summary(self, summary: Summary) -> None:
        if summary.out_features != self.out_features:
            raise Refused("out_features", str(self.out_features), summary.out_features)
        if self.fingerprint is not None or self._absorbed:
            require_same(self.fingerprint, summary.fingerprint, "aggregator and summary")
        summary.validate()

    def _check_mixture(self, mixture: Mixture) -> None:
        if self.fingerprint is None:
            raise Refused(
                "fingerprint",
                "an aggregator with a feature map, to which a mixture can be lifted",
                "one that has none",
                hint="pass fingerprint=phi.fingerprint to Aggregator",
            )
        phi = self._phi()
        require_same(phi.input_fingerprint, mixture.fingerprint, "aggregator and mixture")
        width = phi.in_features + phi.bias
        if mixture.parts and mixture.in_features != width:
            raise Refused("means", f"{width} columns", mixture.in_features)
        mixture.validate()

    def _phi(self) -> RandomFeatures:
        """The feature map of the fingerprint, made once. Its projection is drawn at first use."""
        assert self.fingerprint is not None
        if self._map is None or self._map.fingerprint != self.fingerprint:
            self._map = RandomFeatures.from_fingerprint(self.fingerprint)
        if self._map.out_features != self.out_features:
            expected = f"M = {self.out_features}, as the aggregator has"
            raise Refused("fingerprint", expected, self._map.out_features)
        return self._map

    def solve(
        self,
        ridge: Ridge | float | None = None,
        *,
        novelty: int | None = None,
    ) -> Head:
        """The head ``W = (G + lambda I)^-1 B`` of everything absorbed so far.

        ``ridge`` is None for the default rule, a number for a multiple of it, or a ``Ridge``, such
        as ``Ridge.absolute(0.1)``. ``novelty=q`` adds the q leading directions of everything
        absorbed, for ``Head.novelty``; they take 2 q M bytes in a saved head, and finding them an
        (M, M) copy of the Gram. The state does not change.
        """
        if novelty is not None:
            positive_integer(novelty, "novelty", or_none=" or None")
        with self.lock:
            if not self.classes:
                what = "no labelled rows" if self._absorbed else "nothing"
                raise ValueError(
                    f"cannot solve: {what} absorbed yet; absorb a summary or a mixture of "
                    "labelled rows first"
                )
            head = self._sum.solve(ridge, self.fingerprint)
            seen = None
            if novelty is not None:
                seen = seen_directions(self._sum.gram(), novelty, head.diagnosis.lam)
            return replace(head, seen=seen)

    def solve_without(
        self, messages: Iterable[Summary | Mixture], ridge: Ridge | float | None = None
    ) -> Head | None:
        """The head without some of the absorbed messages; None if no class is left.

        Their part is subtracted from a copy of the sum, so that the head equals that of an
        aggregator that never absorbed them only to rounding. A message that was not absorbed is a
        ValueError.
        """
        parts, held = [], Counter(self._absorbed.values())
        for message in messages:
            _require_message(message)
            digest = message.content_digest()
            held[digest] -= 1
            if held[digest] < 0:
                raise ValueError(
                    f"solve_without needs absorbed messages, each once; {digest[:12]}... is not "
                    "among them. Encoding rounds a summary: pass the copy that was absorbed"
                )
            part = ExactSum(self.out_features, self.dtype, self.device)
            if isinstance(message, Mixture):
                part.add_mixture(message, self._phi())
            else:
                part.add_summary(message)
            parts.append(part)
        with self.lock:
            rest = self._sum.without(parts)
        return rest.solve(ridge, self.fingerprint) if rest.class_sums.classes else None

    def gram(self) -> Float[Array, "M M"]:
        """The sum of the Grams of everything absorbed, an (M, M) copy, for inspection."""
        with self.lock:
            return self._sum.gram()

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Plain values and NumPy arrays, which ``absorbed`` completes (for ``wire``).

        The arrays are not copied, because a copy of the Gram would double the memory. Write or
        copy them before absorbing more, and hold ``lock`` where other threads are active.
        """
        return self._sum.state()

    def restore(
        self, values: dict[str, Any], arrays: dict[str, Any], absorbed: dict[Key, str]
    ) -> None:
        """Replace the state. The aggregator must be new and have the same parameters."""
        self._sum.restore(values, arrays)
        self._absorbed = dict(absorbed)
        self._digests = set(self._absorbed.values())

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.lock = threading.RLock()

    def __repr__(self) -> str:
        return (
            f"Aggregator(M={self.out_features}, uploads={len(self._absorbed)}, "
            f"rows={self.accounts.n_rows}, classes={len(self.classes)})"
        )


def _require_message(value: object) -> None:
    if not isinstance(value, (Summary, Mixture)):
        raise TypeError(
            f"a message is a Summary or a Mixture, got {type(value).__name__}; "
            "decode(upload) makes one from the bytes that a site sent"
        )
