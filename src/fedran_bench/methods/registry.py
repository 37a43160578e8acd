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
from fedran_bench.methods import yardsticks
from fedran_bench.methods.analytic import (
    afl,
    class_means,
    deepafl,
    fedpft,
    fedran,
    fedran_dp,
    fedran_paper,
    fedran_secure,
    gaussian,
    gram_based,
    klda,
    ranpac,
    stsa_e,
)
from fedran_bench.methods.fine_tuned import FineTuned
from fedran_bench.methods.prompted import codaprompt, cprompt, dualprompt, lorm, pilora
from fedran_bench.methods.prompted.adapters import AdapterTuning
from fedran_bench.methods.protocol import HOW_TO, BaseMethod
from fedran_bench.methods.trained import fedewc, fedicarl, target
from fedran_bench.methods.trained.method import FedLwF, Finetune

METHODS: dict[str, type[Any]] = {
    "fedran-points": fedran.FedRANPoints,
    "fedran": fedran.FedRAN,
    "fedran-uncentred": fedran.FedRANUncentred,
    "fedran-secure": fedran_secure.FedRANSecure,
    "fedran-dp": fedran_dp.FedRANDP,
    "fedran-paper": fedran_paper.FedRANPaper,
    "fedran-ssl": fedran_paper.FedRANSSL,
    "fedran-prototype": fedran.FedRANPrototype,
    "fedran-margin": fedran.FedRANMargin,
    "exact": gram_based.Exact,
    "stsa": gram_based.STSA,
    "stsa-e": stsa_e.STSAE,
    "stsa-e-corrected": stsa_e.STSAECorrected,
    "afl": afl.AFL,
    "afl-ridge-kept": afl.AFLRidgeKept,
    "fed3r": gram_based.Fed3R,
    "fedcof": class_means.FedCOF,
    "fedncm": class_means.FedNCM,
    "fedcgs": gaussian.FedCGS,
    "gh-ofl-lda": gaussian.GHOFLLDA,
    "gh-ofl-fishermix": gaussian.GHOFLFisherMix,
    "fedpft": fedpft.FedPFT,
    "klda": klda.KLDA,
    "deepafl": deepafl.DeepAFL,
    "ranpac": ranpac.RanPAC,
    "loranpac": ranpac.LoRanPAC,
    "finetune": Finetune,
    "fedlwf": FedLwF,
    "fedewc": fedewc.FedEWC,
    "fedicarl": fedicarl.FediCaRL,
    "target": target.TARGET,
    "fed-dualprompt": dualprompt.FedDualPrompt,
    "fed-codaprompt": codaprompt.FedCODAPrompt,
    "fed-cprompt": cprompt.FedCPrompt,
    "pilora": pilora.PILoRA,
    "lorm": lorm.LoRM,
    "send-images": yardsticks.SendImages,
    "send-features": yardsticks.SendFeatures,
    "send-features-8bit": yardsticks.SendFeatures8Bit,
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
