"""``fedran features``: compute the features of images or texts and write them to a file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedran.backbones.backbone import Backbone
from fedran.backbones.catalogue import load_backbone
from fedran.backbones.efficientnet_lite import NAME
from fedran.backbones.store import extract
from fedran.cli.inputs import (
    DEVICE,
    OVERWRITE,
    RANGE,
    feature_store,
    load_items,
    numbers,
    progress,
    require_new,
    say,
    value_range,
)
from fedran.core.errors import printable
from fedran.core.prepare import kind_for
from fedran.data.images import COLUMN, Texts
from fedran.data.rows import LABEL, none_if_missing
from fedran.wire.sizes import human_bytes


def features(
    source: Annotated[
        str,
        typer.Argument(help="A folder of images, a .csv, .parquet or .txt of texts, or cifar100."),
    ],
    backbone: Annotated[
        str, typer.Option(help=f"{NAME}, vit:FILE, hf:NAME_OR_FOLDER or onnx:FILE.")
    ] = NAME,
    out: Annotated[
        Path | None, typer.Option(help="The .npz file to write (default: SOURCE-BACKBONE.npz).")
    ] = None,
    overwrite: Annotated[bool, OVERWRITE] = False,
    column: Annotated[
        str | None, typer.Option(help=f"The column of texts in a table (default: {COLUMN}).")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help=f"The column of labels (default: {LABEL}, if it exists).")
    ] = None,
    values: Annotated[str | None, RANGE] = None,
    store: Annotated[
        Path | None, typer.Option(help="The folder that keeps computed features for the next run.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Images per batch (default: suits the device)."),
    ] = None,
    device: Annotated[str | None, DEVICE] = None,
    size: Annotated[
        int | None, typer.Option(help="For onnx: side of the images in pixels.")
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(help="For files (onnx, vit): mean of pixels in 0..1, e.g. 0.5,0.5,0.5."),
    ] = None,
    std: Annotated[
        str | None, typer.Option(help="For files (onnx, vit): deviation of pixels in 0..1.")
    ] = None,
    nonnegative: Annotated[
        bool,
        typer.Option("--nonnegative", help="For onnx: no feature is ever negative. It is checked."),
    ] = False,
) -> None:
    """Compute the features of images or texts once and write them to a file.

    A folder may have any layout. The folder that an image is in is its label; images directly in
    SOURCE have none. With folders train and test (or val), the file holds both parts. After an
    interruption the same command continues.
    """
    items = load_items(source, column, label, value_range(values))
    network: Backbone = load_backbone(
        backbone,
        device,
        size=size,
        mean=numbers("--mean", mean, 3),  # type: ignore[arg-type]
        std=numbers("--std", std, 3),  # type: ignore[arg-type]
        nonnegative=nonnegative or None,
        takes="text" if isinstance(items.train, Texts) else "pixels",
    )
    path = require_new(
        Path(f"{items.name}-{model_name(network)}.npz") if out is None else out, overwrite
    )
    what = "texts" if network.takes == "text" else "images"
    known = [
        y
        for y in none_if_missing([*items.y_train.tolist(), *items.y_test.tolist()])
        if y is not None
    ]
    n, m = len(items.train), len(items.test)
    parts = f"{n} training and {m} test {what}" if m else f"{n} {what}"
    say(f"{parts} of {items.name}, {len(set(known))} classes, {n + m - len(known)} without a label")
    say(f"{network.kind}, {network.out_features} features, {network.preprocess}")
    sign = "are never negative" if network.nonnegative else "can be negative"
    say(f"features {sign}: prepared as kind {kind_for(network.nonnegative)}")
    kept = feature_store() if store is None else store
    with progress(what) as (report, notice):
        extract(
            items,
            network,
            kept,
            batch_size,
            report,
            out=path,
            where=str(Path(source).resolve()) if Path(source).is_dir() else source,
            notice=notice,
        )
    typer.echo(f"{printable(str(path))}: {human_bytes(path.stat().st_size)}")
    typer.echo(f"kept for the next run in {printable(str(kept))}")
    file = shlex.quote(printable(str(path)))
    follow = f"condense {file} --out {shlex.quote(items.name)}.fedran"
    typer.echo(f"next: fedran {follow if known else f'predict HEAD {file} --out labels.csv'}")


def model_name(network: Backbone) -> str:
    """The name of a backbone's file or folder, or its own.

    >>> from types import SimpleNamespace as Some
    >>> [model_name(Some(name=name)) for name in ("onnx:a/net.onnx", "hf:org/vit-b.16", "x")]
    ['net', 'vit-b.16', 'x']
    """
    name = Path(network.name.partition(":")[2] or network.name).expanduser().resolve().name
    for suffix in (".onnx", ".safetensors"):
        name = name.removesuffix(suffix)
    return name
