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
    Float32,
    Float64,
    as_matrix,
    cast,
    like,
    namespace,
    require_finite,
    to_device,
    to_numpy,
)
from fedran.core.errors import Refused, printable, real_number
from fedran.core.fingerprint import Fingerprint
from fedran.core.labels import Label, encode_labels, label_array, ordered, recode
from fedran.core.solve.calibration import SCORE_RANGE, Calibration, log_softmax
from fedran.core.solve.ridge import Solution
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

    def __str__(self) -> str:
        bounded = self.eps_W < sys.float_info.max
        return (
            f"{printable(self.route)}; lambda {self.lam:.4g}, cut {self.f:.2%}, effective rank "
            f"{self.effective_rank:.1f}, condition {self.condition:.2g}, residual "
            f"{self.residual:.1e}, error of the weights "
            + (f"at most {self.eps_W:.3g}" if bounded else "not bounded")
        )


@dataclass(frozen=True, eq=False)
class Head:
    """A linear classifier over random features: scores = H W.

    >>> import numpy as np, fedran
    >>> agg = fedran.Aggregator(out_features=3)
    >>> _ = agg.absorb(fedran.summarize(np.eye(3), ["a", "b", "c"]), client="x", task="t")
    >>> agg.solve().predict(np.eye(3)).tolist()
    ['a', 'b', 'c']
    """

    weights: Float[Array, "M C"]
    """W, (M, C) float32."""
    classes: tuple[Label, ...]
    diagnosis: Diagnosis
    fingerprint: Fingerprint | None = None
    digest: str | None = field(default=None, repr=False)
    calibration: Calibration | None = field(default=None, repr=False)
    """Scores of rows that were not learned, for probabilities and for "don't know"."""
    seen: Float[Array, "M q"] | None = field(default=None, repr=False)
    """The q leading directions of the learned rows, shrunk by the ridge, for ``novelty``."""

    def __post_init__(self) -> None:
        if self.weights.ndim != 2 or self.weights.shape[1] != len(self.classes):
            expected = f"shape (M, {len(self.classes)})"
            raise Refused("weights", expected, tuple(self.weights.shape))
        if self.seen is not None and self.seen.shape[0] != self.out_features:
            raise Refused("seen", f"shape ({self.out_features}, q)", tuple(self.seen.shape))
        if not self.classes or self.classes != ordered(self.classes):
            raise Refused("classes", "distinct labels in order, ints before strs", self.classes)

    @property
    def out_features(self) -> int:
        """M, the width of the random features."""
        return int(self.weights.shape[0])

    def _rows(self, H: ArrayLike | Array) -> Float[Array, "n M"]:
        rows = as_matrix(H, "H")
        if rows.shape[1] != self.out_features:
            got = f"{tuple(rows.shape)}; pass phi(Z), not Z"
            if self.fingerprint is not None:
                got += ", with phi = fedran.RandomFeatures.from_fingerprint(head.fingerprint)"
            raise ValueError(f"H must have {self.out_features} columns, got shape {got}")
        return rows

    def scores(self, H: ArrayLike | Array) -> Float[Array, "n C"]:
        """H W, (n, C), in the array library and on the device of H."""
        H = self._rows(H)
        xp = namespace(H)
        return H @ xp.astype(like(self.weights, H), H.dtype)

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

    def probabilities(self, H: ArrayLike | Array) -> Float32[NDArray[Any], "n C"]:
        """softmax(scores / T), (n, C) float32, with the temperature of ``calibration``."""
        scores = to_numpy(cast(self.scores(H), "float64"))
        return np.exp(log_softmax(scores / self._calibrated().temperature)).astype(np.float32)

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
        """
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
        seen = None if self.seen is None else to_device(self.seen, device)
        return replace(self, weights=to_device(self.weights, device), seen=seen)

    def to_onnx(self, **options: Any) -> bytes:
        """The head as an ONNX model: ``fedran.to_onnx(head, phi=None, scaler=None)``."""
        # Exports are above this package, so they are looked up when they are called.
        return import_module("fedran").to_onnx(self, **options)

    def to_torch(self, **options: Any) -> Any:
        """The head as a PyTorch module: ``fedran.to_torch(head, phi=None, scaler=None)``."""
        return import_module("fedran").to_torch(self, **options)

    def __repr__(self) -> str:
        return f"Head(M={self.out_features}, classes={len(self.classes)}, {self.diagnosis})"


def make_head(
    solution: Solution,
    sums: ClassSums,
    lam: float,
    accounts: Accounts,
    fingerprint: Fingerprint | None = None,
) -> Head:
    """A head from a solve of (G + lambda I) W = B for class sums B, with its diagnosis."""
    xp = namespace(sums.sums)
    norm_W = float(xp.linalg.vector_norm(solution.weights))
    norm_B = float(xp.linalg.vector_norm(sums.sums))
    with np.errstate(over="ignore"):
        stored = cast(solution.weights, "float32")
    if not bool(xp.all(xp.isfinite(stored))) or (norm_W > 0 and not bool(xp.any(stored != 0))):
        raise ValueError(
            f"the weights (norm {norm_W:.3g}) are out of the range of float32; rescale the features"
        )
    rounding = float(np.finfo(np.float32).eps) * norm_W
    eps_W = weight_bound(accounts, lam, norm_W, solution.residual, solution.outside)
    diagnosis = Diagnosis(
        route=solution.route,
        lam=lam,
        f=accounts.cut_fraction,
        n_rows=accounts.n_rows,
        effective_rank=solution.effective_rank,
        condition=min((solution.norm + lam) / lam, sys.float_info.max),
        residual=(solution.residual + solution.outside) / norm_B if norm_B > 0 else 0.0,
        eps_W=eps_W + rounding,
        eps_W_paper=paper_weight_bound(accounts, lam, norm_B, solution.outside),
    )
    return Head(stored, sums.classes, diagnosis, fingerprint)


def weight_bound(
    accounts: Accounts, lam: float, norm_W: float, residual: float = 0.0, outside: float = 0.0
) -> float:
    """A tighter form of Theorem 2.

    ``||W - W*|| <= (eps_G ||W|| + eps_B + ||R|| + ||outside||) / lambda``.

    It follows from ``(G + lambda I)(W - W*) = (G - G~) W - R + (B~ - B)``, where G~ and B~ are
    the stored approximations and the inverse of the left matrix has norm at most 1/lambda. It
    uses the solved W instead of the crude bound ``||B|| / lambda``. All norms are Frobenius norms.
    Where mixtures were absorbed no bound exists, and the result is the largest float.
    """
    if accounts.mixture_rows:
        return sys.float_info.max
    bound = (accounts.eps_G * norm_W + accounts.eps_B + residual + outside) / lam
    return min(bound, sys.float_info.max)  # where it overflows: still true, and it can be stored


def paper_weight_bound(
    accounts: Accounts, lam: float, norm_B: float, outside: float = 0.0
) -> float:
    """Theorem 2 as printed: ``eps_G ||B|| / lambda^2 + ||(I - VV')B|| / lambda``."""
    if accounts.mixture_rows:
        return sys.float_info.max
    bound = accounts.eps_G / lam * norm_B / lam + outside / lam
    return min(bound, sys.float_info.max)
