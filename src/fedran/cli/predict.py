"""``fedran predict HEAD ROWS``: labels for rows of features, on this machine."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

import fedran
from fedran.core.errors import Refused, printable

NAMES = ("features", "test", "X")


def predict(
    head: Annotated[Path, typer.Argument(help="A saved head, e.g. the one a server handed back.")],
    rows: Annotated[Path, typer.Argument(help="Features: .npy, or .npz with an array features.")],
    out: Annotated[
        Path | None, typer.Option(help="A file for the labels, one a line (default: print them).")
    ] = None,
) -> None:
    """Labels for rows of features, one a line, with a head that was saved."""
    found = fedran.load(head, fedran.Head)
    if found.fingerprint is None:
        raise Refused(str(head), "a head that says which features it takes", "no fingerprint")
    phi = fedran.RandomFeatures.from_fingerprint(found.fingerprint)
    labels = found.predict(phi(_features(rows)))
    text = "".join(f"{printable(str(label))}\n" for label in labels)
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
        typer.echo(f"{len(labels)} labels in {out}")


def _features(path: Path) -> NDArray[Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected features (.npy or .npz)")
    try:
        with path.open("rb") as raw:
            found = np.load(raw, allow_pickle=False)
            if isinstance(found, np.ndarray):
                return found
            name = next((n for n in NAMES if n in found.files), None)
            if name is None:
                held = ", ".join(found.files)
                raise Refused(str(path), f"an array {' or '.join(NAMES)}", held or "none")
            return found[name]
    except (ValueError, EOFError, zipfile.BadZipFile) as reason:
        if isinstance(reason, Refused):
            raise
        raise Refused(str(path), "features (.npy or .npz)", str(reason)) from None
