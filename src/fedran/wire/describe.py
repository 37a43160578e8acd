"""The content of a saved file as text and numbers, for ``fedran inspect``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedran.core.errors import printable, shortened
from fedran.core.labels import Label
from fedran.core.mixture import Mixture
from fedran.core.solve.head import Head
from fedran.core.summary import Summary
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.aggregator import Aggregator
from fedran.wire.codec import decode_container
from fedran.wire.container import Container
from fedran.wire.files import read_container, refusals_name_file
from fedran.wire.validation import Limits

SHOWN = 8
"""At most this many classes, clients or tasks are listed by name."""

Section = dict[str, str | int | float | None]


@dataclass(frozen=True)
class Description:
    """A title and sections of named values for people, and the raw fields for programs."""

    title: str
    sections: dict[str, Section]
    fields: dict[str, Any]
    """The verified header of the file, with ``bytes`` and ``digest`` added."""


def describe(path: str | Path) -> Description:
    """Describe a saved message, head or aggregator. Any other or damaged file is refused."""
    with refusals_name_file(path):
        message, limits = read_container(path, None, None)
        return describe_container(message, limits)


def describe_container(message: Container, limits: Limits) -> Description:
    """Describe the verified contents of a message, head or aggregator."""
    obj = decode_container(message, None, limits, None)
    file: Section = {
        "bytes": message.size,
        "format version": message.header.text("version"),
        "sha256": message.digest,
    }
    if isinstance(obj, Summary):
        title, sections = _summary(obj, message)
    elif isinstance(obj, Mixture):
        title, sections = _mixture(obj, message)
    elif isinstance(obj, Head):
        title, sections = _head(obj, message)
    else:
        title, sections = _aggregator(obj)
    fingerprint: Section = {"fingerprint": "none: the features are not identified"}
    if obj.fingerprint is not None:
        fingerprint = {
            **{k: _safe(v) for k, v in obj.fingerprint.fields.items()},
            "hash": obj.fingerprint.hash,
        }
    return Description(
        title,
        {"file": file, **sections, "fingerprint": fingerprint},
        {**message.header.fields, "bytes": message.size, "digest": message.digest},
    )


def _precision(message: Container, codes: str) -> str:
    """The precision, with the bits per value where the rows of a tensor have some each."""
    precision = message.header.text("precision")
    bits = message.tensors.get(f"{codes}_bits")
    if bits is None or not len(bits):
        return precision
    return f"{precision} ({bits.mean():.2f} bits per value before compression)"


def _summary(s: Summary, message: Container) -> tuple[str, dict[str, Section]]:
    content: Section = {
        "precision": _precision(message, "directions"),
        "out_features M": s.out_features,
        "rank": s.rank,
        "center": "class: rows minus class means" if s.center else "none: the rows themselves",
        "rows": s.accounts.n_rows,
        "labelled rows": sum(s.counts),
        "classes": _listed(dict(zip(s.classes, s.counts, strict=True))),
    }
    sections = {"content": content, "accounts": _accounts(s.accounts)}
    return "upload: one client's summary of one task", sections


def _mixture(m: Mixture, message: Container) -> tuple[str, dict[str, Section]]:
    content: Section = {
        "precision": _precision(message, "means"),
        "in_features d": m.in_features,
        "parts": len(m.parts),
        "groups": m.n_groups,
        "rows": m.n_rows,
        "rows of the smallest group": m.smallest_group,
        "directions": ", ".join(str(len(p.shares)) for p in m.parts[:SHOWN]) or "none",
        "classes": _listed(dict(zip(m.classes, m.counts, strict=True))),
        "energy": m.energy,
    }
    return "upload: one client's mixture of one task", {"content": content}


def _head(head: Head, message: Container) -> tuple[str, dict[str, Section]]:
    content: Section = {
        "precision": _precision(message, "weights"),
        "out_features M": head.out_features,
        "classes": _listed(dict.fromkeys(head.classes)),
        "novelty": "none" if head.seen is None else f"from {head.seen.shape[1]} directions",
        "calibration": "none: no probabilities, no rejection",
    }
    if head.calibration is not None and head.calibration.total > 0:
        content["calibration"] = f"from {head.calibration.total:g} rows"
        content["temperature"] = head.calibration.temperature
    diagnosis: Section = {k: _safe(v) for k, v in asdict(head.diagnosis).items()}
    return "head: a classifier", {"content": content, "diagnosis": diagnosis}


def _aggregator(agg: Aggregator) -> tuple[str, dict[str, Section]]:
    content: Section = {
        "dtype": agg.dtype,
        "out_features M": agg.out_features,
        "columns held": agg.rank,
        "uploads": len(agg.absorbed),
        "clients": _listed(dict.fromkeys(sorted({client for client, _ in agg.absorbed}))),
        "tasks": _listed(dict.fromkeys(sorted({task for _, task in agg.absorbed}))),
        "rows": agg.accounts.n_rows,
        "classes": _listed(dict(agg.counts)),
    }
    return "aggregator: a server's state", {
        "content": content,
        "accounts": _accounts(agg.accounts),
    }


def _accounts(accounts: Accounts) -> Section:
    unknown = "none: mixtures were absorbed" if accounts.mixture_rows else ""
    return {
        "energy": accounts.energy,
        "cut": f"{accounts.cut:.6g} ({accounts.cut_fraction:.2%} of the energy)",
        "mean row energy": accounts.mean_row_energy,
        "eps_G (spectral)": unknown or accounts.eps_G,
        "of which quantisation": accounts.eps_quant,
        "eps_G (Frobenius)": unknown or accounts.eps_G_fro,
        "eps_B": accounts.eps_B,
        "eta_loc, eta_merge, L_t": (
            f"{accounts.eta_loc:.4g}, {accounts.eta_merge:.4g}, {accounts.merges}"
        ),
    }


def _safe(value: Any) -> Any:
    """A value from a file, with text made safe for a terminal."""
    return printable(value) if isinstance(value, str) else value


def _listed(items: dict[Label, int] | dict[str, None] | dict[Label, None]) -> str:
    names = [printable(str(k), 40) + (f" ({v})" if v is not None else "") for k, v in items.items()]
    return f"{len(items)}: {shortened(names, SHOWN)}" if items else "none"
