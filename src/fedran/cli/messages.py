"""``fedran condense | summarize | solve``: rows to messages, messages to a head; no federation."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from numpy.typing import NDArray

import fedran
from fedran.cli.inputs import (
    OVERWRITE,
    in_order,
    read_scaler,
    require_features,
    require_labelled,
    require_new,
    say,
)
from fedran.core.errors import Refused, printable, shortened
from fedran.core.fingerprint import columns_hash
from fedran.core.points import Points
from fedran.core.prepare import Kind, kind_for
from fedran.core.solve.head import Head
from fedran.core.summary import Summary
from fedran.core.sums.aggregator import LANDMARKS
from fedran.core.sums.scale import unequal_scales
from fedran.data.feature_file import read_parts
from fedran.data.rows import LABEL, column_order
from fedran.wire.codec import decode
from fedran.wire.files import load, refusals_name_file, require_file
from fedran.wire.points_codec import DEFAULT_STEP
from fedran.wire.sizes import human_bytes
from fedran.wire.validation import FILE_LIMITS

READABLE = "rows with labels (.npz, .csv or .parquet)"
ROWS = typer.Argument(help="Features, as `fedran features` wrote them, or a table of numbers.")
OUT = typer.Option(metavar="FILE.fedran", help="The message to write (default: ROWS.fedran).")
COLUMN = typer.Option(metavar="COLUMN", help="The column of labels in a table.")
KIND = typer.Option(help="cosine or hellinger (default: as the features say, else cosine).")
SCALER = typer.Option(help="A scaler as JSON, which scales the columns of a table.")


class Labelled(NamedTuple):
    """What a message is made of."""

    Z: NDArray[Any]
    y: list[Any]
    kind: Kind
    bias: bool
    source: dict[str, Any]


def read_labelled(path: Path, label: str, kind: Kind | None, scaler: Path | None) -> Labelled:
    """The training rows of a file, scaled, with their columns in the order of their names."""
    parts = read_parts(require_file(path, READABLE), label)
    rows = parts["train"] if "train" in parts else parts["test"]
    require_labelled(path, rows, None)
    if unlabelled := sum(y is None for y in rows.y):
        say(f"{unlabelled} of {len(rows.y)} rows have no label and are left out")
    if "test" in parts and "train" in parts:
        say(f"the {len(parts['test'].y)} test rows are left out, for you to test with")
    source: dict[str, Any] = dict(rows.source)
    kind, Z, scale = kind or kind_for(rows.nonnegative), rows.X, None
    names = sorted(rows.columns)
    if scaler is not None:
        scale = read_scaler(scaler)
        names = list(getattr(scale, "feature_names_in_", names))
        source["scaler"] = scale.fingerprint_
    if rows.columns:
        order = column_order(rows.columns, names, path.name, "the scaler")
        Z = Z if order is None else Z[:, order]
        source["columns"] = columns_hash(names)
    if scale is not None:
        require_features(path, Z, len(scale.mean_))
        Z = in_order(scale, names).standardize(Z)
    elif text := unequal_scales(Z, names, kind):
        say(f"{path.name}: {text}; scale them at all sites alike, see --scaler")
    return Labelled(Z, rows.y, kind, scale is not None, source)


def condense(
    rows: Annotated[Path, ROWS],
    out: Annotated[Path | None, OUT] = None,
    overwrite: Annotated[bool, OVERWRITE] = False,
    label: Annotated[str, COLUMN] = LABEL,
    group_size: Annotated[
        int, typer.Option(min=1, help="Rows per group, about. 1 sends every row.")
    ] = 1,
    min_group: Annotated[
        int, typer.Option(min=1, help="Least rows per group; smaller classes are left out.")
    ] = 1,
    step: Annotated[float, typer.Option(help="How coarsely values are rounded.")] = DEFAULT_STEP,
    kind: Annotated[str | None, KIND] = None,
    scaler: Annotated[Path | None, SCALER] = None,
) -> None:
    """Make points of rows: the message of a site, most accurate for its bytes.

    Points are means of groups of nearby rows of one class. Their number, labels and means are all
    that leaves the site. Of features with training and test rows, the former are taken.
    """
    path = require_new(out or Path(f"{rows.stem}.fedran"), overwrite, rows)
    given = read_labelled(rows, label, kind, scaler)  # type: ignore[arg-type]
    phi = fedran.KernelFeatures(given.Z.shape[1], given.kind, given.bias, given.source)
    with refusals_name_file(rows):
        points = fedran.condense(phi(given.Z), given.y, group_size, min_group, phi.fingerprint)
    if points.withheld:
        names = shortened([f"{printable(str(c), 40)} ({n})" for c, n in points.withheld.items()], 8)
        say(f"classes with fewer than {min_group} rows are left out: {names}")
    if not len(points.counts):
        raise Refused(str(rows), f"a class with at least {min_group} rows", "none")
    size = fedran.save(points, path, step=step)
    groups = (
        "single rows"
        if points.n_rows == len(points.counts)
        else (f"{len(points.counts):,} groups of at least {points.smallest_group} rows")
    )
    _made(path, size, f"{points.n_rows:,} rows of {len(points.classes)} classes as {groups}", rows)


def summarize(
    rows: Annotated[Path, ROWS],
    out: Annotated[Path | None, OUT] = None,
    overwrite: Annotated[bool, OVERWRITE] = False,
    label: Annotated[str, COLUMN] = LABEL,
    out_features: Annotated[int, typer.Option(min=1, help="Number of random features (M).")] = 8192,
    rank: Annotated[int, typer.Option(min=0, help="Columns that describe the rows.")] = 256,
    seed: Annotated[int, typer.Option(help="Of the random features: equal at all sites.")] = 0,
    kind: Annotated[str | None, KIND] = None,
    scaler: Annotated[Path | None, SCALER] = None,
) -> None:
    """Make a summary of rows: a message that can be added up to a sum.

    It holds sums per class and a factor over random features. Points are more accurate for the
    same bytes: use summaries where only sums may be seen.
    """
    path = require_new(out or Path(f"{rows.stem}.fedran"), overwrite, rows)
    given = read_labelled(rows, label, kind, scaler)  # type: ignore[arg-type]
    phi = fedran.RandomFeatures(
        given.Z.shape[1], out_features, given.kind, seed, given.bias, given.source
    )
    with refusals_name_file(rows):
        made = fedran.summarize(phi(given.Z), given.y, rank, fingerprint=phi.fingerprint)
    size = fedran.save(made, path)
    what = f"{sum(made.counts):,} rows of {len(made.classes)} classes, rank {made.rank}"
    _made(path, size, what, rows)


def _made(path: Path, size: int, what: str, rows: Path) -> None:
    typer.echo(f"{printable(str(path))}: {human_bytes(size)}, {what}")
    typer.echo(f"what it reveals: fedran leak {path} {rows} --reference OTHER_ROWS")
    typer.echo(f"next: fedran solve {path} OTHER_MESSAGES --out head.fedran")


def solve(
    messages: Annotated[list[Path], typer.Argument(help="Points, or summaries, of all sites.")],
    out: Annotated[Path, typer.Option(metavar="FILE.fedran", help="The head to write.")],
    overwrite: Annotated[bool, OVERWRITE] = False,
    landmarks: Annotated[
        int, typer.Option(min=1, help="Most points that support a head, and so its size.")
    ] = LANDMARKS,
    ridge: Annotated[
        float | None, typer.Option(help="Of points (default: the best by leave-one-out).")
    ] = None,
    balanced: Annotated[
        bool, typer.Option("--balanced", help="All classes count alike, also rare ones (points).")
    ] = False,
) -> None:
    """Solve for the head of all messages. Nothing is trained.

    A message that is given twice counts once.
    """
    path = require_new(out, overwrite, *messages)
    server: fedran.Aggregator | None = None
    for number, file in enumerate(messages):
        message = read_message(file)
        kinds = {Points: "points", Summary: "a summary", Head: "a head, which is solved already"}
        wanted = ("points or a summary",) if server is None else (kinds[server.takes],)
        if isinstance(message, Head) or (server and not isinstance(message, server.takes)):
            raise Refused(str(file), wanted[0], kinds[type(message)])
        server = server or fedran.Aggregator(fingerprint=message.fingerprint)
        if message.content_digest() in server.absorbed.values():
            say(f"{file} is the same message as an earlier one and counts once")
            continue
        name = re.sub(r"[^A-Za-z0-9._-]", "_", file.stem)[:64]
        with warnings.catch_warnings(record=True) as told, refusals_name_file(file):
            warnings.simplefilter("always")
            server.absorb(message, client=name, task=str(number))
        for warning in told:
            say(f"{warning.message}")
    assert server is not None
    more: dict[str, Any] = {}
    if server.takes is Points:
        more = {"landmarks": landmarks, "class_weight": "balanced" if balanced else None}
    elif balanced:
        raise ValueError("--balanced is for points: summaries do not hold weights of rows")
    head = server.solve(ridge, **more)
    size, said = fedran.save(head, path), head.diagnosis
    typer.echo(
        f"{printable(str(path))}: {human_bytes(size)}, {len(head.classes)} classes from "
        f"{said.n_rows:,} rows, {len(server.absorbed)} of {len(messages)} messages; "
        f"ridge {said.lam:.3g}"
    )
    if said.accuracy is not None:
        typer.echo(f"{said.accuracy:.1%} of the rows are right when each is left out")
    if head.calibration is None:
        typer.echo("no probabilities: only messages of single points calibrate a head")
    typer.echo(f"next: fedran predict {path} ROWS --out labels.csv")


def read_message(path: Path) -> Points | Summary | Head:
    """The message or the head in a file, which must identify its features."""
    require_file(path, "saved points, a saved summary or head, or an envelope")
    if path.suffix == ".envelope":
        from fedran.federation.protocol.messages import open_envelope

        with refusals_name_file(path):
            found = decode(open_envelope(path.read_bytes(), FILE_LIMITS).upload)
    else:
        found = load(path)
    if not isinstance(found, (Points, Summary, Head)):
        raise Refused(str(path), "points, a summary or a head", "the state of a server")
    if found.fingerprint is None:
        raise Refused(str(path), "a message that identifies its features", "no fingerprint")
    return found
