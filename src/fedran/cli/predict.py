"""``fedran predict HEAD ROWS``: labels for rows of features, on this machine."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

import fedran
from fedran.core.errors import Refused, printable
from fedran.core.features import feature_map
from fedran.core.fingerprint import Fingerprint, columns_hash, require_columns, require_scaler
from fedran.core.labels import label_array
from fedran.data.arrays import open_arrays
from fedran.data.rows import LABEL, Table, column_order, is_table, read_table
from fedran.wire.files import refusals_name_file, require_file, write_atomically

ARRAYS = ("features", "test", "X")
"""Names of the array to read from an .npz file, the first that exists."""
READABLE = "features (.npy, .npz, .csv or .parquet)"
FAR = 6
"""Standard deviations. Of the rows of the scaler, at most one in 36 is farther from the mean."""


def predict(
    head: Annotated[Path, typer.Argument(help="A saved head, for example from a server.")],
    rows: Annotated[
        Path,
        typer.Argument(help=f"{READABLE}; an .npz with {', '.join(ARRAYS[:-1])} or {ARRAYS[-1]}."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="File for the result, CSV if it ends so (default: print).")
    ] = None,
    scores: Annotated[bool, typer.Option(help="Add the score of every class (CSV).")] = False,
    top: Annotated[
        int | None, typer.Option(min=1, help="The best labels and their scores (CSV).")
    ] = None,
    reject: Annotated[
        float | None,
        typer.Option(
            help="Leave the label empty where the head does not know, so that at most about this "
            "share of all rows gets a wrong label."
        ),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id",
            help='A column of the CSV or Parquet file to copy, not a feature; "": pandas\' index.',
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="The column of labels in a table, no feature. Default: label."
        ),
    ] = None,
    scaler: Annotated[
        Path | None,
        typer.Option(help="The text of FederatedScaler.to_json, for a head of scaled rows."),
    ] = None,
    offer: Annotated[
        Path | None,
        typer.Option(help="The federation's offer, which lists the columns in the head's order."),
    ] = None,
) -> None:
    """Predict the labels of rows of features with a saved head.

    Prints one label per line, or CSV with a header with --scores, --top, --id or an --out that ends
    in .csv. If scaler or offer name the columns, a table may have them in any order.
    """
    if out is not None:
        _require_new(out, (head, rows, scaler, offer))
    found = fedran.load(require_file(head, "a saved head"), fedran.Head)
    if found.fingerprint is None:
        raise Refused(str(head), "a head that identifies its features", "no fingerprint")
    phi = feature_map(found.fingerprint)
    scale = None if scaler is None else read_scaler(scaler)
    try:
        require_scaler(found.fingerprint, scale.fingerprint_ if scale is not None else None)
    except Refused as reason:
        hint = "name the file of the scaler's to_json with --scaler"
        raise Refused(f"{head}: {reason.field}", reason.expected, reason.got, hint) from None
    table = read_features(rows, id_column, label)
    Z, columns = ordered_features(rows, table, found.fingerprint, scale, offer)
    require_features(rows, Z, phi.in_features)
    if scale is not None:
        Z = in_order(scale, columns).standardize(Z)
        if far := int(np.sum(np.median(np.abs(Z), axis=0) > FAR)):
            typer.echo(
                f"fedran: {printable(str(rows))}: in {far} of {Z.shape[1]} columns, half of the "
                f"values or more are over {FAR} standard deviations from the scaler's mean; check "
                "their units, and that they were not scaled before",
                err=True,
            )
    with refusals_name_file(rows):
        mapped = phi.blocks(Z)
    labels: list[Any] = []
    every: list[NDArray[Any]] = []
    for _, H in mapped:
        labels += found.predict(H, reject).tolist()
        every.append(found.scores(H) if scores or top else np.empty((len(H), 0)))
    ids = None if id_column is None else [str(value) for value in table.others[id_column]]
    if scores or top or ids is not None or (out is not None and out.suffix == ".csv"):
        text = as_csv(found, labels, np.concatenate(every), ids, scores, top)
    else:
        text = "".join(f"{_shown(label)}\n" for label in labels)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_atomically(out, text.encode())
    unknown = sum(label is None for label in labels)
    note = f", {unknown} of them unknown" if reject is not None else ""
    typer.echo(f"{len(labels)} labels in {out}{note}")


def _require_new(out: Path, inputs: tuple[Path | None, ...]) -> None:
    """Refuse to write over an input."""
    if out.exists() and any(path is not None and path.samefile(out) for path in inputs):
        raise ValueError(f"--out: {out} is one of the files to read; name another file")


def require_features(path: Path, Z: NDArray[Any], width: int | None) -> None:
    """Refuse what is not a matrix of numbers with ``width`` columns and at least one row."""
    if Z.dtype.kind not in "fiub":
        raise Refused(str(path), "numbers", f"the dtype {Z.dtype}")
    if Z.ndim != 2 or width not in (None, Z.shape[1]):
        expected = "a matrix of features" if width is None else f"rows of {width} features"
        raise Refused(str(path), expected, f"shape {Z.shape}")
    if not len(Z):
        raise Refused(str(path), "at least one row", "none")


def ordered_features(
    path: Path,
    table: Table,
    head: Fingerprint,
    scaler: fedran.FederatedScaler | None,
    offer: Path | None,
) -> tuple[NDArray[Any], Sequence[str]]:
    """The features with their columns in the order of the head, where both have names; the names.

    The offer says what the order of the head is, else the scaler.
    """
    whose = "the scaler"
    columns = tuple(getattr(scaler, "feature_names_in_", ()))
    if offer is not None:
        from fedran.federation.protocol.messages import Offer

        listed = Offer.load(offer).columns
        if (columns_hash(listed) if listed else None) != head.fields.get("columns"):
            raise Refused(str(offer), "the columns of the head", "others, or no names")
        if listed:
            columns, whose = listed, "the federation"
    order = column_order(table.columns, columns, path.name, whose)
    hint = "order them as in training; for a federation's head name its offer.json with --offer"
    require_columns(head, columns or table.columns, path.name, hint)
    return table.X if order is None else table.X[:, order], columns


def in_order(scaler: fedran.FederatedScaler, columns: Sequence[str]) -> fedran.FederatedScaler:
    """The scaler for these columns, which a federation may list in another order."""
    names = getattr(scaler, "feature_names_in_", ())
    order = column_order(list(names), columns, "the scaler", "the federation")
    if order is not None:
        scaler = copy(scaler)
        scaler.mean_, scaler.scale_ = scaler.mean_[order], scaler.scale_[order]
    return scaler


def read_scaler(path: Path) -> fedran.FederatedScaler:
    """The scaler whose ``to_json`` is the text of a file."""
    try:
        text = require_file(path, "the text of FederatedScaler.to_json").read_text("utf-8")
    except UnicodeDecodeError as reason:
        raise Refused(str(path), "the text of FederatedScaler.to_json", str(reason)) from None
    return fedran.FederatedScaler.from_json(text)


def _shown(label: object) -> str:
    return "" if label is None else printable(str(label))


def as_csv(
    head: fedran.Head,
    labels: list[Any],
    scores: NDArray[Any],
    ids: list[str] | None,
    all_scores: bool,
    top: int | None,
) -> str:
    """A header and one line per row: id (or row number), label, then the best or all scores."""
    names = [_shown(c) for c in label_array(head.classes).tolist()]
    best = np.argsort(-scores, axis=1, kind="stable")[:, : min(top or 0, len(names))]
    header = ["row" if ids is None else "id", "label"]
    header += [f"{what}_{k + 1}" for k in range(best.shape[1]) for what in ("top", "top_score")]
    header += [f"score_{name}" for name in names] if all_scores else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for i, label in enumerate(labels):
        line: list[Any] = [i if ids is None else printable(ids[i]), _shown(label)]
        for j in best[i]:
            line += [names[j], f"{scores[i, j]:.6g}"]
        line += [f"{s:.6g}" for s in scores[i]] if all_scores else []
        writer.writerow(line)
    return text.getvalue()


def read_features(path: Path, ids: str | None = None, label: str | None = None) -> Table:
    """Features (n, d), with names if the file is a table, and its column ``ids``.

    The column ``label`` of a table is left out; None: the column ``LABEL``, if there is one.
    """
    require_file(path, READABLE)
    if is_table(path):
        apart = [name for name in (ids, label) if name is not None]
        return read_table(path, apart, optional=LABEL if label is None else None)
    for option, name in (("--id", ids), ("--label", label)):
        if name is not None:
            raise ValueError(f"{option} names a column of a table, got the file {path.name}")
    with open_arrays(path, READABLE) as found:
        if isinstance(found, np.ndarray):
            return Table(found, (), {})
        for name in ARRAYS:
            if name in found.files:
                return Table(found[name], (), {})
        held = ", ".join(found.files) or "none"
    raise Refused(str(path), f"an array {' or '.join(ARRAYS)}", held)
