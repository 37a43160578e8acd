"""The classifier that a solve returns, with the diagnosis of that solve."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedran.core._linalg.arrays import (
    Array,
    Bool,
    Float,
    Float64,
    as_matrix,
    cast,
    device,
    eps,
    like,
    namespace,
    require_finite,
    to_device,
    to_numpy,
)
from fedran.core.errors import Refused, printable, real_number
from fedran.core.fingerprint import Fingerprint
from fedran.core.kernel import blocks, kernel
from fedran.core.labels import Label, encode_labels, label_array, ordered, recode
from fedran.core.solve.calibration import SCORE_RANGE, Calibration, log_softmax
from fedran.core.solve.kernel_ridge import KernelSolution, Labelled
from fedran.core.solve.ridge import Solution, frobenius
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.class_sums import ClassSums


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """How a solve went, fallbacks included."""

    route: str
    """Which method was used, and which ones failed before it."""
    lam: float
    """The ridge parameter used."""
    f: float
    """Share of the feature energy that was truncated before the solve."""
    n_rows: int
    effective_rank: float
    """(tr G)^2 / ||G||_F^2."""
    condition: float
    """(||G||_2 + lambda) / lambda, an estimate of the condition number."""
    residual: float
    """||B - (G + lambda I) W||_F / ||B||_F."""
    eps_W: float = sys.float_info.max
    """Bound on ||W - W*||_F against the full ridge at the same lambda: truncation, quantisation
    and the solver's residual. Rounding in a float32 Gram is not included. The largest number where
    there is no bound."""
    eps_W_paper: float = sys.float_info.max
    """The paper's Theorem 2 as printed: truncation and quantisation of the factor only."""
    agreement: float | None = None
    """Share of the points that all others label right (leave-one-out), by rows. None: not known."""
    largest_group: int = 0
    """Rows of the largest group of a kernel head. With 1, ``agreement`` is an accuracy; means of
    more rows are easier to label than rows."""

    @property
    def accuracy(self) -> float | None:
        """The leave-one-out accuracy on single rows; None where it is not known."""
        return self.agreement if self.largest_group == 1 else None

    def __str__(self) -> str:
        text = f"{printable(self.route)}; lambda {self.lam:.4g}"
        text += f", cut {self.f:.2%}" if self.f else ""
        text += f", effective rank {self.effective_rank:.1f}, condition {self.condition:.2g}"
        text += f", residual {self.residual:.1e}"
        if self.eps_W < sys.float_info.max:
            text += f", error of the weights at most {self.eps_W:.3g}"
        if self.agreement is not None:
            name = "accuracy" if self.accuracy is not None else "agreement"
            text += f", leave-one-out {name} {self.agreement:.1%}"
        return text


