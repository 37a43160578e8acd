"""DeepAFL: residual layers that are solved one after the other, from sums over all clients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import (
    Array,
    cast,
    like,
    linalg_errors,
    namespace,
    to_device,
    to_numpy,
)
from fedran.core._linalg.blas import matmul
from fedran.core._linalg.gelu import gelu
from fedran.core.errors import Refused
from fedran.core.labels import Label
from fedran.core.solve.head import Head
from fedran.core.sums.class_sums import ClassSums
from fedran.wire.codec import decode
from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.analytic.base import Positive, Raw, Width, labelled_rows
from fedran_bench.methods.analytic.gram_based import (
    GramServer,
    GramState,
    add_packed,
    pack_gram,
    unpack_gram,
)
from fedran_bench.methods.protocol import Claims, ClientData, Uploads

LAYER, RESIDUALS = "deepafl-layer", "deepafl-residuals"
"""Kinds of messages: the newest layer to the clients; F'F and F'R to the server."""


class ResidualLayers(Raw):
    """x_0 = tanh(z P + p), then x <- x + F D with F = gelu(x P + p) for every layer D.

    Every P and p is random, uniform in +-1 / sqrt(its inputs) as in ``torch.nn.Linear``.
    """

    def __init__(self, in_features: int, width: int, seed: int, *layers: Array) -> None:
        super().__init__(in_features, width)
        self.seed, self.layers = seed, layers

    def __call__(self, Z: Array) -> Array:
        """Rows after all layers, in float32."""
        Z = super().__call__(Z)
        X = namespace(Z).tanh(self._projected(Z, 0))
        for number in range(len(self.layers)):
            X = self.through(X, number)
        return X

    def random_features(self, X: Array, number: int) -> Array:
        """F (n, M), the input of the layer with this number."""
        F = self._projected(X, number + 1)
        gelu(F)
        return F

    def through(self, X: Array, number: int) -> Array:
        """Rows after the layer with this number."""
        return X + matmul(self.random_features(X, number), like(self.layers[number], X))

    def deeper(self, layer: Array) -> ResidualLayers:
        """With one more layer D (M, M)."""
        known = self.in_features, self.out_features, self.seed
        return ResidualLayers(*known, *self.layers, layer)

    def _projected(self, X: Array, number: int) -> Array:
        P, p = projection(int(X.shape[1]), self.out_features, self.seed, number)
        XP = matmul(X, like(P, X))
        XP += like(p, X)
        return XP


@lru_cache(maxsize=32)
def projection(
    inputs: int, outputs: int, seed: int, number: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """P (inputs, outputs) and p (outputs,), which all clients of a process share."""
    drawn = np.random.default_rng([seed, number]).random((inputs + 1, outputs), dtype=np.float32)
    drawn = (2 * drawn - 1) / np.float32(math.sqrt(inputs))
    return drawn[:-1], drawn[-1]


@dataclass(frozen=True)
class ClientRows:
    """What a client keeps: the layers so far, and its rows X of a task after these layers."""

    phi: ResidualLayers
    task: str
    X: Array


@dataclass(frozen=True)
class DeepAFL(GramServer):
    """A residual network whose layers and classifier are least squares over all clients.

    Every layer takes two rounds. In the first the clients send X'X and X'Y of their rows after the
    layers so far, from which the server solves the classifier W by a ridge. In the second they
    send F'F and F'R for the residuals R = Y - X W, and the server solves the layer D that minimises
    ``|R - F D W|^2 + layer_lam |D|^2`` ("sandwiched" least squares). A last round solves the
    classifier on the last layer. Published clients send W R'F (M, M); F'R, of which it is a
    product, is smaller.

    It is published for one task. Layers need all rows again in every round, and without replay
    rows of earlier tasks are gone. So the layers are solved in task 0 and frozen; later tasks
    have one round, whose X'X and X'Y are added to those of the last layer. With all classes in one
    task it is the published method.
    """

    out_features: Width = 1024
    """M, the width of the network and of the random features of every layer."""
    layers: Width = 20
    """Residual layers."""
    lam: Positive = 1.0
    """The ridge parameter of every classifier."""
    layer_lam: Positive = 0.05
    """The ridge parameter of every layer."""
    device: str | None = None

    name = "DeepAFL"
    claims = Claims(order_free=True, partition_free=True, one_round=False)
    verified = "yes: dense references, and the accuracy of the published code on two backbones"

    @property
    def sends(self) -> str:
        """What travels in task 0 and afterwards."""
        rounds = f"in task 0 in {self.rounds(0)} rounds"
        return f"packed (M, M) Grams, class sums and residual products, float32, {rounds}"

    def formula(self, in_features: int, n_classes: int) -> int:
        """All rounds: (M^2 + M C) x 4 bytes per classifier and 2 M^2 x 4 bytes per layer."""
        M, L = self.out_features, self.layers
        return 4 * ((L + 1) * M * (M + n_classes) + 2 * L * M * M)

    def rounds(self, task: int) -> int:
        """Two per layer and one for the classifier in task 0, then one."""
        return 1 if task else 2 * self.layers + 1

    def feature_map(self, in_features: int, seed: int) -> ResidualLayers:
        """Without any layer yet."""
        return ResidualLayers(in_features, self.out_features, seed)

    def broadcast(self, state: GramState, task: int, round_: int) -> bytes:
        """In task 0 the newest layer and its classifier in turns, then the newest head."""
        assert isinstance(state.phi, ResidualLayers)
        if task == 0 and round_ % 2 == 0 and state.phi.layers:
            return pack(LAYER, {}, {"layer": to_numpy(state.phi.layers[-1])})
        return super().broadcast(state, task, round_)

    def client(
        self, cstate: ClientRows | None, message: bytes, data: ClientData, seed: int
    ) -> tuple[ClientRows, bytes]:
        """The sums that the message asks for; at the start of a task those of the classifier."""
        Z, classes, codes = labelled_rows(data)
        if cstate is None or cstate.task != data.task:
            phi = cstate.phi if cstate else self.feature_map(Z.shape[1], seed)
            cstate = ClientRows(phi, data.task, phi(to_device(Z, self.device)))
        elif message:
            received = unpack(message, FILE_LIMITS)
            if received.kind == "head":
                head = decode(message, Head)
                return cstate, self._residual_sums(cstate, head, classes, codes)
            M = self.out_features
            layer = received.of_kind(LAYER).tensor("layer", "F32", (M, M))
            phi = cstate.phi.deeper(to_device(layer, self.device))
            X = phi.through(cstate.X, len(cstate.phi.layers))
            cstate = replace(cstate, phi=phi, X=X)
        total = self.new_total(self.out_features)
        total.add_rows(Raw(self.out_features).blocks(cstate.X), classes, codes)
        return cstate, pack_gram(total)

    def _residual_sums(
        self, cstate: ClientRows, head: Head, classes: tuple[Label, ...], codes: NDArray[np.int64]
    ) -> bytes:
        """F'F and F'R = F'Y - F'(X W) of a client's rows."""
        M, W = self.out_features, like(head.weights, cstate.X)
        total, fitted = self.new_total(M), like(np.zeros((M, len(head.classes))), cstate.X)
        for rows, X in Raw(M).blocks(cstate.X):
            F = cstate.phi.random_features(X, len(cstate.phi.layers))
            total.add_rows([(rows, F)], classes, codes)
            fitted += cast(F.T @ matmul(X, W), "float64")
        total.class_sums += ClassSums(head.classes, -fitted, (0,) * len(head.classes))
        return pack_gram(total, RESIDUALS)

    def aggregate(self, state: GramState, task: int, round_: int, uploads: Uploads) -> GramState:
        """Check every upload, then add all; solve the layer, or the classifier on the last one."""
        if task == 0 and round_ % 2:
            return self._deeper(state, uploads) if state.head else state
        if task == 0 and round_:  # the rows have passed one more layer
            state = replace(state, total=self.new_total(self.out_features))
        return super().aggregate(state, task, round_, uploads)

    def _deeper(self, state: GramState, uploads: Uploads) -> GramState:
        """The state with the layer that these uploads give."""
        assert isinstance(state.phi, ResidualLayers)
        assert state.head is not None
        M, total = self.out_features, self.new_total(self.out_features)
        parts = [unpack_gram(blob, M, RESIDUALS) for blob in uploads.values()]
        for part in parts:
            if part[1].classes != state.head.classes:
                raise Refused("classes", f"{len(state.head.classes)}, those of the head", "others")
            add_packed(total, *part)
        W = cast(state.head.weights, "float64")
        layer = sandwiched(total.gram(), total.class_sums.sums, W, self.layer_lam)
        return replace(state, phi=state.phi.deeper(cast(layer, "float32")))


def sandwiched(G: Array, products: Array, W: Array, lam: float) -> Array:
    """D (M, M) that minimises |R - F D W|^2 + lam |D|^2, from G = F'F, F'R (M, C) and W (M, C).

    D = V [(V' F'R Q) s / (lam + g s^2)] U' for F'F = V diag(g) V' and W = U diag(s) Q'.
    """
    xp = namespace(W)
    with linalg_errors():
        g, V = xp.linalg.eigh(cast(G, "float64"))
        U, s, Qt = xp.linalg.svd(W, full_matrices=False)
    scaled = (V.T @ products @ Qt.T) * s / (lam + xp.clip(g, min=0)[:, None] * s**2)
    return V @ scaled @ U.T
