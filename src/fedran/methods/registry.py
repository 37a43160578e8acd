"""Every method by its key; the generic checks and the benchmark find them here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedran.methods.exact import Exact
from fedran.methods.fedran import FedRAN
from fedran.methods.fedran_paper import FedRANPaper
from fedran.methods.ncm import NearestClassMean
from fedran.methods.protocol import Method

METHODS: dict[str, Callable[..., Method[Any]]] = {
    "fedran": FedRAN,
    "fedran-paper": FedRANPaper,
    "exact": Exact,
    "ncm": NearestClassMean,
}
