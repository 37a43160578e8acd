"""``fedran predict HEAD ROWS``: labels for images, texts or rows of features, on this machine."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from numpy.typing import NDArray

import fedran
from fedran.cli.inputs import (
    DEVICE,
    OVERWRITE,
    feature_store,
    in_order,
    load_items,
    matching_scaler,
    ordered_features,
    progress,
    require_features,
    require_new,
    say,
    value_range,
)
from fedran.core.errors import Refused, printable
from fedran.core.features import feature_map
from fedran.core.fingerprint import Fingerprint, require_same
from fedran.core.labels import encode_labels
from fedran.data.feature_file import SOURCE, read_parts
from fedran.data.images import LINES, Texts
from fedran.data.rows import (
    LABEL,
    Rows,
    as_labels,
    is_table,
    none_if_missing,
    read_table,
)
from fedran.wire.files import refusals_name_file, require_file, write_atomically

READABLE = "a folder of images, features (.npy, .npz, .csv or .parquet) or texts"
FAR = 6
"""Standard deviations. Of the rows of the scaler, at most one in 36 is farther from the mean."""
WRONG = 0.01
"""Share of all rows that may get a wrong label unless they count as "don't know". Of CLINC150, this
flags 7 % of new sentences, and 82 % of those of no known class (docs/how-to/embeddings.md)."""


def predict(
    head: Annotated[Path, typer.Argument(help="A saved head, of `fedran solve` or from a server.")],
    rows: Annotated[
        Path,
        typer.Argument(help="A folder of images, features (.npz, .npy), a table, or a .txt file."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="File for the result, CSV if it ends so (default: print).")
    ] = None,
    overwrite: Annotated[bool, OVERWRITE] = False,
    backbone: Annotated[
        str | None, typer.Option(help="Of the head, for images and texts: see fedran features.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="The column of texts in a table, with --backbone.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Take features of another backbone than the head's.")
    ] = False,
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
        typer.Option(help="The scaler as JSON, for a head of scaled rows."),
    ] = None,
    offer: Annotated[
        Path | None,
        typer.Option(help="The federation's offer, which lists the columns in the head's order."),
    ] = None,
    device: Annotated[str | None, DEVICE] = None,
) -> None:
    """Predict the labels of images, texts or rows of features with a saved head.

    Prints one label per line, or CSV with --id or an --out that ends in .csv:
    label and probability, and "yes" under dont_know for rows on which the head should not decide,
    because with them more than 1 % of all labels (or --reject) would be wrong.
    """
    if id_column is not None and not is_table(rows):
        raise ValueError(f"--id names a column of a table, got the file {rows.name}")
    if out is not None:
        out = require_new(out, overwrite, head, rows, scaler, offer)
    found = fedran.load(require_file(head, "a saved head"), fedran.Head)
    if found.fingerprint is None:
        raise Refused(str(head), "a head that identifies its features", "no fingerprint")
    phi = feature_map(found.fingerprint)
    scale = matching_scaler(found.fingerprint, scaler, head)
    if rows.is_dir() or rows.suffix.lower() == LINES or backbone is not None:
        given = _extracted(rows, found.fingerprint, backbone, device, column, label, force)
        if id_column is not None:
            ids = read_table(rows, [id_column], features=False).others[id_column]
            given = replace(given, names=tuple(map(str, ids)))
    else:
        given = read_features(rows, id_column, label)
    require_source(given, found.fingerprint, rows, force)
    Z, columns = ordered_features(rows, given, found.fingerprint, scale, offer)
    require_features(rows, Z, phi.in_features)
    if scale is not None:
        Z = in_order(scale, columns).standardize(Z)
        if far := int(np.sum(np.median(np.abs(Z), axis=0) > FAR)):
            say(
                f"fedran: {rows}: in {far} of {Z.shape[1]} columns, half of the values or more are "
                f"over {FAR} standard deviations from the scaler's mean; check their units, and "
                "that they were not scaled before"
            )
    with refusals_name_file(rows):
        mapped = phi.blocks(Z)
    share = reject if reject is not None else _decidable(found)
    table: dict[str, list[Any]] = defaultdict(list)
    if given.names:
        table["file" if id_column is None else "id"] = [printable(name) for name in given.names]
    else:
        table["row"] = list(range(len(Z)))
    best = _add_answers(table, found, mapped, reject, share)
    if id_column is not None or (out is not None and out.suffix == ".csv"):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([table, *zip(*table.values(), strict=True)])
        result = text.getvalue()
    else:
        result = "".join(f"{label}\n" for label in table["label"])
    if out is None:
        typer.echo(result, nl=False)
        return
    write_atomically(out, result.encode())
    note, unsure = "", table["dont_know"].count("yes")
    if share is not None:
        note = f', "don\'t know" for {unsure} of them, to get about {share:.1%} wrong'
        note += "; --reject 0.1 lets 10 % be wrong" * (2 * unsure > len(best) and share < 0.1)
    typer.echo(f"{len(best)} labels in {out}{note}")
    classes, codes = encode_labels(given.y, len(given.y))
    if known := int(np.sum(codes >= 0)):
        right = sum(classes[c] == label for c, label in zip(codes, best, strict=True) if c >= 0)
        typer.echo(f"{right / known:.1%} of the {known} known labels are predicted")


def _add_answers(
    table: dict[str, list[Any]],
    head: fedran.Head,
    mapped: Iterable[tuple[slice, NDArray[Any]]],
    reject: float | None,
    share: float | None,
) -> list[Any]:
    """Add what a head says as columns of a table. Returns the best label of every row."""
    best: list[Any] = []
    for _, H in mapped:
        best += head.predict(H).tolist()
        table["label"] += map(_shown, head.predict(H, reject).tolist())
        if head.calibration is not None and head.calibration.total:
            table["probability"] += [f"{p:.4f}" for p in head.predict_proba(H).max(axis=1)]
        if share is not None:
            table["dont_know"] += ["yes" * flag for flag in head.abstain(H, share).tolist()]
    return best


def _decidable(head: fedran.Head) -> float | None:
    """``WRONG``, or the least share that the head can say something about, if any."""
    found = head.calibration
    if found is None or not found.total:
        return None
    share = max(WRONG, 1 / (found.total + 1))
    try:
        return share if np.isfinite(found.threshold(share, len(head.classes))) else None
    except ValueError:  # too few of its classes were compared
        return None


def require_source(rows: Rows, head: Fingerprint, path: Path, force: bool) -> None:
    """Refuse features of another backbone than the head's, where both say which it is."""
    mine, theirs = (
        {name: str(fields[name]) for name in SOURCE if name in fields}
        for fields in (rows.source, head.fields)
    )
    if force or not mine or not theirs:
        return
    try:
        require_same(Fingerprint(mine), Fingerprint(theirs), "features and head")
    except Refused as reason:
        hint = "compute the features with the head's backbone; --force predicts nevertheless"
        raise Refused(str(path), reason.expected, reason.got, hint) from None


