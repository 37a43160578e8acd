"""Settings as printed in the FedRAN paper, for comparison with our defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from numpy.typing import ArrayLike

from fedran.core.aggregator import Aggregator
from fedran.core.features import RandomFeatures
from fedran.core.fingerprint import Fingerprint
from fedran.core.head import Head
from fedran.core.ridge import Ridge
from fedran.core.summarize import summarize
from fedran.core.summary import Summary

Setting = Literal["resnet", "vtab", "vit"]

_SIZES: dict[str, tuple[int, int, int]] = {
    # in_features (ResNet-18, ViT-B/16), out_features, rank
    "resnet": (512, 8192, 2048),
    "vtab": (512, 8192, 512),
    "vit": (768, 2048, 512),
}


@dataclass(frozen=True)
class PaperPreset:
    """One of the paper's settings: sizes, lambda = 1e-3, QR-SVD merges, complement dropped.

    >>> import fedran
    >>> p = fedran.presets.paper("vit")
    >>> p.out_features, p.rank, p.lam, p.tau
    (2048, 512, 0.001, 0.5)
    """

    in_features: int
    out_features: int
    rank: int
    lam: float = 1e-3
    tau: float = 0.5
    seed: int = 0

    def features(self) -> RandomFeatures:
        """The random-feature map."""
        return RandomFeatures(self.in_features, self.out_features, kind="relu", seed=self.seed)

    def summarize(self, H: ArrayLike, y: object, fingerprint: Fingerprint | None = None) -> Summary:
        """A client's summary at the paper's rank."""
        return summarize(H, y, self.rank, center=None, fingerprint=fingerprint)

    def aggregator(self) -> Aggregator:
        """A server that merges as in Algorithm 1: by client, then with the earlier tasks."""
        return Aggregator(self.out_features, server_rank=self.rank, order="paper")

    def solve(self, aggregator: Aggregator) -> Head:
        """The subspace head at the paper's lambda."""
        return aggregator.solve(Ridge.absolute(self.lam), complement="drop")


def paper(
    setting: Setting = "resnet",
    *,
    in_features: int | None = None,
    out_features: int | None = None,
    rank: int | None = None,
    seed: int = 0,
) -> PaperPreset:
    """The paper's own settings: ``"resnet"`` (CIFAR-100, ImageNet-R), ``"vtab"`` or ``"vit"``.

    Sizes may be overridden for another backbone or a smaller experiment.
    """
    if setting not in _SIZES:
        raise ValueError(f"setting must be one of {', '.join(_SIZES)}, got {setting!r}")
    d, M, r = _SIZES[setting]
    return PaperPreset(
        d if in_features is None else in_features,
        M if out_features is None else out_features,
        r if rank is None else rank,
        seed=seed,
    )
