"""Every method by its key; the generic checks and the benchmark find them here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedran.core.errors import nearest
from fedran.methods.analytic.afl import AFL
from fedran.methods.analytic.exact import Exact
from fedran.methods.analytic.fed3r import Fed3R
from fedran.methods.analytic.fedcof import FedCOF
from fedran.methods.analytic.fedncm import FedNCM
from fedran.methods.analytic.fedran import FedRAN
from fedran.methods.analytic.fedran_paper import FedRANPaper
from fedran.methods.analytic.fedran_ssl import FedRANMargin, FedRANPrototype
from fedran.methods.analytic.loranpac import LoRanPAC
from fedran.methods.analytic.ranpac import RanPAC
from fedran.methods.analytic.stsa import STSA
from fedran.methods.analytic.stsa_e import STSAE, STSAECorrected
from fedran.methods.protocol import Method
from fedran.methods.trained.fedewc import FedEWC
from fedran.methods.trained.fedicarl import FediCaRL
from fedran.methods.trained.fedlwf import FedLwF
from fedran.methods.trained.finetune import Finetune
from fedran.methods.trained.target import TARGET
from fedran.methods.yardsticks.send_features import SendFeatures, SendFeatures8Bit
from fedran.methods.yardsticks.send_images import SendImages
from fedran.settings import has_type as fits

METHODS: dict[str, type[Any]] = {
    "fedran": FedRAN,
    "fedran-paper": FedRANPaper,
    "fedran-prototype": FedRANPrototype,
    "fedran-margin": FedRANMargin,
    "exact": Exact,
    "stsa": STSA,
    "stsa-e": STSAE,
    "stsa-e-corrected": STSAECorrected,
    "afl": AFL,
    "fed3r": Fed3R,
    "fedcof": FedCOF,
    "fedncm": FedNCM,
    "ranpac": RanPAC,
    "loranpac": LoRanPAC,
    "finetune": Finetune,
    "fedlwf": FedLwF,
    "fedewc": FedEWC,
    "fedicarl": FediCaRL,
    "target": TARGET,
    "send-images": SendImages,
    "send-features": SendFeatures,
    "send-features-8bit": SendFeatures8Bit,
}


def make_method(
    key: str, params: Mapping[str, Any] | None = None, device: str | None = None
) -> Method[Any]:
    """A method by its key, with settings other than its defaults.

    An unknown key or setting is a ValueError that names the nearest one. ``device`` is for
    methods that can compute on an accelerator; the others run on the CPU all the same.

    >>> make_method("fedran", {"rank": 64}).params()["rank"]
    64
    """
    if key not in METHODS:
        raise ValueError(f"no method {key!r}{nearest(key, METHODS)}; `fedran methods` lists them")
    types = settings(key)
    values = dict(params or {})
    for name, value in values.items():
        if name not in types:
            known = ", ".join(types) or "none"
            raise ValueError(
                f"method {key!r} has no setting {name!r}{nearest(name, types)}; it has {known}"
            )
        if not fits(value, types[name]):
            raise ValueError(f"{key}.{name} must be {_shown(types[name])}, got {value!r}")
        if isinstance(value, int) and fits(0.5, types[name]) and not isinstance(value, bool):
            values[name] = float(value)
    if device is not None and can_use_device(key):
        values["device"] = device
    return METHODS[key](**values)


def settings(key: str) -> dict[str, Any]:
    """The settings of a method and their types, but for the device."""
    hints = get_type_hints(METHODS[key])
    return {f.name: hints[f.name] for f in fields(METHODS[key]) if f.name != "device"}


def can_use_device(key: str) -> bool:
    """Whether the method computes on an accelerator when it is given one."""
    return any(f.name == "device" for f in fields(METHODS[key]))


def _shown(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if isinstance(kind, UnionType):
        return " or ".join(_shown(k) for k in get_args(kind))
    return "nothing" if kind is NoneType else str(kind.__name__)