@dataclass(frozen=True, eq=False)
class Head:
    """A classifier: scores = H W over random features, or k(X, landmarks) W over prepared rows.

    H stands for ``phi(Z)`` in both cases. The kernel is exp((x'l - 1) / scale).

    >>> import numpy as np, fedran
    >>> agg = fedran.Aggregator(out_features=3)
    >>> _ = agg.absorb(fedran.summarize(np.eye(3), ["a", "b", "c"]), client="x", task="t")
    >>> agg.solve().predict(np.eye(3)).tolist()
    ['a', 'b', 'c']
    """

    weights: Float[Array, "m C"]
    """W, (M, C), or one row per landmark. In float32, or in float64 as the sum that was solved."""
    classes: tuple[Label, ...]
    diagnosis: Diagnosis
    fingerprint: Fingerprint | None = None
    digest: str | None = field(default=None, repr=False)
    calibration: Calibration | None = field(default=None, repr=False)
    """Scores of rows that were not learned, for probabilities and for "don't know"."""
    seen: Float[Array, "M q"] | None = field(default=None, repr=False)
    """The q leading directions of the learned rows, shrunk by the ridge, for ``novelty``."""
    landmarks: Float[Array, "m d"] | None = field(default=None, repr=False)
    """The points, or means of points, that support a kernel head; None for a linear head."""
    scale: float = 1.0
    """Of the kernel."""

    def __post_init__(self) -> None:
        if self.weights.ndim != 2 or self.weights.shape[1] != len(self.classes):
            expected = f"shape (M, {len(self.classes)})"
            raise Refused("weights", expected, tuple(self.weights.shape))
        if self.seen is not None and self.seen.shape[0] != self.out_features:
            raise Refused("seen", f"shape ({self.out_features}, q)", tuple(self.seen.shape))
        if self.landmarks is not None and self.landmarks.shape[0] != self.weights.shape[0]:
            expected = f"{self.weights.shape[0]} rows, one per row of the weights"
            raise Refused("landmarks", expected, tuple(self.landmarks.shape))
        if not self.classes or self.classes != ordered(self.classes):
            raise Refused("classes", "distinct labels in order, ints before strs", self.classes)

    @property
    def out_features(self) -> int:
        """The columns that ``phi(Z)`` must have: M, or the width of the landmarks."""
        return int((self.weights.T if self.landmarks is None else self.landmarks).shape[1])

    def _rows(self, H: ArrayLike | Array) -> Float[Array, "n M"]:
        rows = as_matrix(H, "H")
        if rows.shape[1] != self.out_features:
            got = f"{tuple(rows.shape)}; pass phi(Z), not Z"
            if self.fingerprint is not None:
                kind = "RandomFeatures" if self.landmarks is None else "KernelFeatures"
                got += f", with phi = fedran.{kind}.from_fingerprint(head.fingerprint)"
            raise ValueError(f"H must have {self.out_features} columns, got shape {got}")
        return rows

    def scores(self, H: ArrayLike | Array) -> Float[Array, "n C"]:
        """H W or k(H, landmarks) W, (n, C), in the array library and on the device of H."""
        H = self._rows(H)
        xp = namespace(H)
        W = xp.astype(like(self.weights, H), H.dtype)
        if self.landmarks is None:
            return H @ W
        support, n = xp.astype(like(self.landmarks, H), H.dtype), H.shape[0]
        found = xp.empty((n, W.shape[1]), dtype=H.dtype, device=device(H))
        for rows in blocks(n, support.shape[0], 8):
            found[rows] = kernel(H[rows], support, self.scale) @ W
        return found

    def predict(self, H: ArrayLike | Array, reject: float | None = None) -> NDArray[Any]:
        """The best-scoring label of each row: int64, str, or object when both kinds occur.

        With ``reject`` it is None, in an array of objects, for the rows on which ``abstain``
        does not decide.
        """
        if reject is not None and not 0 < real_number(reject, "reject") < 1:
            raise ValueError(
                f"reject must lie between 0 and 1, the share of rows that may get a wrong label, "
                f"got {reject!r}"
            )
        with np.errstate(invalid="ignore", over="ignore"):
            scores = self.scores(H)
        require_finite(scores, "H (or its scores)")
        best = to_numpy(namespace(scores).argmax(scores, axis=1))
        found = label_array(self.classes)[best]
        if reject is not None:
            found = found.astype(object)
            found[self.abstain(H, reject)] = None
        return found

    def prediction_sets(self, H: ArrayLike | Array, alpha: float) -> Bool[NDArray[Any], "n C"]:
        """Which labels each row may have: a set that lacks the true one with probability alpha.

        The labels whose scores are at most ``calibration.threshold(alpha)`` below the best. For
        rows like those of the calibration, the true label is in the set with probability at least
        1 - alpha, where the calibration was made on rows held out from this very head.
        Leave-one-out scores, and scores by the earlier or smaller heads of batches and sites,
        give it approximately. ValueError where the calibration lacks too many of the classes.
        """
        threshold = self._calibrated().threshold(alpha, len(self.classes))
        scores = np.clip(to_numpy(cast(self.scores(H), "float64")), *SCORE_RANGE)
        return scores >= np.max(scores, axis=1, keepdims=True) - threshold

    def abstain(self, H: ArrayLike | Array, alpha: float) -> Bool[NDArray[Any], " n"]:
        """Rows whose prediction set at ``alpha`` has several labels: "don't know".

        Of all rows, at most a share alpha is then decided and wrong.
        """
        return np.sum(self.prediction_sets(H, alpha), axis=1) > 1

    def predict_proba(self, H: ArrayLike | Array) -> Float[NDArray[Any], "n C"]:
        """softmax(scores / T), (n, C), with the temperature of ``calibration``."""
        scores = to_numpy(self.scores(H))
        wide = scores.astype(np.float64) / self._calibrated().temperature
        return np.exp(log_softmax(wide)).astype(scores.dtype)

    def _calibrated(self) -> Calibration:
        if self.calibration is None or self.calibration.total == 0:
            raise ValueError(
                "this head has no calibration: nothing is known about its scores on new rows; "
                "add some with head.calibrate(H, y) on rows that it did not learn from"
            )
        return self.calibration

    def calibrate(self, H: ArrayLike | Array, y: Any) -> Head:
        """The same head, calibrated on rows that it did not learn from.

        Earlier records stay, unless they were compared with only some of the head's classes.
        Labels that the head does not know, None and NaN are left out.
        """
        H = self._rows(H)
        found, codes = encode_labels(y, int(H.shape[0]))
        scores = self.scores(H)
        require_finite(scores, "H (or its scores)")
        new = Calibration.of_scores(scores, recode(codes, found, self.classes))
        earlier = self.calibration
        if earlier is not None and earlier.missing(len(self.classes)) < 1e-9:
            new += earlier
        return replace(self, calibration=new, digest=None)

    def novelty(self, H: ArrayLike | Array) -> Float64[NDArray[Any], " n"]:
        r"""How much of each row is unlike everything learned, from 0 to 1.

        ``1 - ||D'h||^2 / ||h||^2`` where ``D = V_q diag(sqrt(s / (s + lambda)))`` holds the q
        leading eigenvectors and eigenvalues of the Gram G (``Aggregator.solve(novelty=q)``). With
        all M of them it is the row's leverage h' (G + lambda I)^-1 h times lambda / ||h||^2; with
        fewer it is larger. D takes 2 q M bytes in a saved head. Rows of zeros are new: 1.

        Of a kernel head it is one minus the kernel with the nearest landmark.
        """
        if self.landmarks is not None:
            H = self._rows(H)
            require_finite(H, "H")
            xp, known = namespace(H), np.empty(H.shape[0])
            support = xp.astype(like(self.landmarks, H), H.dtype)
            for rows in blocks(H.shape[0], support.shape[0], 8):
                known[rows] = to_numpy(xp.max(kernel(H[rows], support, self.scale), axis=1))
            return np.clip(1 - known, 0.0, 1.0)
        if self.seen is None:
            raise ValueError(
                "this head does not know the directions of its rows; solve with novelty=64"
            )
        X = to_numpy(cast(self._rows(H), "float64"))
        require_finite(X, "H")
        squares = np.sum(X**2, axis=1)
        known = np.sum((X @ to_numpy(cast(self.seen, "float64"))) ** 2, axis=1)
        return np.clip(1 - known / np.where(squares > 0, squares, 1.0), 0.0, 1.0)

    def to(self, device: str | None) -> Head:
        """The same head on a torch device, or in NumPy when ``device`` is None."""
        seen, landmarks = (
            None if array is None else to_device(array, device)
            for array in (self.seen, self.landmarks)
        )
        weights = to_device(self.weights, device)
        return replace(self, weights=weights, seen=seen, landmarks=landmarks)

    def to_onnx(self, **options: Any) -> bytes:
        """The head as an ONNX model: ``fedran.to_onnx(head, phi=None, scaler=None)``."""
        # Exports are above this package, so they are looked up when they are called.
        return import_module("fedran").to_onnx(self, **options)

    def to_torch(self, **options: Any) -> Any:
        """The head as a PyTorch module: ``fedran.to_torch(head, phi=None, scaler=None)``."""
        return import_module("fedran").to_torch(self, **options)

    def __repr__(self) -> str:
        size = f"M={self.out_features}"
        if self.landmarks is not None:
            size = f"d={self.out_features}, landmarks={self.landmarks.shape[0]}"
        return f"Head({size}, classes={len(self.classes)}, {self.diagnosis})"


