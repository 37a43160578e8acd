"""All methods by key, for the benchmark and the generic checks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from fedran.core.errors import nearest
from fedran.settings import check_table, hints
from fedran_bench.methods.analytic.afl import AFL, AFLRidgeKept
from fedran_bench.methods.analytic.class_means import FedCOF, FedNCM
from fedran_bench.methods.analytic.fedpft import FedPFT
from fedran_bench.methods.analytic.fedran import (
    FedRAN,
    FedRANMargin,
    FedRANPoints,
    FedRANPrototype,
    FedRANUncentred,
)
from fedran_bench.methods.analytic.fedran_dp import FedRANDP
from fedran_bench.methods.analytic.fedran_paper import FedRANPaper, FedRANSSL
from fedran_bench.methods.analytic.fedran_secure import FedRANSecure
from fedran_bench.methods.analytic.gaussian import GHOFLLDA, FedCGS, GHOFLFisherMix
from fedran_bench.methods.analytic.gram_based import STSA, Exact, Fed3R
from fedran_bench.methods.analytic.ranpac import LoRanPAC, RanPAC
from fedran_bench.methods.analytic.stsa_e import STSAE, STSAECorrected
from fedran_bench.methods.fine_tuned import FineTuned
from fedran_bench.methods.prompted.adapters import AdapterTuning
from fedran_bench.methods.prompted.codaprompt import FedCODAPrompt
from fedran_bench.methods.prompted.cprompt import FedCPrompt
from fedran_bench.methods.prompted.dualprompt import FedDualPrompt
from fedran_bench.methods.prompted.lorm import LoRM
from fedran_bench.methods.prompted.pilora import PILoRA
from fedran_bench.methods.protocol import HOW_TO, BaseMethod
from fedran_bench.methods.trained.fedewc import FedEWC
from fedran_bench.methods.trained.fedicarl import FediCaRL
from fedran_bench.methods.trained.method import FedLwF, Finetune
from fedran_bench.methods.trained.target import TARGET
from fedran_bench.methods.yardsticks import SendFeatures, SendFeatures8Bit, SendImages

METHODS: dict[str, type[Any]] = {
    "fedran-points": FedRANPoints,
    "fedran": FedRAN,
    "fedran-uncentred": FedRANUncentred,
    "fedran-secure": FedRANSecure,
    "fedran-dp": FedRANDP,
    "fedran-paper": FedRANPaper,
    "fedran-ssl": FedRANSSL,
    "fedran-prototype": FedRANPrototype,
    "fedran-margin": FedRANMargin,
    "exact": Exact,
    "stsa": STSA,
    "stsa-e": STSAE,
    "stsa-e-corrected": STSAECorrected,
    "afl": AFL,
    "afl-ridge-kept": AFLRidgeKept,
    "fed3r": Fed3R,
    "fedcof": FedCOF,
    "fedncm": FedNCM,
    "fedcgs": FedCGS,
    "gh-ofl-lda": GHOFLLDA,
    "gh-ofl-fishermix": GHOFLFisherMix,
    "fedpft": FedPFT,
    "ranpac": RanPAC,
    "loranpac": LoRanPAC,
    "finetune": Finetune,
    "fedlwf": FedLwF,
    "fedewc": FedEWC,
    "fedicarl": FediCaRL,
    "target": TARGET,
    "fed-dualprompt": FedDualPrompt,
    "fed-codaprompt": FedCODAPrompt,
    "fed-cprompt": FedCPrompt,
    "pilora": PILoRA,
    "lorm": LoRM,
    "send-images": SendImages,
    "send-features": SendFeatures,
    "send-features-8bit": SendFeatures8Bit,
}


def method_class(key: str) -> type[Any]:
    """The class of a method: ours, or ``module:Class``.

    ``module`` is imported, so its code is executed. It is looked up in the Python path and in the
    current folder.
    """
    if key in METHODS:
        return METHODS[key]
    if ":" not in key:
        close = nearest(key, METHODS)
        raise ValueError(f"no method {key!r}{close}; `fedran bench methods` lists them")
    (module, _, name), what = key.partition(":"), f"method {key!r}"
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        found = getattr(import_module(module), name)
    except ModuleNotFoundError as reason:
        hint = "looked in the Python path and in the current folder"
        raise ValueError(f"{what}: no module {reason.name!r}; {hint}") from None
    except AttributeError:
        raise ValueError(f"{what}: {module} has no class {name!r}") from None
    if not isinstance(found, type):
        raise ValueError(f"{what}: expected a class, got {type(found).__name__}")
    return found


def make_method(
    key: str, params: Mapping[str, Any] | None = None, device: str | None = None
) -> BaseMethod:
    """A method by its key, with settings other than its defaults.

    The key of a method from outside this package is ``module:Class``. It must be derived from
    ``BaseMethod``. An unknown key or setting is a ValueError that names the nearest one. The rules
    for values are part of the type hints of the fields, so they hold for direct construction too.
    ``device`` is for methods that can compute on an accelerator; the others run on the CPU. A table
    ``task0`` runs an analytic method on a network that is fine-tuned in task 0.

    >>> make_method("fedran", {"rank": 64}).params()["rank"]
    64
    """
    kind = method_class(key)
    if not (is_dataclass(kind) and issubclass(kind, BaseMethod)):
        what = f"{kind.__name__} must be a dataclass derived from BaseMethod"
        raise ValueError(f"method {key!r}: {what} ({HOW_TO})")
    params = dict(params or {})
    task0 = params.pop("task0", None)
    values = check_table(kind, params, f"method {key!r}", prefix=f"{key}.")
    if device is not None and any(f.name == "device" for f in fields(kind)):
        values["device"] = device
    try:
        method = cast(BaseMethod, kind(**values))
    except TypeError as reason:  # for instance a class that lacks abstract members
        raise ValueError(f"method {key!r}: {reason} ({HOW_TO})") from None
    if task0 is None:
        return method
    stage = check_table(AdapterTuning, task0, f"task0 of method {key!r}", prefix=f"{key}.task0.")
    return FineTuned(method, AdapterTuning(**stage, device=device))


def settings(key: str) -> dict[str, Any]:
    """The settings of a method and their type hints, without the device."""
    return hints(method_class(key))
