"""The scikit-learn estimator: a classifier whose fitted models can be added."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedran.core._linalg.arrays import check_weights, require_dense
from fedran.core.errors import Refused, printable
from fedran.core.features import RandomFeatures
from fedran.core.fingerprint import columns_hash
from fedran.core.labels import encode_labels, label_array, recode, require_labels, warn_of_similar
from fedran.core.prepare import Kind
from fedran.core.solve.calibration import Calibration, leave_one_out
from fedran.core.solve.head import Head
from fedran.core.solve.ridge import Ridge, seen_directions
from fedran.core.summary import Summary
from fedran.core.sums.exact_sum import ExactSum
from fedran.core.sums.scale import require_energy, small_rows, unequal_scales
from fedran.scaler import FederatedScaler

LEFT_OUT_ROWS = 1024
"""Most rows of one batch whose leave-one-out scores are computed: 2 M^2 operations per row."""
NOVELTY_RANK = 64
"""Directions of the learned rows with which ``novelty`` compares."""
FLOAT64_WIDTH = 2048
"""Up to this M sums, and projections of learned rows, are float64, as scikit-learn's tolerances
need: on many processors a float32 product depends on the rows beside a row. Wider ones are
float32."""
BLOCK_BYTES = 16 * 2**20
"""Block of random features. Larger blocks were no faster and took more memory (measured)."""


class _Batch(NamedTuple):
    """Rows, the labels that occur, each row's position among these, and weights."""

    X: NDArray[Any]
    labels: tuple[int | str, ...]
    codes: NDArray[np.int64]
    weights: NDArray[np.float64] | None

    def scaled(self, scaler: FederatedScaler | None) -> _Batch:
        return self if scaler is None else self._replace(X=scaler.standardize(self.X))


class FedRANClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
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
        How much the weights are shrunk, as a multiple of the default rule: 10 gives ten times its
        lambda. ``fedran.Ridge.GRID`` is a grid to search. A ``fedran.Ridge`` sets lambda
        otherwise, for example ``Ridge.absolute(0.1)``.
    random_state:
        Seed of P. Models add only if it is the same int in both, and all other parameters too.
    scaler:
        A fitted ``FederatedScaler`` to apply to X, for example one that several sites added up. An
        unfitted one is fitted on the first rows. Its fingerprint becomes part of the model's.

    Attributes
    ----------
    classes_ : ndarray
        The labels seen so far.
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
    calibrate. The state has 4 M^2 bytes (8 M^2 for M up to 2,048) and holds no training row.
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
        ridge: Ridge | float = 1.0,
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
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> FedRANClassifier:
        """Forget everything and learn from X (n, d) and y (n,).

        A row of weight w counts as w equal rows, and a row of weight 0 is left out.
        """
        self._learn(X, y, sample_weight, fresh=True)
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,  # noqa: ARG002
        sample_weight: ArrayLike | None = None,
    ) -> FedRANClassifier:
        """Learn from one more batch. ``classes`` is accepted for compatibility and ignored."""
        self._learn(X, y, sample_weight, fresh=not hasattr(self, "classes_"))
        return self

    def _learn(self, X: Any, y: Any, sample_weight: Any, fresh: bool) -> None:
        """Absorb one batch and calibrate on it.

        The calibration takes scores from before the batch was absorbed. Where there is no model
        yet, or where the batch has new classes, it takes leave-one-out scores instead.
        """
        Ridge.parse(self.ridge)
        batch = self._checked(X, y, sample_weight, reset=fresh)
        scaler = self.scaler if fresh else self.scaler_
        if isinstance(scaler, FederatedScaler) and not hasattr(scaler, "mean_"):
            scaler = clone(scaler).fit(X, sample_weight=sample_weight)
        if scaler is not None and not hasattr(scaler, "fingerprint_"):
            got = f"{type(scaler).__name__}; put other scalers before the classifier, in a Pipeline"
            raise TypeError(f"scaler must be a FederatedScaler or None, got {got}")
        if fresh and scaler is not None:  # compares the names of columns
            validate_data(scaler, X, reset=False, skip_check_array=True)
        batch = batch.scaled(scaler)
        phi = self._new_map(batch.X.shape[1], scaler) if fresh else self.phi_
        names = getattr(self, "feature_names_in_", ())
        if fresh:
            small = small_rows(batch.X, phi.kind) if phi.bias else ""
            if text := small or unequal_scales(batch.X, names, phi.kind):
                warnings.warn(f"{text}; scale them, as scaler=FederatedScaler() does", stacklevel=3)
        if phi.kind == "relu":
            require_energy(batch.X, phi.out_features)
        try:
            mapped = _learned_blocks(phi, batch.X)
        except Refused as reason:  # in the words that scikit-learn's checks look for
            raise ValueError(f"Negative values in data: {reason.got}; {reason.hint}") from None
        if fresh:
            self.__dict__.pop("classes_", None)  # not fitted, should this be interrupted
            self.phi_: RandomFeatures = phi
            self.scaler_: FederatedScaler | None = scaler
            dtype = "float64" if phi.out_features <= FLOAT64_WIDTH else "float32"
            self._learned = ExactSum(phi.out_features, dtype, stack=False)
            self._calibration = Calibration.empty()
            self._solved: dict[str, Head] = {}
        known = not fresh and set(batch.labels) <= set(self.classes_.tolist())
        if known:
            mapped = self._calibrated_before(mapped, batch)
        elif not fresh:
            warn_of_similar(self.classes_.tolist(), batch.labels, "the new rows", stacklevel=4)
        self._learned.add_rows(mapped, batch.labels, batch.codes, batch.weights)
        self._forget_head()
        if not known:
            self._calibrate_left_out(batch)

    def _checked(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> _Batch:
        """Rows of positive weight with their labels, after scikit-learn's checks."""
        require_dense(X, "X")
        require_labels(y)
        X, y = validate_data(self, X, y, reset=reset, dtype=[np.float32, np.float64])
        check_classification_targets(y)
        if sample_weight is None:
            return _Batch(X, *encode_labels(y, len(X)), None)
        weights = check_weights(sample_weight, len(X))
        kept = weights > 0
        if not kept.any():
            raise ValueError("all sample weights are zero: nothing can be learned")
        return _Batch(X[kept], *encode_labels(y[kept], int(kept.sum())), weights[kept])

    def _calibrated_before(
        self, mapped: Iterable[tuple[slice, NDArray[Any]]], batch: _Batch
    ) -> Iterator[tuple[slice, NDArray[Any]]]:
        """The same blocks, whose scores by an earlier head are recorded before they are used.

        To save solves, that head is solved again only when the rows have grown by half.
        """
        head = self._solved.get("latest")
        if head is None or self._learned.accounts.n_rows > 1.5 * head.diagnosis.n_rows:
            head = self.head_
        codes = recode(batch.codes, batch.labels, head.classes)
        for rows, H in mapped:
            w = None if batch.weights is None else batch.weights[rows]
            self._calibration += Calibration.of_scores(head.scores(H), codes[rows], w)
            yield rows, H

    def _calibrate_left_out(self, batch: _Batch) -> None:
        """Record leave-one-out scores of the batch, or of an even choice of its rows.

        Of a row of weight w, one of w copies is left out.
        """
        chosen = np.unique(np.linspace(0, len(batch.X) - 1, LEFT_OUT_ROWS).astype(int))
        H = np.concatenate([H for _, H in _learned_blocks(self.phi_, batch.X[chosen])])
        head, leverages = self._learned.solve_with_leverages(H, self.ridge, self.phi_.fingerprint)
        codes = recode(batch.codes[chosen], batch.labels, head.classes)
        w = np.ones(len(chosen)) if batch.weights is None else batch.weights[chosen]
        scores = head.scores(H.astype(np.float64))
        left_out = leave_one_out(scores, codes, np.minimum(w, 1.0) * leverages)
        self._calibration += Calibration.of_scores(left_out, codes, w)
        self._keep(head)

    def _new_map(self, in_features: int, scaler: FederatedScaler | None) -> RandomFeatures:
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = int(check_random_state(seed).randint(2**31))
        source = {} if scaler is None else {"scaler": scaler.fingerprint_}
        if hasattr(self, "feature_names_in_"):
            source["columns"] = columns_hash(self.feature_names_in_)
        return RandomFeatures(in_features, self.out_features, self.kind, seed, self.bias, source)

    def __sklearn_tags__(self) -> Any:
        """Tells scikit-learn which X is accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = self.kind == "hellinger"
        return tags

    def _keep(self, head: Head) -> None:
        # A dict, so that a prediction, which solves, leaves the estimator's attributes unchanged.
        self._solved.update(head=replace(head, calibration=self._calibration), latest=head)

    def _forget_head(self) -> None:
        self.classes_ = label_array(self._learned.class_sums.classes)
        self._solved.pop("head", None)
        self._recalibrated = False

    @property
    def head_(self) -> Head:
        """The solved head. It is computed on first use after new data."""
        check_is_fitted(self, "classes_")
        if "head" not in self._solved:
            self._keep(self._learned.solve(self.ridge, self.phi_.fingerprint))
        return self._solved["head"]

    def decision_function(self, X: ArrayLike) -> NDArray[np.floating]:
        """Scores (n, C); for two classes one column, positive for ``classes_[1]``."""
        head = self.head_
        scores = np.concatenate([head.scores(H) for _, H in self._mapped(X)])
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float32]:
        """Probabilities (n, C): softmax(scores / T), columns in the order of ``classes_``.

        The temperature T has the least log loss on scores of rows that the model had not learned
        from: leave-one-out scores in ``fit`` and ``calibrate``; scores before a batch is absorbed
        in ``partial_fit``. After ``+`` it comes from the added records of both models.
        """
        head = self.head_
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
        check_is_fitted(self, "classes_")
        batch = self._checked(X, y, sample_weight, reset=False).scaled(self.scaler_)
        known = self.classes_.tolist()
        if unknown := [label for label in batch.labels if label not in known]:
            raise ValueError(
                "calibrate takes learned rows with their labels, expected only labels of classes_, "
                f"got {printable(repr(unknown[0]))}; learn new classes with partial_fit"
            )
        if not self._recalibrated:
            self._calibration, self._recalibrated = Calibration.empty(), True
        self._calibrate_left_out(batch)
        return self

    def novelty(self, X: ArrayLike) -> NDArray[np.float64]:
        """How much of each row is unlike everything learned, from 0 to 1 (``Head.novelty``)."""
        head = self.head_
        if head.seen is None:
            seen = seen_directions(self._learned.gram(), NOVELTY_RANK, head.diagnosis.lam)
            head = self._solved["head"] = replace(head, seen=seen)
        return np.concatenate([head.novelty(H) for _, H in self._mapped(X)])

    def _mapped(self, X: ArrayLike) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Blocks of the random features of rows to predict."""
        check_is_fitted(self, "classes_")
        require_dense(X, "X")
        rows: NDArray[Any] = validate_data(self, X, reset=False, dtype=[np.float32, np.float64])
        scaled = rows if self.scaler_ is None else self.scaler_.standardize(rows)
        return self.phi_.blocks(scaled, BLOCK_BYTES)

    def predict(self, X: ArrayLike, reject: float | None = None) -> NDArray[Any]:
        """The best label of each row.

        With ``reject=alpha`` it is None where the model cannot exclude all labels but one
        (``Head.prediction_sets``). Of all rows, at most a share of about alpha is then decided
        and wrong. Where parts of a sum had different classes, call ``calibrate`` first.
        """
        if reject is not None:
            head = self.head_
            return np.concatenate([head.predict(H, reject) for _, H in self._mapped(X)])
        scores = self.decision_function(X)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[best]

    def summary(self, rank: int | None = 256) -> Summary:
        """A summary of the given rank of all rows seen, for example to send as an upload."""
        check_is_fitted(self, "classes_")
        if self._learned.class_sums.weights is not None:
            raise ValueError(
                "in a summary every row counts once, and this model learned weighted rows: fit it "
                "without sample_weight, or with repeated rows"
            )
        return self._learned.summary(rank, self.phi_.fingerprint)

    def __radd__(self, other: object) -> FedRANClassifier:
        """Lets ``sum([a, b, c])`` start from 0."""
        return self if other == 0 else NotImplemented

    def __add__(self, other: object) -> FedRANClassifier:
        """One model with the scores, to rounding, of a model fitted on the rows of both.

        Its calibration is that of the two models, until ``calibrate`` is called.
        """
        if not isinstance(other, FedRANClassifier):
            return NotImplemented
        names = [list(getattr(c, "feature_names_in_", ())) for c in (self, other)]
        if names[0] != names[1]:
            raise ValueError("the feature names of the two classifiers differ, or their order")
        theirs = _common_parameters(other)
        for name, value in _common_parameters(self).items():
            if value != theirs[name]:
                raise ValueError(
                    f"{name} is {value!r} in one classifier and {theirs[name]!r} in the other; "
                    f"models add only with the same {name}"
                )
        warn_of_similar(self.classes_.tolist(), other.classes_.tolist(), "the second model")
        merged = FedRANClassifier(**self.get_params())
        for name in ("n_features_in_", "feature_names_in_", "phi_", "scaler_"):
            if hasattr(self, name):
                setattr(merged, name, getattr(self, name))
        merged._learned = ExactSum(self.phi_.out_features, self._learned.dtype, stack=False)
        merged._learned.add_sum(self._learned)
        merged._learned.add_sum(other._learned)
        merged._calibration = self._calibration + other._calibration
        merged._solved = {}
        merged._forget_head()
        return merged


def _learned_blocks(phi: RandomFeatures, X: NDArray[Any]) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Blocks of the random features of rows to learn."""
    return phi.blocks(X, BLOCK_BYTES, exact=phi.out_features <= FLOAT64_WIDTH)


def _common_parameters(clf: FedRANClassifier) -> dict[str, Any]:
    """What fitted models must share in order to add, by the names of the constructor."""
    check_is_fitted(clf, "classes_")
    phi, scaler = clf.phi_, clf.phi_.source.get("scaler")
    return {
        "n_features_in_": phi.in_features,
        "out_features": phi.out_features,
        "kind": phi.kind,
        "bias": phi.bias,
        "random_state": phi.seed,
        "scaler": scaler and f"{scaler:.12}...",
        "ridge": clf.ridge,
    }
