"""The content of a saved file as text and numbers, for ``fedran inspect``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedran.core.accounts import Accounts
from fedran.core.aggregator import Aggregator
from fedran.core.bounds import gram_bounds
from fedran.core.calibration import Calibration
from fedran.core.errors import printable, shortened
from fedran.core.head import Head
from fedran.core.labels import Label
from fedran.core.mixture import Mixture
from fedran.core.summary import Summary
from fedran.wire.codec import decode_container
from fedran.wire.container import Container
from fedran.wire.files import read_container, refusals_name_file
from fedran.wire.validation import Limits

SHOWN = 8
"""At most this many classes, clients or tasks are listed by name."""

REJECT = (0.05, 0.1)
"""Shares of wrong decisions for which the threshold of "don't know" is shown."""

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


def _summary(s: Summary, message: Container) -> tuple[str, dict[str, Section]]:
    precision = message.header.text("precision")
    if precision != "mixed":
        width = "fixed width"
    elif s.rank == 0:
        width = "no column"
    else:
        bits = message.tensors["directions_bits"].mean()
        width = f"{bits:.2f} bits per value before compression"
    content: Section = {
        "precision": f"{precision} ({width})",
        "out_features M": s.out_features,
        "rank": s.rank,
        "center": _center(s.center),
        "rows": s.accounts.n_rows,
        "labelled rows": sum(s.counts),
        "classes": _listed(dict(zip(s.classes, s.counts, strict=True))),
        "in memory": f"{s.nbytes} bytes",
        "largest singular value": float(s.sigma[0]) if s.rank else None,
        "smallest kept": float(s.sigma[-1]) if s.rank else None,
    }
    return "upload: one client's summary of one task", {
        "content": content,
        "accounts": _accounts(s.accounts),
    }


def _mixture(m: Mixture, message: Container) -> tuple[str, dict[str, Section]]:
    precision = message.header.text("precision")
    if precision == "mixed" and m.n_groups:
        bits = message.tensors["means_bits"].mean()
        precision = f"mixed ({bits:.2f} bits per value before compression)"
    spread = float(sum(p.counts @ p.spreads for p in m.parts))
    content: Section = {
        "precision": precision,
        "in_features d": m.in_features,
        "parts": len(m.parts),
        "groups": m.n_groups,
        "rows": m.n_rows,
        "rows of the smallest group": m.smallest_group,
        "directions": ", ".join(str(len(p.shares)) for p in m.parts[:SHOWN]) or "none",
        "classes": _listed(dict(zip(m.classes, m.counts, strict=True))),
        "in memory": f"{m.nbytes} bytes",
        "energy": m.energy,
        "of which within groups": f"{spread / m.energy:.2%}" if m.energy else None,
        "bound on the Gram error": "none exists for mixtures",
    }
    return "upload: one client's mixture of one task", {"content": content}


def _head(head: Head, message: Container) -> tuple[str, dict[str, Section]]:
    content: Section = {
        "precision": message.header.text("precision"),
        "out_features M": head.out_features,
        "classes": _listed(dict.fromkeys(head.classes)),
        "novelty": "none" if head.seen is None else f"from {head.seen.shape[1]} directions",
    }
    diagnosis: Section = {k: _safe(v) for k, v in asdict(head.diagnosis).items()}
    return "head: a classifier", {
        "content": content,
        "diagnosis": diagnosis,
        **_calibration(head.calibration, len(head.classes)),
    }


def _aggregator(agg: Aggregator) -> tuple[str, dict[str, Section]]:
    clients = sorted({client for client, _ in agg.absorbed})
    tasks = sorted({task for _, task in agg.absorbed})
    content: Section = {
        "dtype": agg.dtype,
        "out_features M": agg.out_features,
        "columns held": agg.rank,
        "uploads": len(agg.absorbed),
        "clients": _listed(dict.fromkeys(clients)),
        "tasks": _listed(dict.fromkeys(tasks)),
        "rows": agg.accounts.n_rows,
        "classes": _listed(dict(agg.counts)),
    }
    bounds: Section = {k.replace("_", " "): v for k, v in asdict(agg.bounds).items()}
    return "aggregator: a server's state", {
        "content": content,
        "accounts": _accounts(agg.accounts),
        "bounds on the Gram error": bounds,
    }


def _center(center: str | None) -> str:
    """What was subtracted from the rows before they were factorised."""
    return "none: the rows themselves" if center is None else f"{center}: rows minus class means"


def _accounts(accounts: Accounts) -> Section:
    bounds = gram_bounds(accounts)
    return {
        "energy": accounts.energy,
        "cut": f"{accounts.cut:.6g} ({accounts.cut_fraction:.2%} of the energy)",
        "mean row energy": accounts.mean_row_energy,
        "eps_G (spectral)": bounds.spectral,
        "of which quantisation": accounts.eps_quant,
        "eps_G (Frobenius)": bounds.frobenius,
        "eps_B": accounts.eps_B,
        "eta_loc, eta_merge, L_t": (
            f"{accounts.eta_loc:.4g}, {accounts.eta_merge:.4g}, {accounts.merges}"
        ),
    }


def _calibration(found: Calibration | None, n_classes: int) -> dict[str, Section]:
    """What probabilities and "don't know" are made of; "none" where nothing was recorded."""
    if found is None or found.total == 0:
        return {"calibration": {"rows": "none: no probabilities, no rejection"}}
    content: Section = {
        "rows": found.total,
        "of which predicted right": f"{found.histogram[0] / found.total:.2%}",
        "compared with": f"{1 - found.missing(n_classes):.2%} of the classes on average",
        "temperature": found.temperature,
    }
    for alpha in REJECT:
        known = found.missing(n_classes) < alpha
        gap = found.threshold(alpha, n_classes) if known else "none: too few classes compared"
        content[f"gap for reject={alpha:g}"] = gap
    return {"calibration": content}


def _safe(value: Any) -> Any:
    """A value from a file, with text made safe for a terminal."""
    return printable(value) if isinstance(value, str) else value


def _listed(items: dict[Label, int] | dict[str, None] | dict[Label, None]) -> str:
    names = [printable(str(k), 40) + (f" ({v})" if v is not None else "") for k, v in items.items()]
    return f"{len(items)}: {shortened(names, SHOWN)}" if items else "none"
