"""The scikit-learn estimator: a classifier whose fitted models can be added."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedran.core._linalg.truncation import check_rank
from fedran.core.aggregator import FLOAT32_ENERGY
from fedran.core.calibration import Calibration, leave_one_out
from fedran.core.errors import Refused
from fedran.core.exact import ExactSum
from fedran.core.features import Kind, RandomFeatures
from fedran.core.head import Head
from fedran.core.labels import Label, encode_labels, label_array, recode
from fedran.core.ridge import Ridge, seen_directions
from fedran.core.summarize import check_weights
from fedran.core.summary import Summary
from fedran.scaler import FederatedScaler

SEED_RANGE = 2**31
LEFT_OUT_ROWS = 1024
"""Most rows of one batch whose leave-one-out scores are computed: 2 M^2 operations per row."""
NOVELTY_RANK = 64
"""Directions of the learned rows with which ``novelty`` compares."""
FLOAT64_WIDTH = 1024
"""Up to this M the sums are float64. Wider ones would take too much memory and time."""


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
        Whether a constant is appended to every row. Without it the model cannot use the length of
        a row, for example to separate a disc from the ring around it.
    rank:
        None for the exact Gram. An int or a share of the energy in (0, 1] solves from the
        leading part only, as a federation with such uploads would.
    ridge:
        How much the weights are shrunk, as a multiple of the default rule: 10 gives ten times its
        lambda. ``fedran.Ridge.GRID`` is a grid to search. A ``fedran.Ridge`` sets lambda
        otherwise, for example ``Ridge.absolute(0.1)``.
    random_state:
        Seed of P. Models can be added only if it is the same int in both.
        Their ``out_features``, ``kind``, ``bias`` and ``scaler`` must agree too.
    scaler:
        A fitted ``FederatedScaler`` that is applied to X first, for example one that several
        sites added up. An unfitted one is fitted on the rows of ``fit`` or of the first
        ``partial_fit``. Its fingerprint becomes part of the model's.

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
    ``fit`` takes n M (2 d + M) operations in blocks, and 2 M^2 more for each of at most 1,024 rows
    whose leave-one-out scores calibrate the probabilities. It needs 4 M^2 bytes of state (8 M^2
    for M up to 1,024), never holds the (n, M) random features at once, and keeps no training row.
    Labels are ints or strs; bools and integral floats become ints. ``partial_fit`` may add new
    classes at any time. Scores do not depend on how the rows are split into batches, except for
    rounding; the temperature of the probabilities does.

    Scale X first, with ``scaler=FederatedScaler()`` or ``StandardScaler``: the random features mix
    all columns, so a column with large values hides the others, and the constant of ``bias`` suits
    columns of variance 1.

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
    >>> (a + b).predict_proba(X[:2]).shape
    (2, 3)
    """

    def __init__(
        self,
        out_features: int = 2048,
        kind: Kind = "cosine",
        bias: bool = True,
        rank: int | float | None = None,
        ridge: Ridge | float = 1.0,
        random_state: int | None = 0,
        scaler: FederatedScaler | None = None,
    ) -> None:
        self.out_features = out_features
        self.kind = kind
        self.bias = bias
        self.rank = rank
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
        self._learn(X, y, sample_weight, fresh=not hasattr(self, "_learned"))
        return self

    def _learn(self, X: Any, y: Any, sample_weight: Any, fresh: bool) -> None:
        """Absorb one batch and calibrate on it.

        The calibration takes scores from before the batch was absorbed. Where there is no model
        yet, or where the batch has new classes, it takes leave-one-out scores instead.
        """
        # scikit-learn would turn [0, "b"] into two strings.
        if isinstance(y, (list, tuple)) and 0 < sum(isinstance(v, str) for v in y) < len(y):
            raise ValueError(
                "labels must be all numbers or all strings in one call; use str(label)"
            )
        X, y = validate_data(self, X, y, reset=fresh, dtype=[np.float32, np.float64])
        check_classification_targets(y)
        check_rank(self.rank)
        Ridge.parse(self.ridge)
        weights = None
        if sample_weight is not None:
            weights = check_weights(sample_weight, len(X))
            if not weights.any():
                raise ValueError("all sample weights are zero: nothing can be learned")
            X, y, weights = X[weights > 0], y[weights > 0], weights[weights > 0]
        labels, codes = encode_labels(y, len(X))
        scaler = self._fitted_scaler(X, weights) if fresh else self.scaler_
        X = X if scaler is None else scaler.transform(X)
        phi = self._new_map(X.shape[1], scaler) if fresh else self.phi_
        if phi.kind == "relu":
            _require_energy(X, phi.out_features)
        try:
            mapped = phi.blocks(X)
        except Refused as reason:  # in the words that scikit-learn's checks look for
            raise ValueError(f"Negative values in data: {reason.got}; {reason.hint}") from None
        if fresh:
            self.phi_: RandomFeatures = phi
            self.scaler_: FederatedScaler | None = scaler
            self._learned = ExactSum(phi.out_features, _sum_dtype(phi), stack=False)
            self._calibration = Calibration.empty()
            self._solved: dict[str, Head] = {}
        if not fresh and set(labels) <= set(self.classes_.tolist()):
            mapped = self._calibrated_before(mapped, labels, codes, weights)
            self._learned.add_rows(mapped, labels, codes, weights)
            self._forget_head()
        else:
            self._learned.add_rows(mapped, labels, codes, weights)
            self._forget_head()
            self._calibrate_left_out(X, labels, codes, weights)

    def _calibrated_before(
        self,
        mapped: Iterable[tuple[slice, NDArray[Any]]],
        labels: tuple[Label, ...],
        codes: NDArray[np.int64],
        weights: NDArray[np.float64] | None,
    ) -> Iterator[tuple[slice, NDArray[Any]]]:
        """The same blocks, whose scores by an earlier head are recorded before they are used.

        That head is solved again when the rows have grown by half, so that many small batches
        cost few solves.
        """
        head = self._solved.get("latest")
        if head is None or self._learned.accounts.n_rows > 1.5 * head.diagnosis.n_rows:
            head = self.head_
        codes = recode(codes, labels, head.classes)
        for rows, H in mapped:
            w = None if weights is None else weights[rows]
            self._calibration += Calibration.of_scores(head.scores(H), codes[rows], w)
            yield rows, H

    def _calibrate_left_out(
        self,
        X: NDArray[Any],
        labels: tuple[Label, ...],
        codes: NDArray[np.int64],
        weights: NDArray[np.float64] | None,
    ) -> None:
        """Record leave-one-out scores of the batch, or of an even choice of its rows.

        Of a row of weight w, one of w copies is left out.
        """
        chosen = np.unique(np.linspace(0, len(X) - 1, LEFT_OUT_ROWS).astype(int))
        H = self.phi_(X[chosen])
        head, leverages = self._total().solve_with_leverages(H, self.ridge, self.phi_.fingerprint)
        codes = recode(codes[chosen], labels, head.classes)
        w = np.ones(len(chosen)) if weights is None else weights[chosen]
        scores = head.scores(H.astype(np.float64))
        left_out = leave_one_out(scores, codes, np.minimum(w, 1.0) * leverages)
        self._calibration += Calibration.of_scores(left_out, codes, w)
        self._solved["head"] = replace(head, calibration=self._calibration)
        self._solved["latest"] = self._solved["head"]

    def _fitted_scaler(
        self, X: NDArray[Any], weights: NDArray[np.float64] | None
    ) -> FederatedScaler | None:
        if self.scaler is None or hasattr(self.scaler, "mean_"):
            return self.scaler
        return clone(self.scaler).fit(X, sample_weight=weights)

    def _new_map(self, in_features: int, scaler: FederatedScaler | None) -> RandomFeatures:
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = int(check_random_state(seed).randint(SEED_RANGE))
        source = None if scaler is None else {"scaler": scaler.fingerprint_}
        return RandomFeatures(in_features, self.out_features, self.kind, seed, self.bias, source)

    def __sklearn_tags__(self) -> Any:
        """Tells scikit-learn which X is accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = self.kind == "hellinger"
        return tags

    def _forget_head(self) -> None:
        self.classes_ = label_array(self._learned.class_sums.classes)
        # A dict, so that a prediction, which solves, leaves the estimator's attributes unchanged.
        self._solved = {k: head for k, head in self._solved.items() if k == "latest"}

    @property
    def head_(self) -> Head:
        """The solved head. It is computed on first use after new data."""
        check_is_fitted(self, "classes_")
        if "head" not in self._solved:
            solved = self._total().solve(self.ridge, self.phi_.fingerprint)
            self._solved["head"] = replace(solved, calibration=self._calibration)
            self._solved["latest"] = self._solved["head"]
        return self._solved["head"]

    def _total(self) -> ExactSum:
        """What the head is solved from: everything learned, or its leading part."""
        if self.rank is None:
            return self._learned
        total = ExactSum(self.phi_.out_features, self._learned.dtype, stack=False)
        total.add_summary(self.summary(self.rank))
        return total

    def decision_function(self, X: ArrayLike) -> NDArray[np.floating]:
        """Scores (n, C); for two classes one column, positive for ``classes_[1]``."""
        head = self.head_
        scores = np.concatenate([head.scores(H) for _, H in self._mapped(X)])
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float32]:
        """Probabilities (n, C): softmax(scores / T), columns in the order of ``classes_``.

        The temperature T has the least log loss on scores of rows that the model had not learned
        from: leave-one-out scores in ``fit``, in closed form; scores before a batch is absorbed in
        ``partial_fit``. After ``+`` it comes from the added records of both models.
        """
        head = self.head_
        return np.concatenate([head.probabilities(H) for _, H in self._mapped(X)])

    def novelty(self, X: ArrayLike) -> NDArray[np.float64]:
        """How much of each row is unlike everything learned, from 0 to 1 (``Head.novelty``).

        It is computed from the 64 leading directions of the learned rows.
        """
        head = self.head_
        if head.seen is None:
            seen = seen_directions(self._total().gram(), NOVELTY_RANK, head.diagnosis.lam)
            head = self._solved["head"] = replace(head, seen=seen)
        return np.concatenate([head.novelty(H) for _, H in self._mapped(X)])

    def _mapped(self, X: ArrayLike) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Blocks of the random features of rows to predict."""
        check_is_fitted(self, "classes_")
        X = validate_data(self, X, reset=False, dtype=[np.float32, np.float64])
        return self.phi_.blocks(X if self.scaler_ is None else self.scaler_.transform(X))

    def predict(self, X: ArrayLike, reject: float | None = None) -> NDArray[Any]:
        """The best label of each row.

        With ``reject=alpha`` it is None, in an array of objects, where the model does not know:
        where it cannot exclude all labels but one (``Head.prediction_sets``). Of all rows, at
        most a share of about alpha is then decided and wrong.
        """
        if reject is not None:
            head = self.head_
            return np.concatenate([head.predict(H, reject) for _, H in self._mapped(X)])
        scores = self.decision_function(X)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[best]

    def summary(self, rank: int | float | None = 256, *, calibration: bool = False) -> Summary:
        """A summary of the given rank of all rows seen, for example to send as an upload.

        With ``calibration`` it carries the histograms of scores, so that the head of an
        aggregator has probabilities too.
        """
        check_is_fitted(self, "classes_")
        found = self._learned.summary(rank, self.phi_.fingerprint)
        return replace(found, calibration=self._calibration) if calibration else found

    def __radd__(self, other: object) -> FedRANClassifier:
        """Lets ``sum([a, b, c])`` start from 0."""
        return self if other == 0 else NotImplemented

    def __add__(self, other: object) -> FedRANClassifier:
        """One model that equals, to rounding, a model fitted on the rows of both."""
        if not isinstance(other, FedRANClassifier):
            return NotImplemented
        check_is_fitted(self, "classes_")
        check_is_fitted(other, "classes_")
        for name, value in _map_parameters(self).items():
            if value != _map_parameters(other)[name]:
                raise ValueError(
                    f"{name} is {value!r} in one classifier and {_map_parameters(other)[name]!r} "
                    f"in the other; models add only if they were fitted with the same {name}"
                )
        names = [list(getattr(c, "feature_names_in_", ())) for c in (self, other)]
        if names[0] != names[1]:
            raise ValueError("the feature names of the two classifiers differ, or their order")
        for name in ("rank", "ridge"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(
                    f"{name} is {getattr(self, name)!r} in one classifier and "
                    f"{getattr(other, name)!r} in the other; use set_params before adding"
                )
        merged = FedRANClassifier(**self.get_params())
        merged.n_features_in_ = self.n_features_in_
        if hasattr(self, "feature_names_in_"):
            merged.feature_names_in_ = self.feature_names_in_
        merged.phi_, merged.scaler_ = self.phi_, self.scaler_
        merged._learned = ExactSum(self.phi_.out_features, self._learned.dtype, stack=False)
        merged._learned.add_sum(self._learned)
        merged._learned.add_sum(other._learned)
        merged._calibration = self._calibration + other._calibration
        merged._solved = {}
        merged._forget_head()
        return merged


def _sum_dtype(phi: RandomFeatures) -> str:
    return "float64" if phi.out_features <= FLOAT64_WIDTH else "float32"


def _map_parameters(clf: FedRANClassifier) -> dict[str, Any]:
    """What a fitted model's random features depend on, by the names of the constructor."""
    phi = clf.phi_
    return {
        "n_features_in_": phi.in_features,
        "out_features": phi.out_features,
        "kind": phi.kind,
        "bias": phi.bias,
        "random_state": phi.seed,
        "scaler": phi.source.get("scaler"),
    }


def add_pipelines(*pipelines: Pipeline) -> Pipeline:
    """One pipeline that ends in the sum of the classifiers of several fitted pipelines.

    The steps before the classifier must be the same in all of them, which their fingerprints
    tell: a fitted ``FederatedScaler``, or one inside scikit-learn's ``FrozenEstimator``, which
    keeps ``Pipeline.fit`` from fitting it again. Other steps have no fingerprint and are refused.

    >>> from sklearn.datasets import load_wine
    >>> from sklearn.frozen import FrozenEstimator
    >>> from sklearn.pipeline import make_pipeline
    >>> X, y = load_wine(return_X_y=True)
    >>> common = FederatedScaler().fit(X[::2]) + FederatedScaler().fit(X[1::2])
    >>> a, b = (
    ...     make_pipeline(FrozenEstimator(common), FedRANClassifier(256)).fit(X[i::2], y[i::2])
    ...     for i in (0, 1)
    ... )
    >>> add_pipelines(a, b).score(X, y) > 0.95
    True
    """
    if not pipelines:
        raise ValueError("add_pipelines needs at least one fitted pipeline")
    first = pipelines[0]
    for other in pipelines:
        names = [[name for name, _ in p.steps] for p in (first, other)]
        if names[0] != names[1]:
            raise ValueError(f"the pipelines have different steps: {names[0]} and {names[1]}")
        for (name, mine), (_, theirs) in zip(first.steps[:-1], other.steps[:-1], strict=True):
            prints = [getattr(step, "fingerprint_", None) for step in (mine, theirs)]
            if None in prints:
                raise ValueError(
                    f"step {name!r} is a {type(mine).__name__}, whose fitted state cannot be "
                    "compared; use a FederatedScaler inside FrozenEstimator"
                )
            if prints[0] != prints[1]:
                raise ValueError(
                    f"step {name!r} scales differently in two pipelines; add the scalers of all "
                    "sites first and use the sum, inside FrozenEstimator, in every pipeline"
                )
    total = sum(pipeline.steps[-1][1] for pipeline in pipelines)
    return Pipeline([*first.steps[:-1], (first.steps[-1][0], total)])


def _require_energy(X: NDArray[Any], out_features: int) -> None:
    """ValueError if a float32 Gram of relu features of these rows would overflow or vanish."""
    with np.errstate(over="ignore"):
        energy = float(np.einsum("ij,ij", X, X)) * out_features
    low, high = FLOAT32_ENERGY
    if not low < energy < high and np.any(X):
        raise ValueError(
            f"X has an energy of about {energy:.3g}; expected {low:g} to {high:g}: rescale it, "
            "for example with StandardScaler"
        )
