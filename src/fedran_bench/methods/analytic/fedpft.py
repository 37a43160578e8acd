"""FedPFT: clients send a Gaussian mixture per class, the server trains a head on samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import to_device
from fedran.core.errors import Refused
from fedran.core.labels import Label, ordered
from fedran.core.solve.head import Head
from fedran.settings import at_least
from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.analytic.base import (
    AnalyticMethod,
    Positive,
    Width,
    WithBias,
    labelled_rows,
    softmax_regression,
    trained_head,
)
from fedran_bench.methods.protocol import Claims, ClientData, Spec, Uploads

Covariance = Literal["spherical", "diagonal"]
SKLEARN_NAMES = {"spherical": "spherical", "diagonal": "diag"}
TOLERANCE, MAX_STEPS = 1e-12, 10_000
"""Of the EM algorithm, as published."""
LARGEST_UPLOAD = 10**6
"""Most rows that one upload may ask the server to draw."""


@dataclass(frozen=True)
class ClassMixture:
    """K weighted Gaussians (means (K, d), covariances (K, q)) that describe ``count`` rows."""

    label: Label
    count: int
    weights: NDArray[np.float64]
    means: NDArray[np.float64]
    covariances: NDArray[np.float64]


@dataclass(frozen=True)
class PftState:
    """All uploads, and the newest head."""

    phi: WithBias
    seed: int
    uploads: tuple[bytes, ...] = ()
    head: Head | None = None


@dataclass(frozen=True)
class FedPFT(AnalyticMethod):
    """Per class a Gaussian mixture in float16; the server draws as many rows as it describes.

    As in the authors' baseline for Flower, mixtures are fitted with scikit-learn, have one
    spherical component by default, and a class with at most K rows at a client is left out. The
    server draws from all mixtures of all tasks and trains the head again after every task. The
    baseline trains 50 epochs at a learning rate of 1e-4 with batches of 32. Larger batches with a
    larger rate are as good on held-out training rows and need an eighth of the steps
    (``benchmarks/head_training.py``).
    """

    components: Width = 1
    """K, Gaussians per class and client."""
    covariance: Covariance = "spherical"
    """Their covariances: one variance, or one per feature."""
    epochs: Width = 50
    """Passes over the drawn rows."""
    batch: Width = 256
    """Rows per step."""
    lr: Positive = 3e-4
    """Learning rate of AdamW."""
    weight_decay: Annotated[float, at_least(0)] = 0.01
    """Weight decay of AdamW."""
    device: str | None = None

    name = "FedPFT"
    claims = Claims(order_free=True)
    verified = (
        "partly: mixtures are scikit-learn's, drawn rows have their moments, training equals "
        "torch's AdamW; its published tables use other backbones"
    )

    @property
    def sends(self) -> str:
        """Mixtures and counts."""
        what = f"{self.components} {self.covariance} Gaussian" + "s" * (self.components > 1)
        return f"{what} per class and counts, float16"

    def formula(self, in_features: int, n_classes: int) -> int:
        """(d + 1 + q) K C x 2 bytes, q = 1 or d values per covariance."""
        values = in_features + 1 + covariance_size(self.covariance, in_features)
        return 2 * self.components * n_classes * values

    def init(self, spec: Spec, seed: int) -> PftState:
        """No mixture yet."""
        return PftState(WithBias(spec.in_features), seed)

    def client(
        self, cstate: None, message: bytes, data: ClientData, seed: int
    ) -> tuple[None, bytes]:
        """One mixture per class that has more rows than components."""
        X, classes, codes = labelled_rows(data)
        mixtures = [
            fit(label, X[codes == c].astype(np.float64), self.components, self.covariance, seed)
            for c, label in enumerate(classes)
            if np.sum(codes == c) > self.components
        ]
        return cstate, pack_mixtures(mixtures, self.components, X.shape[1], self.covariance)

    def aggregate(self, state: PftState, task: int, round_: int, uploads: Uploads) -> PftState:
        """Check every upload, then train on rows drawn from all mixtures so far."""
        arrived = tuple(uploads[client] for client in sorted(uploads))
        state = replace(state, uploads=state.uploads + arrived)
        d, K = state.phi.in_features, self.components
        mixtures = [m for b in state.uploads for m in unpack_mixtures(b, K, d, self.covariance)]
        if not mixtures:
            return state
        classes = ordered({m.label for m in mixtures})
        random = np.random.RandomState(state.seed)
        rows = [draw(m, random) for m in mixtures]
        codes = [np.full(m.count, classes.index(m.label)) for m in mixtures]
        weights = softmax_regression(
            state.phi(to_device(np.concatenate(rows), self.device)),
            np.concatenate(codes),
            len(classes),
            epochs=self.epochs,
            batch=self.batch,
            lr=self.lr,
            weight_decay=self.weight_decay,
            seed=state.seed,
        )
        n_rows = sum(m.count for m in mixtures)
        route = f"trained on {n_rows} rows drawn from {len(mixtures)} mixtures"
        return replace(state, head=trained_head(weights, classes, route, n_rows, d))


def covariance_size(covariance: Covariance, d: int) -> int:
    """Values that describe one covariance."""
    return 1 if covariance == "spherical" else d


def fit(
    label: Label, X: NDArray[np.float64], components: int, covariance: Covariance, seed: int
) -> ClassMixture:
    """The mixture of the rows X (n, d) of one class, by scikit-learn's EM algorithm."""
    from sklearn.mixture import GaussianMixture  # slow to import

    model = GaussianMixture(
        components,
        covariance_type=SKLEARN_NAMES[covariance],
        tol=TOLERANCE,
        max_iter=MAX_STEPS,
        random_state=seed,
    ).fit(X)
    covariances = model.covariances_.reshape(components, -1)
    return ClassMixture(label, len(X), model.weights_, model.means_, covariances)


