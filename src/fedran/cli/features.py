"""``fedran features``: compute the features of images and write them to a file."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedran.backbones.catalogue import load_backbone
from fedran.backbones.store import extract
from fedran.core.errors import printable
from fedran.core.prepare import kind_for
from fedran.data.catalogue import load_images
from fedran.wire.sizes import human_bytes


def features(
    dataset: Annotated[
        str, typer.Argument(help="cifar100, or a folder with train/<class>/ and test/<class>/.")
    ],
    backbone: Annotated[
        str,
        typer.Option(
            help="efficientnet-lite0, vit:FILE_OR_FOLDER, hf:NAME_OR_FOLDER or onnx:FILE."
        ),
    ] = "efficientnet-lite0",
    out: Annotated[
        Path | None, typer.Option(help="The .npz file to write (default: in the current folder).")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="The folder that keeps computed features for the next run.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Images per batch (default: suits the device)."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, ... (default: a GPU if PyTorch finds one).")
    ] = None,
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
    """Compute the features of images once and write them to a file.

    After an interruption the same command continues.
    """
    console = Console(stderr=True)
    images = load_images(dataset)
    network = load_backbone(
        backbone,
        device,
        size=size,
        mean=_triple("mean", mean),
        std=_triple("std", std),
        nonnegative=nonnegative or None,
    )
    kind = network.kind.replace(":", "-").replace("/", "-").replace(" ", "-")
    path = Path(f"{images.name}-{kind}.npz") if out is None else out
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = cache / "fedran" / "features" if store is None else store
    source = network.source
    for line in (
        f"{len(images.train)} training and {len(images.test)} test images of {images.name}",
        f"{source['backbone']}, {network.out_features} features, {source['preprocessing']}",
        f"features {'are never negative' if network.nonnegative else 'can be negative'}: "
        f"random features of kind {kind_for(network.nonnegative)}",
    ):
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    columns: list[Any] = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("images", total=None)
        extract(
            images,
            network,
            kept,
            batch_size,
            lambda done, total: bar.update(task, completed=done, total=total),
            out=path,
            where=str(Path(dataset).resolve()) if Path(dataset).is_dir() else dataset,
            notice=lambda text: bar.console.print(printable(text), markup=False, highlight=False),
        )
    typer.echo(f"{printable(str(path))}: {human_bytes(path.stat().st_size)}")
    typer.echo(f"kept for the next run in {printable(str(kept))}")
    file = shlex.quote(printable(str(path)))
    typer.echo(f"next: fedran bench run --method fedran --method fedncm --dataset {file}")


def _triple(name: str, text: str | None) -> tuple[float, float, float] | None:
    if text is None:
        return None
    try:
        a, b, c = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--{name}: expected three numbers a,b,c, got {text!r}") from None
    return a, b, c