def _extracted(
    path: Path,
    head: Fingerprint,
    backbone: str | None,
    device: str | None,
    column: str | None,
    label: str | None,
    force: bool,
) -> Rows:
    """The features of images or texts, computed by the head's backbone."""
    from fedran.backbones.catalogue import load_backbone
    from fedran.backbones.efficientnet_lite import NAME as EFFICIENTNET
    from fedran.backbones.store import compute, source_of

    named, stated = str(head.fields.get("backbone", "")), head.fields.get("range")
    if not named:
        what = "rows of features, because the head names no backbone"
        raise Refused(str(path), what, "images or texts", "make rows as those of its messages")
    if backbone is None and named != EFFICIENTNET:
        hint = "name its file or folder with --backbone, as for `fedran features`"
        raise Refused(str(path), f"the backbone of the head, {printable(named, 80)}", "none", hint)
    items = load_items(str(path), column, label, value_range(str(stated) if stated else None))
    takes: Literal["pixels", "text"] = "text" if isinstance(items.train, Texts) else "pixels"
    network = load_backbone(backbone or named, device, takes=takes)
    rows = Rows(np.empty((0, network.out_features)), [], source=source_of(items, network))
    require_source(rows, head, path, force)  # before hours of computing
    with progress("texts" if takes == "text" else "images") as (report, notice):
        Z, _ = compute(items, network, feature_store(), progress=report, notice=notice)
    y = none_if_missing([*items.y_train.tolist(), *items.y_test.tolist()])
    names = [*getattr(items.train, "names", ()), *getattr(items.test, "names", ())]
    return replace(rows, X=Z, y=y, names=tuple(names))


def read_features(path: Path, ids: str | None = None, label: str | None = None) -> Rows:
    """Features (n, d), with names if the file is a table, whose column ``ids`` names the rows.

    The column ``label`` of a table is left out; None: the column ``LABEL``, if there is one.
    """
    require_file(path, READABLE)
    if is_table(path):
        apart = [name for name in (ids, label) if name is not None]
        table = read_table(path, apart, optional=LABEL if label is None else None)
        y = table.others.get(label or LABEL, [None] * len(table.X))
        y = as_labels(y) if path.suffix.lower() == ".csv" and None not in y else none_if_missing(y)
        names = tuple(str(value) for value in table.others[ids]) if ids is not None else ()
        return Rows(table.X, y, table.columns, names=names)
    if label is not None:
        raise ValueError(f"--label names a column of a table, got the file {path.name}")
    parts = read_parts(path)
    if len(parts) > 1:
        say(f"{path}: the test rows are predicted; the training rows are not")
    return parts["test"] if "test" in parts else parts["train"]


def _shown(label: object) -> str:
    return "" if label is None else printable(str(label))