def draw(mixture: ClassMixture, random: np.random.RandomState) -> NDArray[np.float32]:
    """As many rows as the mixture describes."""
    d = mixture.means.shape[1]
    counts = random.multinomial(mixture.count, mixture.weights / mixture.weights.sum())
    parts = []
    for n, mean, flat in zip(counts, mixture.means, mixture.covariances, strict=True):
        noise = random.standard_normal((n, d)) * np.sqrt(flat)
        parts.append((mean + noise).astype(np.float32))
    return np.concatenate(parts)


def pack_mixtures(
    mixtures: list[ClassMixture], components: int, d: int, covariance: Covariance
) -> bytes:
    """A message of kind ``class-mixtures``: labels, counts and all parameters in float16."""
    size = len(mixtures) * components
    with np.errstate(over="ignore"):
        tensors = {
            "weights": _stack([m.weights for m in mixtures]).reshape(size, 1).astype(np.float16),
            "means": _stack([m.means for m in mixtures]).reshape(size, d).astype(np.float16),
            "covariances": _stack([m.covariances for m in mixtures])
            .reshape(size, covariance_size(covariance, d))
            .astype(np.float16),
        }
    for name, values in tensors.items():
        if not np.all(np.isfinite(values)):
            raise ValueError(f"the {name} of a mixture exceed float16; rescale the features")
    fields = {"classes": [m.label for m in mixtures], "counts": [m.count for m in mixtures]}
    return pack("class-mixtures", fields, tensors)


def unpack_mixtures(
    blob: bytes, components: int, d: int, covariance: Covariance
) -> Iterator[ClassMixture]:
    """Inverse of ``pack_mixtures``; refused unless every mixture can be drawn from."""
    message = unpack(blob, FILE_LIMITS).of_kind("class-mixtures")
    message.only("weights", "means", "covariances")
    classes = message.header.labels("classes", FILE_LIMITS)
    counts = message.header.integers("counts", len(classes), 1, LARGEST_UPLOAD)
    if sum(counts) > LARGEST_UPLOAD:
        raise Refused("counts", f"at most {LARGEST_UPLOAD} rows", sum(counts))
    size = len(classes) * components
    shapes = {"weights": 1, "means": d, "covariances": covariance_size(covariance, d)}
    found: dict[str, NDArray[Any]] = {}
    for name, width in shapes.items():
        tensor = message.tensor(name, "F16", (size, width)).astype(np.float64)
        if not np.all(np.isfinite(tensor)):
            raise Refused(name, "finite values", "NaN or infinity")
        found[name] = tensor.reshape(len(classes), components, width)
    weights, covariances = found["weights"][:, :, 0], found["covariances"]
    if np.any(weights < 0) or np.any(np.abs(weights.sum(axis=1) - 1) > 1e-3 * components):
        raise Refused("weights", "shares that add up to 1", "others")
    if np.any(covariances < 0):
        raise Refused("covariances", "variances of at least 0", float(covariances.min()))
    for i, (label, count) in enumerate(zip(classes, counts, strict=True)):
        yield ClassMixture(label, count, weights[i], found["means"][i], covariances[i])


def _stack(parts: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate(parts) if parts else np.zeros(0)
