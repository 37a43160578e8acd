"""FedRAN with labels for unlabelled rows: the paper's prototypes, and our margin rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedran.core._linalg.arrays import Array
from fedran.core.pseudo_labels import PseudoLabels, margin_labels, prototype_labels
from fedran.methods.analytic.fedran import FedRAN


@dataclass(frozen=True)
class FedRANPrototype(FedRAN):
    """Nearest class mean of the client's own labelled rows, by cosine, at least ``tau``."""

    tau: float = 0.5

    name = "FedRAN-SSL (prototypes)"
    verified = "yes: the rule equals a row-by-row reference"

    def pseudo_labels(self, Z: Array, H: Array, y: Any) -> PseudoLabels:
        """The paper's rule on the backbone's features."""
        return prototype_labels(Z, y, self.tau)


@dataclass(frozen=True)
class FedRANMargin(FedRAN):
    """A ridge on the client's own labelled rows, accepted where it leads by ``margin``."""

    margin: float = 0.1
    refit: bool = True

    name = "FedRAN-SSL (margin)"
    verified = "yes: the rule equals a dense ridge"

    def pseudo_labels(self, Z: Array, H: Array, y: Any) -> PseudoLabels:
        """Our rule on the random features."""
        return margin_labels(H, y, self.margin, self.refit)