def make_head(
    solution: Solution,
    sums: ClassSums,
    lam: float,
    accounts: Accounts,
    fingerprint: Fingerprint | None = None,
    dtype: str = "float32",
) -> Head:
    """A head from a solve of (G + lambda I) W = B for class sums B, with its diagnosis.

    The weights are stored in ``dtype``. A tighter form of Theorem 2 bounds the error of the
    weights: ``||W - W*|| <= (eps_G ||W|| + eps_B + ||R|| + ||outside||) / lambda``. It follows from
    ``(G + lambda I)(W - W*) = (G - G~) W - R + (B~ - B)``, where G~ and B~ are the stored
    approximations and the inverse of the left matrix has norm at most 1/lambda. It uses the solved
    W instead of the crude bound ``||B|| / lambda``. All norms are Frobenius norms.
    """
    norm_W, norm_B = frobenius(solution.weights), frobenius(sums.sums)
    stored = _stored(solution.weights, norm_W, dtype)
    rounding = eps(stored) * norm_W
    left = solution.residual + solution.outside
    eps_W = (accounts.eps_G * norm_W + accounts.eps_B + left) / lam
    paper = accounts.eps_G / lam * norm_B / lam + solution.outside / lam
    most = sys.float_info.max  # where a bound overflows: still true, and it can be stored
    diagnosis = Diagnosis(
        route=solution.route,
        lam=lam,
        f=accounts.cut_fraction,
        n_rows=accounts.n_rows,
        effective_rank=solution.effective_rank,
        condition=min((solution.norm + lam) / lam, most),
        residual=left / norm_B if norm_B > 0 else 0.0,
        eps_W=min(eps_W, most) + rounding,
        eps_W_paper=min(paper, most),
    )
    return Head(stored, sums.classes, diagnosis, fingerprint)


