"""ONNX files that take images, computed with onnxruntime."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.backbones.backbone import Backbone, suitable_batch
from fedran.backbones.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Triple, imagenet
from fedran.core.errors import MissingExtra, Refused


def onnx_backbone(
    path: str | Path,
    device: str | None = None,
    *,
    size: int | None = None,
    mean: Triple = IMAGENET_MEAN,
    std: Triple = IMAGENET_STD,
    nonnegative: bool = False,
) -> Backbone:
    """A network with one image input, float32 (n, 3, height, width), whose first output is used.

    The output is (n, d), (n, d, 1, 1), or (n, tokens, d), of which the first token is taken.
    ``size`` is the side of the square images, required where the file does not fix it. ``mean``
    and ``std`` are those of pixels in 0 .. 1. ``nonnegative`` declares that no output is ever
    negative, which the file does not say. Images are resized with Pillow's bicubic filter.
    """
    path = Path(path).expanduser()
    session = _session(path, device)
    entry = _image_input(session, path)
    preprocess = imagenet(_side(entry.shape, size, path), mean, std)
    fixed = entry.shape[0] if isinstance(entry.shape[0], int) else None

    def forward(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        step = fixed or max(len(batch), 1)
        parts = [
            _run(session, entry.name, batch[i : i + step], step, path)
            for i in range(0, len(batch), step)
        ]
        return np.concatenate(parts)

    probe = forward(np.zeros((1, 3, *preprocess.shape), np.float32))
    return Backbone(
        name=f"onnx:{path.name}",
        kind="onnx",
        out_features=probe.shape[1],
        weights=_hash(path),
        preprocess=preprocess,
        forward=forward,
        nonnegative=nonnegative,
        batch_size=suitable_batch(device or "cpu"),
    )


def _session(path: Path, device: str | None) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtra("ONNX files need onnxruntime", "onnx") from None
    if not path.is_file():
        raise FileNotFoundError(f"onnx: expected a file, but {path} does not exist")
    wanted = {None: "CPU", "cpu": "CPU", "cuda": "CUDA"}.get(device)
    available = onnxruntime.get_available_providers()
    if f"{wanted}ExecutionProvider" not in available:
        raise ValueError(
            f"device: expected one that onnxruntime has here ({', '.join(available)}), "
            f"got {device!r}"
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only: warnings are about optimisations
    try:
        return onnxruntime.InferenceSession(
            str(path), options, providers=[f"{wanted}ExecutionProvider"]
        )
    except Exception as reason:  # onnxruntime's exceptions have no common base class
        raise Refused(f"{path}", "an ONNX model", f"{reason}", hint="export it again") from None


def _image_input(session: Any, path: Path) -> Any:
    inputs = session.get_inputs()
    found = ", ".join(f"{i.name} {i.type} {i.shape}" for i in inputs)
    if len(inputs) == 1 and inputs[0].type == "tensor(float)":
        shape = inputs[0].shape
        if len(shape) == 4 and (shape[1] == 3 or not isinstance(shape[1], int)):
            return inputs[0]
    raise Refused(f"{path}", "one input, float32 images (n, 3, height, width)", found)


def _side(shape: list[Any], size: int | None, path: Path) -> int:
    """The side of the square images, from the model or from ``size``."""
    height, width = (n if isinstance(n, int) else None for n in shape[2:])
    own = height or width
    if own is None and size is None:
        raise Refused(f"{path}: size", "a side of the images", "none", hint="give a size")
    if own is not None and size not in (None, own):
        raise Refused(f"{path}: size", f"{own}, which the model fixes", size)
    if height and width and height != width:
        raise Refused(f"{path}", "square images", f"{height} x {width}")
    side = own or size
    assert side is not None
    return side


def _run(
    session: Any, name: str, batch: NDArray[np.float32], rows: int, path: Path
) -> NDArray[np.float32]:
    """Features of a batch, which is padded to the number of rows that the model expects."""
    n = len(batch)
    filled = np.zeros((rows, *batch.shape[1:]), np.float32)
    filled[:n] = batch
    try:
        output = np.asarray(session.run(None, {name: filled})[0])
    except Exception as reason:
        raise Refused(f"{path}", "a model that takes these images", f"{reason}") from None
    if output.ndim == 4 and output.shape[2:] == (1, 1):
        output = output[:, :, 0, 0]
    elif output.ndim == 3:
        output = output[:, 0]
    if output.ndim != 2 or len(output) != rows:
        raise Refused(
            f"{path}", "an output (n, d), (n, d, 1, 1) or (n, tokens, d)", f"{output.shape}"
        )
    return output[:n].astype(np.float32)


def _hash(path: Path) -> str:
    """SHA-256 of the file. It must cover the weights, so those in other files are refused."""
    data = path.read_bytes()
    if b"\x0a\x08location\x12" in data:  # the name and the value tag of a field of ONNX
        expected = "a model with its weights in the same file"
        raise Refused(f"{path}", expected, "external weights", hint="export it again")
    return hashlib.sha256(data).hexdigest()
