"""``fedran inspect FILE``: the content of an upload, an envelope, a head or an aggregator."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from fedran.cli.tables import named_values
from fedran.core.errors import printable, shortened
from fedran.core.labels import Label
from fedran.core.points import Points
from fedran.core.solve.head import Head
from fedran.core.summary import Summary
from fedran.core.sums.aggregator import Aggregator
from fedran.wire.codec import decode_container
from fedran.wire.container import Container, unpack
from fedran.wire.files import read_container, refusals_name_file, require_file
from fedran.wire.sizes import human_bytes
from fedran.wire.validation import FILE_LIMITS, Limits

SHOWN = 8
"""At most this many classes, clients or tasks are listed by name."""
Section = dict[str, str | int | float | None]
Description = tuple[str, dict[str, Section], dict[str, Any]]
"""A title, sections of named values for people, and the verified header for programs."""


def inspect(
    file: Annotated[
        Path, typer.Argument(help="An upload, an envelope, a head or a saved aggregator.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the header as JSON.")] = False,
) -> None:
    """Show the content of a file: sizes, classes, accounts, fingerprint."""
    path = require_file(file, "an upload, an envelope, a head or a saved aggregator")
    title, sections, fields = describe(path)
    if as_json:
        typer.echo(json.dumps(fields, indent=2))
        return
    console = Console(highlight=False)
    console.print(f"[bold]{escape(title)}[/bold]")
    for name, section in sections.items():
        rows = []
        for key, value in section.items():
            text = f"{value:.6g}" if isinstance(value, float) else str(value)
            if key == "bytes" and isinstance(value, int):
                text = f"{value} ({human_bytes(value)})"
            rows.append((key, text))
        console.print(f"\n[bold]{escape(name)}[/bold]")
        console.print(named_values(rows))


def describe(path: Path) -> Description:
    """Describe a saved message, head, aggregator or envelope. Any other file is refused."""
    with refusals_name_file(path):
        if path.suffix == ".envelope":
            return _envelope(path)
        return _describe(*read_container(path, None, None))


def _envelope(path: Path) -> Description:
    """The signed statement, and the upload in the envelope. The signature is not verified."""
    from fedran.federation.protocol.messages import open_envelope

    envelope = open_envelope(path.read_bytes(), FILE_LIMITS)
    title, sections, fields = _describe(unpack(envelope.upload, FILE_LIMITS), FILE_LIMITS)
    statement = envelope.statement
    signed: Section = {
        "federation": statement.federation,
        "site": statement.client,
        "task": statement.task,
        "members": printable(", ".join("/".join(m) for m in statement.members)) or "none",
        "bytes": path.stat().st_size,
    }
    title = f"envelope of {statement.client} for {statement.task}: {title}"
    return (
        title,
        {"signed statement": signed, **sections},
        {**fields, "statement": asdict(statement)},
    )


def _describe(message: Container, limits: Limits) -> Description:
    """Describe the verified contents of a message, head or aggregator."""
    obj = decode_container(message, None, limits, None)
    file: Section = {
        "bytes": message.size,
        "format version": message.header.text("version"),
        "sha256": message.digest,
    }
    header = {**message.header.fields, "bytes": message.size, "digest": message.digest}
    sections: dict[str, Section] = {}
    if isinstance(obj, Summary):
        title, content = "upload: one client's summary of one task", _summary(obj, message)
    elif isinstance(obj, Points):
        title, content = "upload: one client's points of one task", _groups([obj])
        content["columns"] = obj.in_features
        content["bits per value"] = 8 * message.size / max(1, obj.means.size)
        content["classes"] = _listed(obj.rows_per_class())
        largest = int(obj.counts.max(initial=0))
        header |= {"rows": obj.n_rows, "smallest": obj.smallest_group, "largest": largest}
    elif isinstance(obj, Head):
        title, content = "head: a classifier", _head(obj)
        sums, points = {"f", "eps_W", "eps_W_paper"}, {"agreement", "largest_group"}
        hidden = points if obj.landmarks is None else sums
        shown = {k: v for k, v in asdict(obj.diagnosis).items() if k not in hidden}
        sections["diagnosis"] = {k: _safe(v) for k, v in shown.items()}
    else:
        title, content = "aggregator: a server's state", _aggregator(obj)
    if isinstance(obj, Summary) or (isinstance(obj, Aggregator) and obj.takes is Summary):
        of = obj.accounts
        sections["accounts"] = {
            "energy": of.energy,
            "cut": f"{of.cut:.6g} ({of.cut_fraction:.2%} of the energy)",
            "eps_G (spectral)": of.eps_G,
            "of which quantisation": of.eps_quant,
            "eps_B": of.eps_B,
        }
    fingerprint: Section = {"fingerprint": "none: the features are not identified"}
    if obj.fingerprint is not None:
        fields = {k: _safe(v) for k, v in obj.fingerprint.fields.items()}
        fingerprint = {**fields, "hash": obj.fingerprint.hash}
    return title, {"file": file, "content": content, **sections, "fingerprint": fingerprint}, header


def _summary(s: Summary, message: Container) -> Section:
    precision, bits = message.header.text("precision"), message.tensors.get("directions_bits")
    if bits is not None and len(bits):
        precision += f" ({bits.mean():.2f} bits per value before compression)"
    return {
        "precision": precision,
        "out_features M": s.out_features,
        "rank": s.rank,
        "center": "class: rows minus class means" if s.center else "none: the rows themselves",
        "rows": s.accounts.n_rows,
        "labelled rows": sum(s.counts),
        "classes": _listed(dict(zip(s.classes, s.counts, strict=True))),
    }


def _groups(messages: Iterable[Points]) -> Section:
    counts = [n for points in messages for n in points.counts.tolist()]
    return {
        "points": len(counts),
        "rows": sum(counts),
        "rows of the smallest group": min(counts, default=0),
        "rows of the largest group": max(counts, default=0),
    }


def _head(head: Head) -> Section:
    content: Section = {"classes": _listed(dict.fromkeys(head.classes))}
    if head.landmarks is None:
        content["out_features M"] = head.out_features
        content["novelty"] = f"from {0 if head.seen is None else head.seen.shape[1]} directions"
    else:
        content["landmarks"] = len(head.landmarks)
        content["columns"] = head.out_features
        content["scale of the kernel"] = head.scale
        content["ridge per row"] = head.diagnosis.lam
        kind = "agreement" if head.diagnosis.accuracy is None else "accuracy"
        if head.diagnosis.agreement is not None:
            content[f"leave-one-out {kind}"] = f"{head.diagnosis.agreement:.2%}"
    content["calibration"] = "none: no probabilities, no rejection"
    if head.calibration is not None and head.calibration.total > 0:
        content["calibration"] = f"from {head.calibration.total:g} rows"
        content["temperature"] = head.calibration.temperature
    return content


def _aggregator(agg: Aggregator) -> Section:
    content: Section = {"takes": "points", **_groups(agg.points.values())}
    if agg.takes is Summary:
        content = {"takes": "summaries", "out_features M": agg.out_features}
        content["columns held"] = agg.sums.rank
    return content | {
        "dtype": agg.dtype,
        "uploads": len(agg.absorbed),
        "clients": _listed(dict.fromkeys(sorted({client for client, _ in agg.absorbed}))),
        "tasks": _listed(dict.fromkeys(sorted({task for _, task in agg.absorbed}))),
        "rows": agg.accounts.n_rows,
        "classes": _listed(dict(agg.counts)),
    }


def _safe(value: Any) -> Any:
    """A value from a file, with text made safe for a terminal."""
    return printable(value) if isinstance(value, str) else value


def _listed(items: dict[Label, int] | dict[str, None] | dict[Label, None]) -> str:
    names = [printable(str(k), 40) + (f" ({v})" if v is not None else "") for k, v in items.items()]
    return f"{len(items)}: {shortened(names, SHOWN)}" if items else "none"
