"""What several commands read: rows of features, images, texts, scalers; and where they write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

import fedran
from fedran.core.errors import Refused, printable, shortened
from fedran.core.fingerprint import Fingerprint, columns_hash, require_columns, require_scaler
from fedran.data.catalogue import load_images
from fedran.data.images import COLUMN, LINES, ItemSet, Range, is_text, load_texts
from fedran.data.rows import Rows, column_order, is_number
from fedran.wire.files import require_file

SCALER = "a scaler as JSON, which the method to_json writes"
OVERWRITE = typer.Option("--overwrite", help="Replace files that exist.")
RANGE = typer.Option(
    "--range",
    metavar="LOW,HIGH",
    help="The values that become black and white, of 16-bit and DICOM images.",
)
DEVICE = typer.Option(help="cpu, cuda, ... (default: a GPU if PyTorch finds one).")


def require_new(out: Path, overwrite: bool, *inputs: Path | None) -> Path:
    """The path of a file to write. One that is read, or one that exists already, is refused."""
    out = out.expanduser()
    if out.exists() and any(path is not None and path.samefile(out) for path in inputs):
        raise ValueError(f"--out: {out} is one of the files to read; name another file")
    if out.is_file() and not overwrite:
        raise FileExistsError(f"{out} exists; name another file with --out, or give --overwrite")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"cannot write {out}: the folder {out.parent} does not exist")
    return out


def numbers(option: str, text: str | None, n: int) -> tuple[float, ...] | None:
    """The numbers a,b,... of an option."""
    if text is None:
        return None
    found = [float(part) for part in text.split(",") if is_number(part)]
    if len(found) != text.count(",") + 1 or len(found) != n or not np.isfinite(found).all():
        raise ValueError(f"{option}: expected {n} numbers {','.join('abc'[:n])}, got {text!r}")
    return tuple(found)


def value_range(text: str | None) -> Range | None:
    """The black and the white that --range states."""
    found = numbers("--range", text, 2)
    if found is not None and not found[0] < found[1]:
        raise ValueError(f"--range: expected the value of black and a larger one, got {text!r}")
    return found  # type: ignore[return-value]


def load_items(
    source: str, column: str | None, label: str | None, values: Range | None
) -> ItemSet[Any]:
    """The texts in a file, or the images in a folder or of a known dataset."""
    path = Path(source)
    if path.is_file() and is_text(path):
        return load_texts(path, column or COLUMN, label)
    for option, given in (("--column", column), ("--label", label)):
        if given is not None:
            kinds = f".csv, .parquet or {LINES}"
            raise ValueError(f"{option} is for texts in a file ({kinds}), got {printable(source)}")
    images = load_images(source, values)
    if images.skipped:
        kinds = shortened([f"{n} {printable(kind, 40)}" for kind, n in images.skipped.items()], 8)
        say(f"skipped, as no images: {kinds}")
    return images


def feature_store() -> Path:
    """The folder that keeps computed features."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "fedran" / "features"


def say(text: str) -> None:
    """A line on stderr, safe in a terminal."""
    typer.echo(printable(text, 2000), err=True)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.3g}/s" if speed else "")


@contextmanager
def progress(what: str) -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    """A progress bar with rate and remaining time: functions for the state, and for a notice."""
    columns = (BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(TextColumn(what), *columns, TextColumn("left"), console=console) as bar:
        task = bar.add_task(what, total=None)
        yield (
            lambda done, total: bar.update(task, completed=done, total=total),
            lambda text: console.print(printable(text), markup=False, highlight=False),
        )


def require_features(path: Path, Z: NDArray[Any], width: int | None) -> None:
    """Refuse what is not a matrix of numbers with ``width`` columns and at least one row."""
    if Z.dtype.kind not in "fiub":
        raise Refused(str(path), "numbers", f"the dtype {Z.dtype}")
    if Z.ndim != 2 or width not in (None, Z.shape[1]):
        expected = "a matrix of features" if width is None else f"rows of {width} features"
        raise Refused(str(path), expected, f"shape {Z.shape}")
    if not len(Z):
        raise Refused(str(path), "at least one row", "none")


def require_labelled(path: Path, rows: Rows, width: int | None) -> None:
    """The same, and at least one label."""
    require_features(path, rows.X, width)
    if all(label is None for label in rows.y):
        hint = "sort images into one folder per class, or name the column of labels with --label"
        raise Refused(str(path), "labels", "none", hint)


def read_scaler(path: Path) -> fedran.FederatedScaler:
    """The scaler whose ``to_json`` is the text of a file."""
    try:
        text = require_file(path, SCALER).read_text("utf-8")
    except UnicodeDecodeError:
        raise Refused(str(path), SCALER, "another file") from None
    return fedran.FederatedScaler.from_json(text)


def matching_scaler(
    head: Fingerprint, path: Path | None, where: Path
) -> fedran.FederatedScaler | None:
    """The scaler in a file, which must be that of a head or message; None if it needs none."""
    scale = None if path is None else read_scaler(path)
    try:
        require_scaler(head, scale.fingerprint_ if scale is not None else None)
    except Refused as reason:
        hint = "name its JSON file with --scaler"
        raise Refused(f"{where}: {reason.field}", reason.expected, reason.got, hint) from None
    return scale


def in_order(scaler: fedran.FederatedScaler, columns: Sequence[str]) -> fedran.FederatedScaler:
    """The scaler for these columns, which a federation may list in another order."""
    names = getattr(scaler, "feature_names_in_", ())
    order = column_order(list(names), columns, "the scaler", "the federation")
    if order is not None:
        scaler = copy(scaler)
        scaler.mean_, scaler.scale_ = scaler.mean_[order], scaler.scale_[order]
    return scaler


def ordered_features(
    path: Path,
    table: Rows,
    head: Fingerprint,
    scaler: fedran.FederatedScaler | None,
    offer: Path | None,
) -> tuple[NDArray[Any], Sequence[str]]:
    """The features with their columns in the order of the head, where both have names; the names.

    The offer says what the order of the head is, else the scaler. Messages of `fedran condense`
    have their columns in the order of their names.
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
    by_name = tuple(sorted(table.columns))
    if not columns and head.fields.get("columns") == columns_hash(by_name):
        columns = by_name
    order = column_order(table.columns, columns, path.name, whose)
    hint = "order them as in training; for a federation's head name its offer.json with --offer"
    require_columns(head, columns or table.columns, path.name, hint)
    return table.X if order is None else table.X[:, order], columns
