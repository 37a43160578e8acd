"""What all estimators share: rows become sums, sums add, and a sum is solved when it is asked."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from fedran.core._linalg.arrays import check_weights
from fedran.core.errors import Refused
from fedran.core.features import RandomFeatures
from fedran.core.fingerprint import columns_hash
from fedran.core.labels import Label
from fedran.core.prepare import Kind
from fedran.core.solve.head import Head
from fedran.core.solve.ridge import Ridge, seen_directions
from fedran.core.sums.class_sums import ClassSums
from fedran.core.sums.exact_sum import ExactSum
from fedran.core.sums.scale import require_energy, small_rows, unequal_scales
from fedran.scaler import FederatedScaler

NOVELTY_RANK = 64
"""Directions of the learned rows with which ``novelty`` compares."""
FLOAT64_WIDTH = 2048
"""Up to this M sums, and projections of learned rows, are float64, as scikit-learn's tolerances
need: on many processors a float32 product depends on the rows beside a row. Wider ones are
float32."""
BLOCK_BYTES = 16 * 2**20
"""Block of random features. Larger blocks were no faster and took more memory (measured)."""
OWN_SCALE = 1e-5
"""Columns whose mean and variance are so near to 0 and 1 were scaled with these very rows."""

Model = TypeVar("Model", bound="AdditiveModel")


class Batch(NamedTuple):
    """Rows, the names of the columns of Y, Y itself or the position of its 1, and weights."""

    X: Any
    names: tuple[Label, ...]
    targets: NDArray[Any]
    """(n,) positions in ``names``, or (n, C) real numbers."""
    weights: NDArray[np.float64] | None

    def take(self, rows: NDArray[Any]) -> Batch:
        """Some of the rows."""
        weights = None if self.weights is None else self.weights[rows]
        return self._replace(X=self.X[rows], targets=self.targets[rows], weights=weights)


class AdditiveModel(BaseEstimator):  # type: ignore[misc]
    """Ridge on random features, kept as sums that add. A subclass says what its targets are."""

    def __init__(
        self,
        out_features: int = 2048,
        kind: Kind = "cosine",
        bias: bool = True,
        ridge: Ridge | float | Literal["cv"] | None = "cv",
        random_state: int | None = 0,
        scaler: FederatedScaler | None = None,
    ) -> None:
        self.out_features = out_features
        self.kind = kind
        self.bias = bias
        self.ridge = ridge
        self.random_state = random_state
        self.scaler = scaler

    def fit(
        self: Model, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Model:
        """Forget everything and learn from X (n, d), dense or CSR, and y.

        A row of weight w counts as w equal rows, and a row of weight 0 is left out.
        """
        self._learn(X, y, sample_weight, fresh=True)
        return self

    @abstractmethod
    def _targets(self, y: Any, reset: bool) -> tuple[tuple[Label, ...], NDArray[Any]]:
        """Names and targets of checked y."""

    def _learn(self, X: Any, y: Any, sample_weight: Any, fresh: bool) -> Batch:
        """Absorb one batch."""
        if self.ridge != "cv":
            Ridge.parse(self.ridge)
        batch = self._checked(X, y, sample_weight, reset=fresh)
        scaler = self.scaler if fresh else self.scaler_
        if isinstance(scaler, FederatedScaler) and not hasattr(scaler, "mean_"):
            scaler = clone(scaler).fit(X, sample_weight=sample_weight)
        if scaler is not None and not hasattr(scaler, "fingerprint_"):
            got = f"{type(scaler).__name__}; put other scalers before the model, in a Pipeline"
            raise TypeError(f"scaler must be a FederatedScaler or None, got {got}")
        if fresh and scaler is not None:  # compares the names of columns
            validate_data(scaler, X, reset=False, skip_check_array=True)
        own_scale = scaler is None and _scaled_by_themselves(batch.X)
        batch = batch._replace(X=standardized(batch.X, scaler))
        phi = self._new_map(batch.X.shape[1], scaler) if fresh else self.phi_
        names = getattr(self, "feature_names_in_", ())
        if fresh:
            small = small_rows(batch.X, phi.kind) if phi.bias else ""
            if text := small or unequal_scales(batch.X, names, phi.kind):
                remedy = "scale them, as scaler=FederatedScaler() does"
                remedy = "use bias=False" if sparse.issparse(batch.X) else remedy
                warnings.warn(f"{text}; {remedy}", stacklevel=4)
        if phi.kind == "relu":
            require_energy(batch.X, phi.out_features)
        try:
            mapped = learned_blocks(phi, batch.X)
        except Refused as reason:  # in the words that scikit-learn's checks look for
            raise ValueError(f"Negative values in data: {reason.got}; {reason.hint}") from None
        if fresh:
            self._complete = False  # not fitted, should this be interrupted
            self.phi_: RandomFeatures = phi
            self.scaler_: FederatedScaler | None = scaler
            dtype = "float64" if phi.out_features <= FLOAT64_WIDTH else "float32"
            self._learned = ExactSum(phi.out_features, dtype)
            self._solved: dict[str, Any] = {}
            self._parts: frozenset[tuple[Any, ...]] = frozenset()
            self._own_scale = own_scale
        self._learned.add_rows(
            self._before(mapped, batch), batch.names, batch.targets, batch.weights
        )
        self._complete = True
        self._forget_head()
        return batch

    def _checked(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> Batch:
        """Rows of positive weight with their targets, after scikit-learn's checks."""
        dense = (self.scaler if reset else self.scaler_) is not None  # centred rows are not sparse
        X, y = validate_data(
            self,
            X,
            y,
            reset=reset,
            dtype=[np.float32, np.float64],
            accept_sparse=False if dense else "csr",
            multi_output=True,
        )
        weights = None
        if sample_weight is not None:
            weights = check_weights(sample_weight, X.shape[0])
            kept = weights > 0
            if not kept.any():
                raise ValueError("all sample weights are zero: nothing can be learned")
            X, y, weights = X[kept], y[kept], weights[kept]
        return Batch(X, *self._targets(y, reset), weights)

    def _before(
        self,
        mapped: Iterable[tuple[slice, NDArray[Any]]],
        batch: Batch,  # noqa: ARG002
    ) -> Iterable[tuple[slice, NDArray[Any]]]:
        """The same blocks of a batch, before they are learned."""
        return mapped

    def _new_map(self, in_features: int, scaler: FederatedScaler | None) -> RandomFeatures:
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = int(check_random_state(seed).randint(2**31))
        source = {} if scaler is None else {"scaler": scaler.fingerprint_}
        if hasattr(self, "feature_names_in_"):
            source["columns"] = columns_hash(self.feature_names_in_)
        return RandomFeatures(in_features, self.out_features, self.kind, seed, self.bias, source)

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(self, "_complete", False)

    def __sklearn_tags__(self) -> Any:
        """Tells scikit-learn which X is accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = self.kind == "hellinger"
        tags.input_tags.sparse = self.scaler is None
        return tags

    def _sums(self) -> ClassSums:
        """The right-hand side of the solve."""
        return self._learned.class_sums

    def _ridge(self) -> Ridge:
        """The ridge of the rows learned so far."""
        if self.ridge == "cv" and "ridge" not in self._solved:
            self._solved["ridge"] = self._learned.best_ridge(self._sums())
        return Ridge.parse(self._solved["ridge"] if self.ridge == "cv" else self.ridge)

    def _forget_head(self) -> None:
        # A dict, so that a prediction, which solves, leaves the estimator's attributes unchanged.
        for name in ("head", "ridge"):
            self._solved.pop(name, None)

    def _keep(self, head: Head) -> None:
        self._solved.update(head=head)

    @property
    def head_(self) -> Head:
        """The solved head. It is computed on first use after new data."""
        check_is_fitted(self)
        if "head" not in self._solved:
            self._keep(self._learned.solve(self._ridge(), self.phi_.fingerprint, self._sums()))
        return self._solved["head"]

    def novelty(self, X: ArrayLike) -> NDArray[np.float64]:
        """How much of each row is unlike everything learned, from 0 to 1 (``Head.novelty``)."""
        head = self.head_
        if head.seen is None:
            seen = seen_directions(self._learned.gram(), NOVELTY_RANK, head.diagnosis.lam)
            head = self._solved["head"] = replace(head, seen=seen)
        return np.concatenate([head.novelty(H) for _, H in self._mapped(X)])

    def _mapped(self, X: ArrayLike, exact: bool = False) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Blocks of the random features of rows to predict, in the dtype of the head's weights."""
        check_is_fitted(self)
        accept = "csr" if self.scaler_ is None else False
        rows = validate_data(
            self, X, reset=False, dtype=[np.float32, np.float64], accept_sparse=accept
        )
        dtype = self.head_.weights.dtype
        for part, H in self.phi_.blocks(standardized(rows, self.scaler_), BLOCK_BYTES, exact=exact):
            yield part, H.astype(dtype, copy=False)

    def __radd__(self: Model, other: object) -> Model:
        """Lets ``sum([a, b, c])`` start from 0."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __add__(self: Model, other: object) -> Model:
        """One model with the scores, to rounding, of a model fitted on the rows of both.

        A classifier's calibration is that of the two, until ``calibrate`` is called. Rows that are
        known to be in both are a warning: they count twice.
        """
        if not isinstance(other, type(self)):
            return NotImplemented
        what = type(self).__name__
        names = [list(getattr(c, "feature_names_in_", ())) for c in (self, other)]
        if names[0] != names[1]:
            raise ValueError(f"the feature names of the two {what}s differ, or their order")
        mine, theirs = self._common(), other._common()
        for name, value in mine.items():
            if value != theirs[name]:
                raise ValueError(
                    f"{name} is {value!r} in one {what} and {theirs[name]!r} in the other; "
                    f"models add only with the same {name}"
                )
        parts = [model._parts or frozenset({model._content()}) for model in (self, other)]
        if parts[0] & parts[1]:
            warnings.warn("both models learned the same rows, which count twice", stacklevel=2)
        elif self._own_scale and other._own_scale:
            raise ValueError(
                "every column has mean 0 and variance 1 in each of the two models, so each was "
                "scaled by its own rows, and equal numbers mean different things; scale all rows "
                "alike, for example with scaler=sum of the FederatedScaler of each part"
            )
        merged = type(self)(**self.get_params())
        for name in ("n_features_in_", "feature_names_in_", "phi_", "scaler_", "_complete"):
            if hasattr(self, name):
                setattr(merged, name, getattr(self, name))
        merged._learned = ExactSum(self.phi_.out_features, self._learned.dtype)
        merged._learned.add_sum(self._learned)
        merged._learned.add_sum(other._learned)
        merged._parts = parts[0] | parts[1]
        merged._own_scale = self._own_scale or other._own_scale
        merged._solved = {}
        merged._join(self, other)
        merged._forget_head()
        return merged

    def _content(self) -> tuple[Any, ...]:
        """Numbers that only copies of a model share."""
        sums = self._learned.class_sums
        return sums.classes, sums.counts, self._learned.accounts.energy

    def _join(self: Model, a: Model, b: Model) -> None:
        """What else a sum of models has."""

    def _common(self) -> dict[str, Any]:
        """What fitted models must share in order to add, by the names of the constructor."""
        check_is_fitted(self)
        phi, scaler = self.phi_, self.phi_.source.get("scaler")
        return {
            "n_features_in_": phi.in_features,
            "out_features": phi.out_features,
            "kind": phi.kind,
            "bias": phi.bias,
            "random_state": phi.seed,
            "scaler": scaler and f"{scaler:.12}...",
            "ridge": self.ridge,
        }


def learned_blocks(phi: RandomFeatures, X: Any) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Blocks of the random features of rows to learn."""
    exact = max(phi.out_features, phi.in_features) <= FLOAT64_WIDTH
    return phi.blocks(X, BLOCK_BYTES, exact=exact)


def standardized(X: Any, scaler: FederatedScaler | None) -> Any:
    """Rows as a fitted scaler scales them."""
    return X if scaler is None else scaler.standardize(X)


def _scaled_by_themselves(X: Any) -> bool:
    """Whether every column that varies has mean 0 and variance 1 in these very rows."""
    if sparse.issparse(X) or len(X) < 2:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        mean, variance = X.mean(axis=0, dtype=np.float64), X.var(axis=0, dtype=np.float64)
    varies = variance > 0
    near = (np.abs(mean) < OWN_SCALE) & (np.abs(variance - 1) < OWN_SCALE)
    return bool(varies.any() and near[varies].all())
