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
from fedran.wire.files import require_file

ARRAYS = ("features", "test", "X")
"""Names of the array to read from an .npz file, the first that exists."""


def predict(
    head: Annotated[Path, typer.Argument(help="A saved head, for example from a server.")],
    rows: Annotated[
        Path, typer.Argument(help=f"Features: .npy, or .npz with {', '.join(ARRAYS[:-1])} or X.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="File for the labels (default: print them).")
    ] = None,
) -> None:
    """Predict the labels of rows of features with a saved head, one label per line."""
    found = fedran.load(require_file(head, "a saved head"), fedran.Head)
    if found.fingerprint is None:
        raise Refused(str(head), "a head that identifies its features", "no fingerprint")
    phi = fedran.RandomFeatures.from_fingerprint(found.fingerprint)
    labels = found.predict(phi(read_features(rows)))
    text = "".join(f"{printable(str(label))}\n" for label in labels)
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
        typer.echo(f"{len(labels)} labels in {out}")


def read_features(path: Path) -> NDArray[Any]:
    """The array of an .npy file, or the first of ``ARRAYS`` in an .npz file."""
    require_file(path, "features (.npy or .npz)")
    try:
        with path.open("rb") as raw:
            found = np.load(raw, allow_pickle=False)
            if isinstance(found, np.ndarray):
                return found
            for name in ARRAYS:
                if name in found.files:
                    return found[name]
            held = ", ".join(found.files) or "none"
    except (ValueError, EOFError, zipfile.BadZipFile) as reason:
        raise Refused(str(path), "features (.npy or .npz)", str(reason)) from None
    raise Refused(str(path), f"an array {' or '.join(ARRAYS)}", held)
