"""Semi-supervised FedRAN: labels for unlabelled rows by prototypes (paper) or by margin (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fedran.core._linalg.arrays import Array
from fedran.core.pseudo_labels import PseudoLabels, margin_labels, prototype_labels
from fedran.methods.analytic.fedran import FedRAN
from fedran.settings import at_least, between


@dataclass(frozen=True)
class FedRANPrototype(FedRAN):
    """Nearest class mean of the client's own labelled rows, by cosine, at least ``tau``."""

    tau: Annotated[float, between(-1, 1)] = 0.5
    """Least cosine with the class mean."""

    name = "FedRAN-SSL (prototypes)"
    verified = "yes: the rule equals a row-by-row reference"

    def pseudo_labels(self, Z: Array, H: Array, y: Any) -> PseudoLabels:
        """The paper's rule on the backbone's features."""
        return prototype_labels(Z, y, self.tau)


@dataclass(frozen=True)
class FedRANMargin(FedRAN):
    """A ridge on the client's own labelled rows, accepted where it leads by ``margin``."""

    margin: Annotated[float, at_least(0)] = 0.1
    """How far the best score must lead the second."""
    refit: bool = True
    """Fit once more with the accepted rows, and decide again."""

    name = "FedRAN-SSL (margin)"
    verified = "yes: the rule equals a dense ridge"

    def pseudo_labels(self, Z: Array, H: Array, y: Any) -> PseudoLabels:
        """Our rule on the random features."""
        return margin_labels(H, y, self.margin, self.refit)
