"""The server's state over all clients and tasks, and the head it solves for."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np

from fedran.core._linalg.arrays import Array, Float, to_device
from fedran.core.errors import Refused, check_id, positive_integer
from fedran.core.fingerprint import Fingerprint, check_fingerprint, require_same
from fedran.core.labels import Label, warn_of_similar
from fedran.core.points import Points
from fedran.core.prepare import KernelFeatures
from fedran.core.solve.head import Head
from fedran.core.solve.ridge import Ridge, seen_directions
from fedran.core.summary import Summary
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.class_sums import ClassSums
from fedran.core.sums.exact_sum import ExactSum
from fedran.core.sums.stored_points import ClassWeight, Key, Opinion, Part, StoredPoints

Message: TypeAlias = Points | Summary
"""What a site sends about one task."""
FLOAT32_ENERGY = (1e-20, 1e37)
"""Total energies whose Gram float32 can hold."""
LANDMARKS = 4096
"""Support of a kernel head by default: more accurate than 8192 random features, for less work."""


class Aggregator:
    """Holds the messages of any number of clients and tasks; solves for a head at any time.

    Points are kept as they are. Summaries become one exact sum (``ExactSum``). The server truncates
    nothing: a late client counts as much as an early one, and the order of arrival does not matter
    for points, and for summaries only to rounding.

    Parameters
    ----------
    out_features:
        M, the width of the random features, for summaries. By default that of the fingerprint.
        Without either, the aggregator takes points.
    fingerprint:
        Binds the aggregator to one feature map from the start: ``phi.fingerprint`` of a
        ``KernelFeatures`` for points, of a ``RandomFeatures`` for summaries. Without it, the first
        message binds it; in a federation it should come from the server's configuration.
    dtype:
        ``"float32"`` or ``"float64"``, of the Gram and the factors of summaries, and of the kernel
        where every point supports the head. Everything else is float64.
    device:
        A torch device such as ``"cuda"``; None for NumPy.

    Notes
    -----
    Absorbing is idempotent by (client, task): the same message again changes nothing, and a
    different message under a known key is refused. Under two keys, equal messages are two: both
    count, with a warning. Encoding rounds a message, so a decoded message differs from the
    original. Several threads may call all methods at the same time.

    Examples
    --------
    >>> import numpy as np, fedran
    >>> phi = fedran.KernelFeatures(2)
    >>> server = Aggregator(fingerprint=phi.fingerprint)
    >>> points = fedran.condense(phi(np.eye(2)), ["a", "b"], fingerprint=phi.fingerprint)
    >>> server.absorb(points, client="site-1", task="may")
    True
    >>> server.absorb(points, client="site-1", task="may")
    False
    >>> server.solve().predict(phi([[3.0, 1.0]])).tolist()
    ['a']
    """

    def __init__(
        self,
        out_features: int | None = None,
        *,
        fingerprint: Fingerprint | None = None,
        dtype: Literal["float32", "float64"] = "float32",
        device: str | None = None,
    ) -> None:
        if out_features is not None:
            positive_integer(out_features, "out_features", or_none=" or None")
        if dtype not in ("float32", "float64"):
            raise ValueError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
        check_fingerprint(fingerprint)
        M = None if fingerprint is None else fingerprint.fields.get("M")
        if None not in (out_features, M) and out_features != M:
            raise Refused("fingerprint", f"M = {out_features}", M)
        to_device(np.zeros(1), device)  # a missing torch or device is noticed here, not later
        self.fingerprint = fingerprint
        self.dtype: Literal["float32", "float64"] = dtype
        self.device = device
        width = M if out_features is None else out_features
        self._sum = None if width is None else ExactSum(positive_integer(width, "M"), dtype, device)
        self._points = StoredPoints(dtype, device)
        self._absorbed: dict[Key, str] = {}
        self._digests: set[str] = set()
        self.lock = threading.RLock()
        """Held by every method that changes or solves the state."""

    @property
    def takes(self) -> type[Points] | type[Summary]:
        """The kind of its messages."""
        return Points if self._sum is None else Summary

    @property
    def classes(self) -> tuple[Label, ...]:
        """All labels seen so far, in canonical order, whatever the order of arrival."""
        return self._points.classes if self._sum is None else self._sum.class_sums.classes

    @property
    def counts(self) -> dict[Label, int]:
        """Labelled rows per class."""
        if self._sum is None:
            return self._points.counts
        sums = self._sum.class_sums
        return dict(zip(sums.classes, sums.counts, strict=True))

    @property
    def accounts(self) -> Accounts:
        """Accounts of everything absorbed. Of points they count rows only."""
        if self._sum is None:
            return sum((m.accounts for m in self._points.messages.values()), Accounts())
        return self._sum.accounts

    @property
    def points(self) -> dict[Key, Points]:
        """(client, task) -> points, in the order of arrival; empty for summaries."""
        return dict(self._points.messages)

    @property
    def absorbed(self) -> dict[Key, str]:
        """(client, task) -> digest of the message absorbed under that key."""
        return dict(self._absorbed)

    @property
    def out_features(self) -> int:
        """M, the width of the random features of summaries."""
        return self.sums.out_features

    @property
    def class_sums(self) -> ClassSums:
        """Sum and number of the labelled rows of each class, of summaries."""
        return self.sums.class_sums

    @property
    def sums(self) -> ExactSum:
        """The exact sum of all summaries. TypeError for points, which are not added."""
        if self._sum is None:
            raise TypeError("this aggregator holds points, which have no sum")
        return self._sum

    def absorb(self, message: Message, *, client: str, task: str) -> bool:
        """Add one message under (client, task). True if it was new, False if already known.

        Everything is checked before anything changes. A refused message leaves the state as it
        was. After an interruption while a sum was changed, the sum raises RuntimeError whenever it
        is used. Two warnings are given: of a message that another client has sent too, which
        counts twice, and of a new label that is like a known one.
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
            if isinstance(message, Points):
                self._points.add((client, task), message)
            else:
                self.sums.add_summary(message)
            if self.fingerprint is None:
                self.fingerprint = message.fingerprint
            self._absorbed[client, task] = digest
            self._digests.add(digest)
            return True

    def check(self, message: Message, *, client: str, task: str) -> bool:
        """The checks of ``absorb``. Returns whether the message is new."""
        require_message(message)
        key = (check_id(client, "client"), check_id(task, "task"))
        if not isinstance(message, self.takes):
            wanted, other = (
                ("points", "a summary") if self._sum is None else ("summaries", "points")
            )
            hint = "all sites send points (condense), or all send summaries (summarize)"
            raise Refused("message", f"{wanted}, as this aggregator takes", other, hint)
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
                "Encoding rounds a message, so it and its decoded copy are two messages; so is a "
                "summary that was recomputed on other threads: keep the encoded bytes",
            )
        if self.fingerprint is not None or self._absorbed:
            require_same(self.fingerprint, message.fingerprint, "aggregator and message")
        if isinstance(message, Points):
            self._check_points(message)
        else:
            self._check_summary(message)
        return True

    def _check_points(self, points: Points) -> None:
        if points.fingerprint is not None:
            width = KernelFeatures.from_fingerprint(points.fingerprint).width
            if points.in_features != width:
                raise Refused("means", f"{width} columns", points.in_features)
        self._points.check_width(points.in_features)
        points.validate()

    def _check_summary(self, summary: Summary) -> None:
        if summary.out_features != self.out_features:
            raise Refused("out_features", str(self.out_features), summary.out_features)
        summary.validate()
        energy = summary.accounts.energy + self.accounts.energy
        low, high = FLOAT32_ENERGY
        if self.dtype == "float32" and energy > 0 and not low < energy < high:
            # A float32 Gram would overflow, or vanish among the subnormal numbers.
            raise Refused(
                "accounts.energy",
                f"a total between {low:g} and {high:g} for a float32 aggregator",
                f"{energy:g}",
                hint="rescale the features, or use dtype='float64'",
            )

    def solve(
        self,
        ridge: Ridge | float | None = None,
        *,
        landmarks: int | None = LANDMARKS,
        class_weight: ClassWeight = None,
        novelty: int | None = None,
        left_out: Collection[Part] = (),
    ) -> Head:
        """The head of everything absorbed so far. The state does not change.

        Parameters
        ----------
        ridge:
            Of points: the ridge per row, by default the best one by leave-one-out. Of summaries: a
            multiple of the default rule, or a ``Ridge`` such as ``Ridge.absolute(0.1)``.
        landmarks:
            Of points: the support of the head, and so its size. With more points, it is made of
            class-wise means. None: every point, which takes N^3 / 3 operations and N^2 numbers.
        class_weight:
            Of points: weights of classes by label (others have 1), or ``"balanced"``, with which
            all classes count alike.
        novelty:
            Of summaries: how many leading directions to add for ``Head.novelty``. They take 2 q M
            bytes in a saved head. A head of points needs none.
        left_out:
            Of points: clients (client, None), and labels of clients (client, label), that are left
            out. The head is that of an aggregator that never absorbed them.
        """
        if novelty is not None:
            positive_integer(novelty, "novelty", or_none=" or None")
        if self._sum is None and novelty is not None:
            raise ValueError("novelty is for summaries: heads of points need no directions")
        if self._sum is not None and (class_weight is not None or left_out):
            raise ValueError("class_weight and left_out are for points: a sum has no parts")
        with self.lock:
            if not self.classes:
                what = "no labelled rows" if self._absorbed else "nothing"
                raise ValueError(
                    f"cannot solve: {what} absorbed yet; absorb a message with labelled rows first"
                )
            if self._sum is None:
                head = self._points.solve(
                    ridge,
                    self.fingerprint,
                    landmarks=landmarks,
                    class_weight=class_weight,
                    left_out=left_out,
                )
                if head is None:
                    raise ValueError("cannot solve: everything is left out")
                return head
            head = self._sum.solve(ridge, self.fingerprint)
            if novelty is None:
                return head
            return replace(head, seen=seen_directions(self.gram(), novelty, head.diagnosis.lam))

    def solve_without(
        self,
        messages: Iterable[Message],
        ridge: Ridge | float | None = None,
        *,
        landmarks: int | None = LANDMARKS,
        class_weight: ClassWeight = None,
    ) -> Head | None:
        """The head without some of the absorbed messages; None if no class is left.

        Of points it is the head of an aggregator that never absorbed them. Of summaries their part
        is subtracted from a copy of the sum, so that the head equals that one to rounding. A
        message that was not absorbed is a ValueError.
        """
        messages = list(messages)
        with self.lock:
            keys = self._keys_of(messages)
            if self._sum is None:
                return self._points.solve(
                    ridge,
                    self.fingerprint,
                    landmarks=landmarks,
                    class_weight=class_weight,
                    without=keys,
                )
            parts = []
            for message in messages:
                assert isinstance(message, Summary)  # points were never absorbed here
                parts.append(ExactSum(self.out_features, self.dtype, self.device))
                parts[-1].add_summary(message)
            rest = self._sum.without(parts)
        return rest.solve(ridge, self.fingerprint) if rest.class_sums.classes else None

    def _keys_of(self, messages: Iterable[Message]) -> set[Key]:
        """The keys of absorbed messages; of equal messages, as many keys as there are messages."""
        for message in messages:
            require_message(message)
        wanted, found = Counter(m.content_digest() for m in messages), set()
        for key, digest in self._absorbed.items():
            if wanted[digest] > 0:
                wanted[digest] -= 1
                found.add(key)
        if left := [digest for digest, n in wanted.items() if n > 0]:
            raise ValueError(
                f"solve_without needs absorbed messages, each once; {left[0][:12]}... is not among "
                "them. Encoding rounds a message: pass the copy that was absorbed"
            )
        return found

    def what_others_say(self, left_out: Collection[Part] = ()) -> dict[str, dict[Label, Opinion]]:
        """Client -> label -> what all other clients say about its rows. Of points only.

        It takes one solve in closed form and no validation rows (``others_say``). Parts that are
        ``left_out`` say nothing about others. Labels that no other client has are not listed.
        """
        if self._sum is not None:
            raise TypeError("this aggregator holds summaries, of which no part can be asked")
        with self.lock:
            return self._points.what_others_say(left_out)

    def gram(self) -> Float[Array, "M M"]:
        """The sum of the Grams of all summaries, an (M, M) copy, for inspection."""
        with self.lock:
            return self.sums.gram()

    def restore(
        self, values: dict[str, Any], arrays: dict[str, Any], absorbed: dict[Key, str]
    ) -> None:
        """Replace the sum by a ``state()`` of ``sums``. The aggregator must be new and equal."""
        self.sums.restore(values, arrays)
        self._absorbed = dict(absorbed)
        self._digests = set(self._absorbed.values())

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.lock = threading.RLock()

    def __repr__(self) -> str:
        size = "points" if self._sum is None else f"M={self.out_features}"
        return (
            f"Aggregator({size}, uploads={len(self._absorbed)}, "
            f"rows={self.accounts.n_rows}, classes={len(self.classes)})"
        )


def require_message(value: object) -> None:
    """TypeError unless ``value`` is a message."""
    if not isinstance(value, (Points, Summary)):
        raise TypeError(
            f"a message is a Points or a Summary, got {type(value).__name__}; "
            "decode(upload) makes one from the bytes that a site sent"
        )
