"""Federated continual classification without training.

Clients keep a frozen feature extractor and send one small message per task. A server turns the
messages into a classifier for all classes seen so far, in closed form.
"""

from importlib import import_module
from sys import modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedran.backbones import to_onnx, to_torch
    from fedran.core.errors import Refused
    from fedran.core.features import RandomFeatures
    from fedran.core.fingerprint import Fingerprint
    from fedran.core.points import Points, condense
    from fedran.core.prepare import KernelFeatures
    from fedran.core.pseudo_labels import PseudoLabels, margin_labels
    from fedran.core.solve.head import Diagnosis, Head
    from fedran.core.solve.ridge import Ridge
    from fedran.core.summarize import summarize
    from fedran.core.summary import Summary
    from fedran.core.sums.accounts import Accounts
    from fedran.core.sums.aggregator import Aggregator
    from fedran.estimator import FedRANClassifier, FedRANRegressor
    from fedran.scaler import FederatedScaler
    from fedran.wire.codec import decode, encode
    from fedran.wire.files import load, save
    from fedran.wire.sizes import Plan, plan
    from fedran.wire.validation import Limits

__version__ = "0.1.0"

__all__ = [
    "Accounts",
    "Aggregator",
    "Diagnosis",
    "FedRANClassifier",
    "FedRANRegressor",
    "FederatedScaler",
    "Fingerprint",
    "Head",
    "KernelFeatures",
    "Limits",
    "Plan",
    "Points",
    "PseudoLabels",
    "RandomFeatures",
    "Refused",
    "Ridge",
    "Summary",
    "condense",
    "decode",
    "encode",
    "load",
    "margin_labels",
    "plan",
    "save",
    "summarize",
    "to_onnx",
    "to_torch",
]

_MODULES = {
    "backbones": ("to_onnx", "to_torch"),
    "core.sums.accounts": ("Accounts",),
    "core.sums.aggregator": ("Aggregator",),
    "core.errors": ("Refused",),
    "core.features": ("RandomFeatures",),
    "core.fingerprint": ("Fingerprint",),
    "core.solve.head": ("Diagnosis", "Head"),
    "core.points": ("Points", "condense"),
    "core.prepare": ("KernelFeatures",),
    "core.pseudo_labels": ("PseudoLabels", "margin_labels"),
    "core.solve.ridge": ("Ridge",),
    "core.summarize": ("summarize",),
    "core.summary": ("Summary",),
    "estimator": ("FedRANClassifier", "FedRANRegressor"),
    "scaler": ("FederatedScaler",),
    "wire.codec": ("decode", "encode"),
    "wire.files": ("load", "save"),
    "wire.sizes": ("Plan", "plan"),
    "wire.validation": ("Limits",),
}
_MODULE_OF = {name: f"fedran.{module}" for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would accept any attribute of a module with __getattr__

    def __getattr__(name: str) -> Any:
        """Import a public name on first use, so that commands and imports start fast."""
        if name not in _MODULE_OF:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=modules[__name__])  # "Did you mean: ...?"
        found = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return found


def __dir__() -> list[str]:
    """All public names, with those that are not imported yet."""
    return [*__all__, "__version__"]