def make_kernel_head(
    solution: KernelSolution,
    points: Labelled,
    classes: tuple[Label, ...],
    fingerprint: Fingerprint | None = None,
) -> Head:
    """A head from kernel ridge on points.

    Where all points are single rows, what all others say about them calibrates it.
    """
    left_out, lam = solution.left_out, solution.ridge
    largest, rows = int(points.counts.max()), points.counts[left_out.points]
    diagnosis = Diagnosis(
        route=solution.route,
        lam=lam,
        f=0.0,
        n_rows=int(points.counts.sum()),
        effective_rank=solution.effective_rank,
        condition=min((solution.norm + lam) / lam, sys.float_info.max),
        residual=solution.residual,
        agreement=float(left_out.right(points) @ rows / rows.sum()) if len(rows) else None,
        largest_group=largest,
    )
    calibration = None
    if largest == 1 and len(rows):
        calibration = Calibration.of_scores(left_out.scores, points.codes[left_out.points])
    return Head(
        _stored(solution.alpha, frobenius(solution.alpha)),
        classes,
        diagnosis,
        fingerprint,
        calibration=calibration,
        landmarks=cast(solution.support, "float32"),
        scale=solution.scale,
    )


def _stored(weights: Array, norm: float, dtype: str = "float32") -> Array:
    """Weights in a dtype. ValueError where it cannot hold them."""
    xp = namespace(weights)
    with np.errstate(over="ignore"):
        stored = cast(weights, dtype)
    if not bool(xp.all(xp.isfinite(stored))) or (norm > 0 and not bool(xp.any(stored != 0))):
        raise ValueError(
            f"the weights (norm {norm:.3g}) are out of the range of {dtype}; rescale the features"
        )
    return stored
