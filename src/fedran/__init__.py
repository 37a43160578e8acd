"""Federated continual classification without training.

Clients keep a frozen feature extractor and send one small message per task. A server turns the
messages into a classifier for all classes seen so far, in closed form.
"""

from typing import TYPE_CHECKING, Any

from fedran import presets
from fedran.core.accounts import Accounts
from fedran.core.aggregator import Aggregator
from fedran.core.errors import Refused
from fedran.core.features import RandomFeatures
from fedran.core.fingerprint import Fingerprint
from fedran.core.head import Diagnosis, Head
from fedran.core.mixture import Mixture, condense
from fedran.core.pseudo_labels import PseudoLabels, margin_labels, prototype_labels
from fedran.core.ridge import Ridge
from fedran.core.summarize import Summarizer, summarize
from fedran.core.summary import Summary
from fedran.wire.codec import decode, encode
from fedran.wire.files import load, save
from fedran.wire.plan import Plan, plan
from fedran.wire.validation import Limits

if TYPE_CHECKING:
    from fedran.backbones import to_onnx, to_torch
    from fedran.estimator import FedRANClassifier, add_pipelines
    from fedran.scaler import FederatedScaler

__version__ = "0.1.0"

__all__ = [
    "Accounts",
    "Aggregator",
    "Diagnosis",
    "FedRANClassifier",
    "FederatedScaler",
    "Fingerprint",
    "Head",
    "Limits",
    "Mixture",
    "Plan",
    "PseudoLabels",
    "RandomFeatures",
    "Refused",
    "Ridge",
    "Summarizer",
    "Summary",
    "add_pipelines",
    "condense",
    "decode",
    "encode",
    "load",
    "margin_labels",
    "plan",
    "presets",
    "prototype_labels",
    "save",
    "summarize",
    "to_onnx",
    "to_torch",
]


if not TYPE_CHECKING:  # a type checker would accept any attribute of a module with __getattr__

    def __getattr__(name: str) -> Any:
        """Import the estimator on first use: scikit-learn takes longer to import than the rest."""
        if name in ("FedRANClassifier", "add_pipelines"):
            from fedran import estimator

            return getattr(estimator, name)
        if name in ("to_onnx", "to_torch"):
            from fedran import backbones

            return getattr(backbones, name)
        if name == "FederatedScaler":
            from fedran.scaler import FederatedScaler

            return FederatedScaler
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """All public names, with those that are imported on first use."""
    return sorted({*globals(), *__all__})
