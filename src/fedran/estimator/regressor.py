"""The regressor: real targets, one column or several."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin

from fedran.core.labels import Label
from fedran.core.sums.class_sums import ClassSums
from fedran.estimator.additive import AdditiveModel

ONES = "ones"
"""The column of Y with which B has the sum of all rows, for means of targets that move."""


class FedRANRegressor(RegressorMixin, AdditiveModel):  # type: ignore[misc]
    """Ridge regression on random features, in closed form, mergeable and incremental.

    The parameters are those of ``FedRANClassifier``. Targets are centred with the mean of all rows
    learned so far, so that a constant added to y is added to the predictions.

    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_diabetes(return_X_y=True)
    >>> X = StandardScaler().fit_transform(X)
    >>> a = FedRANRegressor(out_features=256).fit(X[:200], y[:200])
    >>> b = FedRANRegressor(out_features=256).fit(X[200:], y[200:])
    >>> (a + b).score(X, y) > 0.5
    True
    """

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> FedRANRegressor:
        """Learn from one more batch."""
        self._learn(X, y, sample_weight, fresh=not getattr(self, "_complete", False))
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.floating]:
        """The targets of each row, (n,) or (n, T)."""
        head = self.head_
        blocks = self._mapped(X, exact=True)
        found = np.concatenate([head.scores(H.astype(np.float64, copy=False)) for _, H in blocks])
        found += self._means()
        return found[:, 0] if self._vector else found

    def _targets(self, y: Any, reset: bool) -> tuple[tuple[Label, ...], NDArray[Any]]:
        Y = np.asarray(y, dtype=np.float64)
        vector, Y = Y.ndim == 1, Y.reshape(len(Y), -1)
        if reset:
            self._vector = vector
        elif Y.shape[1] != len(self._means()):
            raise ValueError(f"y must have {len(self._means())} columns, got {Y.shape[1]}")
        return (*range(Y.shape[1]), ONES), np.hstack([Y, np.ones((len(Y), 1))])

    def _means(self) -> NDArray[np.float64]:
        return self._learned.class_sums.totals[:-1] / self._learned.accounts.weight

    def _sums(self) -> ClassSums:
        """H'(Y - mean), and the squared norms of Y - mean."""
        raw, mean = self._learned.class_sums, self._means()
        squares = raw.target_squares[:-1] - self._learned.accounts.weight * mean**2
        rounding = np.finfo(np.float64).eps * raw.target_squares[:-1] * len(mean)
        return ClassSums(
            raw.classes[:-1],
            raw.sums[:, :-1] - raw.sums[:, -1:] * mean,
            raw.counts[:-1],
            (0.0,) * len(mean),
            tuple(np.where(squares > 16 * rounding, squares, 0.0).tolist()),
        )

    def _join(self, a: FedRANRegressor, b: FedRANRegressor) -> None:
        self._vector = a._vector and b._vector

    def _common(self) -> dict[str, Any]:
        return super()._common() | {"columns of y": len(self._means())}

    def __sklearn_tags__(self) -> Any:
        """Tells scikit-learn that y may have several columns."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
