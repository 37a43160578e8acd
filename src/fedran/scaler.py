"""A standardisation that several sites can agree on without pooling rows."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fedran.core._linalg.arrays import check_weights
from fedran.core.errors import Refused

FLOATS = [np.float64, np.float32]
FORMAT = "fedran scaler 1"
MAX_COLUMNS = 2**20


class FederatedScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Standardise columns to mean 0 and variance 1. Fitted scalers can be added.

    ``a + b`` equals the scaler that was fitted on the rows of both, except for rounding (Chan's
    formula). Two sites that fit their own scalers and share only these can standardise alike.

    Attributes
    ----------
    mean_, var_, scale_ : ndarray of shape (d,)
        Means, variances and their square roots; the scale of a constant column is 1.
    n_samples_seen_ : float
        The number of rows, or the sum of their weights.
    fingerprint_ : str
        A hash of the means and scales. Models with different scalers are not added.

    Notes
    -----
    A fitted scaler tells the mean and the variance of every column and the number of rows.
    ``to_json`` writes exactly these, for sites on different machines.

    Examples
    --------
    >>> import numpy as np
    >>> a = FederatedScaler().fit([[0.0], [2.0]])
    >>> b = FederatedScaler().fit([[4.0]])
    >>> (a + b).mean_.tolist(), (a + b).var_.round(4).tolist()
    ([2.0], [2.6667])
    """

    def fit(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> FederatedScaler:
        """Forget everything and take the statistics of X (n, d). ``y`` is ignored."""
        for name in ("mean_", "n_samples_seen_"):
            if hasattr(self, name):
                delattr(self, name)
        return self.partial_fit(X, y, sample_weight)

    def partial_fit(
        self,
        X: ArrayLike,
        y: object = None,  # noqa: ARG002
        sample_weight: ArrayLike | None = None,
    ) -> FederatedScaler:
        """Add the statistics of more rows."""
        fresh = not hasattr(self, "mean_")
        rows: NDArray[Any] = validate_data(self, X, reset=fresh, dtype=FLOATS).astype(np.float64)
        weights = np.ones(len(rows))
        if sample_weight is not None:
            weights = check_weights(sample_weight, len(rows))
            if not weights.any():
                raise ValueError("all sample weights are zero: nothing can be learned")
        n = float(weights.sum())
        with np.errstate(over="ignore", invalid="ignore"):
            mean = weights @ rows / n
            squares = weights @ (rows - mean) ** 2
        if not np.all(np.isfinite(squares)):
            raise ValueError("X has values whose squares are out of the range of float64")
        if fresh:
            self._set(n, mean, squares)
        else:
            self._set(*self._combined(n, mean, squares))
        return self

    def _combined(
        self, m: float, other: NDArray[np.float64], more: NDArray[np.float64]
    ) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
        """Rows, means and sums of squared deviations of these and m other rows (Chan's formula)."""
        n, gap = self.n_samples_seen_, other - self.mean_
        squares = self._squares + more + gap**2 * (n * m / (n + m))
        return n + m, self.mean_ + gap * (m / (n + m)), squares

    def _set(self, n: float, mean: NDArray[np.float64], squares: NDArray[np.float64]) -> None:
        self.n_samples_seen_, self.mean_, self._squares = n, mean, squares
        self.var_ = squares / n
        # A constant column has a variance of rounding, which must not become its scale.
        rounding = n * np.finfo(np.float64).eps
        constant = self.var_ <= rounding * self.var_ + (rounding * mean) ** 2
        self.scale_ = np.where(constant, 1.0, np.sqrt(self.var_))

    @property
    def fingerprint_(self) -> str:
        """A hash of means and scales to six digits, so that the order of additions is no matter."""
        check_is_fitted(self, "mean_")
        digits = np.concatenate([self.mean_ / self.scale_, np.log(self.scale_)]).round(6) + 0.0
        return hashlib.sha256(digits.astype("<f8").tobytes()).hexdigest()

    def transform(self, X: ArrayLike) -> NDArray[np.floating]:
        """(X - mean) / scale, in the dtype of X."""
        check_is_fitted(self, "mean_")
        return self.standardize(validate_data(self, X, reset=False, dtype=FLOATS))

    def standardize(self, rows: NDArray[Any]) -> NDArray[np.floating]:
        """The same for a matrix of numbers whose columns were compared already."""
        dtype = rows.dtype if rows.dtype in FLOATS else np.dtype(np.float64)
        return ((rows - self.mean_) / self.scale_).astype(dtype, copy=False)

    def __sklearn_tags__(self) -> Any:
        """Tells scikit-learn which dtypes are kept."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def __radd__(self, other: object) -> FederatedScaler:
        """Lets ``sum([a, b, c])`` start from 0."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __add__(self, other: object) -> FederatedScaler:
        """The scaler of the rows of both."""
        if not isinstance(other, FederatedScaler):
            return NotImplemented
        for scaler in (self, other):
            check_is_fitted(scaler, "mean_")
        if self.n_features_in_ != other.n_features_in_:
            raise ValueError(
                f"one scaler has {self.n_features_in_} columns and the other "
                f"{other.n_features_in_}; fit both on the same columns"
            )
        names = [list(getattr(s, "feature_names_in_", ())) for s in (self, other)]
        if names[0] != names[1]:
            raise ValueError("the feature names of the two scalers differ, or their order")
        total = FederatedScaler()
        total.n_features_in_ = self.n_features_in_
        if names[0]:
            total.feature_names_in_ = self.feature_names_in_
        total._set(*self._combined(other.n_samples_seen_, other.mean_, other._squares))
        return total

    def to_json(self) -> str:
        """Rows, means and variances as text, to send to another machine."""
        check_is_fitted(self, "mean_")
        values: dict[str, Any] = {"format": FORMAT, "rows": self.n_samples_seen_}
        values |= {"mean": self.mean_.tolist(), "variance": self.var_.tolist()}
        if hasattr(self, "feature_names_in_"):
            values["columns"] = list(self.feature_names_in_)
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> FederatedScaler:
        """The scaler that ``to_json`` wrote. Text from anyone: it is checked, never executed."""
        try:
            values = json.loads(text)
            n, arrays = float(values["rows"]), [values["mean"], values["variance"]]
            mean, var = (np.array(a, dtype=np.float64) for a in arrays)
            names = values.get("columns")
            known = values["format"] == FORMAT
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as reason:
            raise Refused("scaler", "the text of FederatedScaler.to_json", str(reason)) from None
        if not known or mean.ndim != 1 or mean.shape != var.shape or not len(mean):
            raise Refused("scaler", f"{FORMAT!r} with means and variances", "another text")
        if len(mean) > MAX_COLUMNS:
            raise Refused("scaler", f"at most {MAX_COLUMNS} columns", len(mean))
        finite = np.isfinite([n, *mean, *var]).all() and np.isfinite(n * var).all()
        if not finite or n <= 0 or np.any(var < 0):
            raise Refused("scaler", "finite means, variances of at least 0 and rows", "others")
        scaler = cls()
        scaler.n_features_in_ = len(mean)
        if names is not None:
            texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
            if not texts or len(names) != len(mean):
                raise Refused("scaler", f"{len(mean)} names of columns", names)
            scaler.feature_names_in_ = np.array(names, dtype=object)
        scaler._set(n, mean, var * n)
        return scaler
