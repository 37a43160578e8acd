"""The classifier: one label per row, or several, with calibrated probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted

from fedran.core.errors import printable
from fedran.core.labels import (
    Label,
    encode_labels,
    label_array,
    recode,
    require_labels,
    warn_of_similar,
)
from fedran.core.prepare import Kind
from fedran.core.solve.calibration import Calibration, leave_one_out
from fedran.core.solve.head import Head
from fedran.core.solve.ridge import Ridge
from fedran.core.summary import Summary
from fedran.core.sums.stored_points import ClassWeight, class_weights
from fedran.estimator.additive import AdditiveModel, Batch, learned_blocks, standardized
from fedran.scaler import FederatedScaler

LEFT_OUT_ROWS = 1024
"""Most rows of one batch whose leave-one-out scores are computed: 2 M^2 operations per row."""


class FedRANClassifier(ClassifierMixin, AdditiveModel):  # type: ignore[misc]
    r"""Ridge classifier on random features, in closed form, mergeable and incremental.

    Parameters
    ----------
    out_features:
        M, the number of random features.
    kind:
        ``"cosine"``, ``"hellinger"`` (X must not be negative) or ``"relu"``, as in
        ``RandomFeatures``.
    bias:
        Whether a constant is appended to every row, so that the model can use the row's length.
    ridge:
        How much the weights are shrunk. ``"cv"`` chooses among ``Ridge.SEARCHED`` by the evidence
        of all rows learned so far, a cross-validation in closed form that needs only their sums. A
        number is a multiple of the default rule: 10 gives ten times its lambda. A ``fedran.Ridge``
        sets lambda otherwise, for example ``Ridge.absolute(0.1)``.
    random_state:
        Seed of P. Models add only if it is the same int in both, and all other parameters too.
    scaler:
        A fitted ``FederatedScaler`` to apply to X, for example one that several sites added up. An
        unfitted one is fitted on the first rows. Its fingerprint becomes part of the model's.
    class_weight:
        Weights of classes by label (others have 1), relative to the largest: rows of that class
        count once, and others less. ``"balanced"`` lets all classes of ``fit`` count alike; where
        there are several batches or models, give all of them the same dict.

    Attributes
    ----------
    classes_ : ndarray
        The labels seen so far; of indicators ``y`` (n, L) the numbers of their columns.
    n_features_in_ : int
        The width of X.
    phi_ : RandomFeatures
        The random-feature map.
    scaler_ : FederatedScaler or None
        The fitted scaler.
    head_ : Head
        The solved head, with its diagnosis.

    Notes
    -----
    Scale X first, with ``scaler=FederatedScaler()`` or ``StandardScaler``: the random features mix
    all columns, so a column with large values hides the others.

    ``fit`` takes n M (2 d + M) operations, and 2 M^2 more for each of at most 1,024 rows that
    calibrate. The state has 4 M^2 bytes (8 M^2 for M up to 2,048), less for up to M / 4 rows, of
    which a pickle has 4 M bytes each. It holds no training row.
    ``partial_fit`` may add classes at any time. Scores, but not the calibration, are the same for
    every split of the rows into batches, except for rounding.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_wine(return_X_y=True)
    >>> X = StandardScaler().fit_transform(X)
    >>> a = FedRANClassifier(out_features=256).fit(X[:90], y[:90])
    >>> b = FedRANClassifier(out_features=256).fit(X[90:], y[90:])
    >>> (a + b).score(X, y) > 0.95
    True
    """

    def __init__(
        self,
        out_features: int = 2048,
        kind: Kind = "cosine",
        bias: bool = True,
        ridge: Ridge | float | Literal["cv"] | None = "cv",
        random_state: int | None = 0,
        scaler: FederatedScaler | None = None,
        class_weight: ClassWeight = None,
    ) -> None:
        super().__init__(out_features, kind, bias, ridge, random_state, scaler)
        self.class_weight = class_weight

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,  # noqa: ARG002
        sample_weight: ArrayLike | None = None,
    ) -> FedRANClassifier:
        """Learn from one more batch. ``classes`` is accepted for compatibility and ignored."""
        self._require_common_weights("batches")
        self._learn(X, y, sample_weight, fresh=not getattr(self, "_complete", False))
        return self

    def _learn(self, X: Any, y: Any, sample_weight: Any, fresh: bool) -> Batch:
        """Absorb one batch and calibrate on it.

        The calibration takes scores from before the batch was absorbed. Where there is no model
        yet, or where the batch has new classes, it takes leave-one-out scores instead.
        """
        known = set() if fresh else set(self.classes_.tolist())
        batch = super()._learn(X, y, sample_weight, fresh)
        if fresh or not set(batch.names) <= known:
            self._calibrate_left_out(batch)
        return batch

    def _checked(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> Batch:
        """Rows with their labels, and with the weights of their classes."""
        require_labels(y)
        batch = super()._checked(X, y, sample_weight, reset)
        if self.class_weight is None:
            return batch
        if batch.targets.ndim == 2:
            raise ValueError("class_weight is for one label per row; use sample_weight")
        rows = np.bincount(batch.targets, batch.weights).astype(np.float64)
        found = class_weights(self.class_weight, batch.names, rows)
        assert found is not None
        given = self.class_weight.values() if isinstance(self.class_weight, Mapping) else found
        of_row = (found / max(1.0, *given))[batch.targets]
        return batch._replace(weights=of_row if batch.weights is None else of_row * batch.weights)

    def _require_common_weights(self, what: str) -> None:
        if self.class_weight == "balanced":
            raise ValueError(
                f"class_weight='balanced' depends on the rows of one fit, so {what} would be "
                "weighted differently; use a dict, for example of 1 / (rows of the class in all "
                f"{what})"
            )

    def _targets(self, y: Any, reset: bool) -> tuple[tuple[Label, ...], NDArray[Any]]:
        check_classification_targets(y)
        several = type_of_target(y) == "multilabel-indicator"
        if several:
            targets = np.asarray(y.toarray() if hasattr(y, "toarray") else y, dtype=np.float64)
            names: tuple[Label, ...] = tuple(range(targets.shape[1]))
        else:
            y = column_or_1d(y, warn=True)
            names, targets = encode_labels(y, len(y))
        if reset:
            self._several = several
        elif several != self._several or (several and len(names) != len(self.classes_)):
            expected = f"indicators of {len(self.classes_)} labels" if self._several else "labels"
            raise ValueError(f"y must hold {expected}, as in the first batch")
        return names, targets

    def _before(
        self, mapped: Iterable[tuple[slice, NDArray[Any]]], batch: Batch
    ) -> Iterable[tuple[slice, NDArray[Any]]]:
        if not self._complete:
            self._calibration = Calibration.empty()
        elif set(batch.names) <= set(self.classes_.tolist()):
            return self._calibrated_before(mapped, batch)
        else:
            warn_of_similar(self.classes_.tolist(), batch.names, "the new rows", stacklevel=6)
        return mapped

    def _codes(self, batch: Batch, head: Head) -> NDArray[Any]:
        """The targets of a batch in the order of a head."""
        if self._several:
            return batch.targets
        return recode(batch.targets, batch.names, head.classes)

    def _calibrated_before(
        self, mapped: Iterable[tuple[slice, NDArray[Any]]], batch: Batch
    ) -> Iterator[tuple[slice, NDArray[Any]]]:
        """The same blocks, whose scores by an earlier head are recorded before they are used.

        To save solves, that head is solved again only when the rows have grown by half.
        """
        head = self._solved.get("latest")
        if head is None or self._learned.accounts.n_rows > 1.5 * head.diagnosis.n_rows:
            head = self.head_
        codes = self._codes(batch, head)
        for rows, H in mapped:
            w = None if batch.weights is None else batch.weights[rows]
            self._calibration += Calibration.of_scores(head.scores(H), codes[rows], w)
            yield rows, H

    def _calibrate_left_out(self, batch: Batch) -> None:
        """Record leave-one-out scores of the batch, or of a choice of its rows.

        It is even, or with class weights in proportion to these. Of a row of weight w, one of w
        copies is left out.
        """
        n = batch.X.shape[0]
        weighted = self.class_weight is not None
        share = batch.weights if weighted and batch.weights is not None else np.ones(n)
        steps = np.cumsum(share) - share / 2
        chosen = np.unique(np.searchsorted(steps, np.linspace(steps[0], steps[-1], LEFT_OUT_ROWS)))
        part = batch.take(chosen)
        H = np.concatenate([H for _, H in learned_blocks(self.phi_, part.X)])
        head, leverages = self._learned.solve_with_leverages(
            H, self._ridge(), self.phi_.fingerprint
        )
        codes = self._codes(part, head)
        w = np.ones(len(chosen)) if part.weights is None else part.weights
        scores = head.scores(H.astype(np.float64))
        left_out = leave_one_out(scores, codes, np.minimum(w, 1.0) * leverages)
        if weighted:  # rows of a class stand for those that were not chosen
            whole, found = (np.bincount(b.targets, b.weights) for b in (batch, part))
            w = w * (whole / found)[part.targets]
        self._calibration += Calibration.of_scores(left_out, codes, w)
        self._keep(head)

    def _keep(self, head: Head) -> None:
        self._solved.update(head=replace(head, calibration=self._calibration), latest=head)

    def _forget_head(self) -> None:
        super()._forget_head()
        self.classes_ = label_array(self._learned.class_sums.classes)
        self._recalibrated = False

    def __sklearn_tags__(self) -> Any:
        """Tells scikit-learn that a row may have several labels."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def decision_function(self, X: ArrayLike) -> NDArray[np.floating]:
        """Scores (n, C); for two classes one column, positive for ``classes_[1]``.

        Of indicators, a score is positive where the row has the label.
        """
        head = self.head_
        scores = np.concatenate([head.scores(H) for _, H in self._mapped(X)])
        if self._several:
            return scores - 0.5
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: ArrayLike) -> NDArray[np.floating]:
        """Probabilities (n, C): softmax(scores / T), columns in the order of ``classes_``.

        Of indicators they are those of each label: sigmoid(2 (s - 1/2) / T).

        The temperature T has the least log loss on scores of rows that the model had not learned
        from: leave-one-out scores in ``fit`` and ``calibrate``; scores before a batch is absorbed
        in ``partial_fit``. After ``+`` it comes from the added records of both models.
        """
        head = self.head_
        if self._several:
            T = head.calibration.temperature if head.calibration else 1.0
            return expit(2 * self.decision_function(X) / T)
        return np.concatenate([head.predict_proba(H) for _, H in self._mapped(X)])

    def calibrate(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> FedRANClassifier:
        """Calibrate again on rows that this model has learned, by leave-one-out scores.

        For sums, and for models that met their classes in several batches: the scores recorded
        so far are of smaller models, and lack the classes that joined later. The first call after
        new rows replaces them. Further calls add to it, so that several sites can call it one
        after the other, each with its own rows.
        """
        check_is_fitted(self)
        batch = self._checked(X, y, sample_weight, reset=False)
        batch = batch._replace(X=standardized(batch.X, self.scaler_))
        known = self.classes_.tolist()
        if unknown := [label for label in batch.names if label not in known]:
            raise ValueError(
                "calibrate takes learned rows with their labels, expected only labels of classes_, "
                f"got {printable(repr(unknown[0]))}; learn new classes with partial_fit"
            )
        if not self._recalibrated:
            self._calibration, self._recalibrated = Calibration.empty(), True
        self._calibrate_left_out(batch)
        return self

    def predict(self, X: ArrayLike, reject: float | None = None) -> NDArray[Any]:
        """The best label of each row.

        With ``reject=alpha`` it is None where the model cannot exclude all labels but one
        (``Head.prediction_sets``). Of all rows, at most a share of about alpha is then decided
        and wrong. Where parts of a sum had different classes, call ``calibrate`` first.
        """
        if reject is not None:
            head = self.head_
            if self._several:
                raise ValueError("reject is for one label per row; use predict_proba")
            return np.concatenate([head.predict(H, reject) for _, H in self._mapped(X)])
        scores = self.decision_function(X)
        if self._several:
            return (scores > 0).astype(np.int64)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[best]

    def summary(self, rank: int | None = 256) -> Summary:
        """A summary of the given rank of all rows seen, for example to send as an upload."""
        check_is_fitted(self)
        if self._learned.class_sums.weights is not None:
            raise ValueError(
                "in a summary every row has one label and counts once: fit the model without "
                "weights, or with repeated rows"
            )
        return self._learned.summary(rank, self.phi_.fingerprint)

    def to_onnx(self) -> bytes:
        """The fitted model with its scaler as an ONNX model: rows in, labels and scores out."""
        if self._several:
            raise ValueError("an ONNX model has one label per row; export one model per label")
        return self.head_.to_onnx(phi=self.phi_, scaler=self.scaler_)

    def _join(self, a: FedRANClassifier, b: FedRANClassifier) -> None:
        warn_of_similar(a.classes_.tolist(), b.classes_.tolist(), "the second model", stacklevel=4)
        self._several = a._several
        self._calibration = a._calibration + b._calibration

    def _common(self) -> dict[str, Any]:
        shared = super()._common()
        self._require_common_weights("models")
        several = f"{len(self.classes_)} columns" if self._several else "labels"
        return shared | {"class_weight": self.class_weight, "y": several}
