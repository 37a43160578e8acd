"""Vision models of Hugging Face's transformers, by name or from a folder.

Which output is the feature: the class token of the last hidden state (after the final norm) where
the model has such a token (ViT, DeiT, DINOv2, ...); else the model's own pooled output (ResNet,
ConvNeXt, Swin, ...); else the mean over all positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedran.backbones.backbone import (
    Backbone,
    hash_parameters,
    suitable_batch,
    torch_device,
    torch_forward,
)
from fedran.backbones.huggingface_settings import preprocessing_of
from fedran.core.errors import Refused

if TYPE_CHECKING:
    from torch import Tensor

_TOKENS = ("cls_token", "class_embedding")


def hugging_face(name: str, device: str | None = None) -> Backbone:
    """The model and the image settings under a name on the Hub, or in a folder.

    A folder is read without the internet. Code that comes with a model is never run.
    """
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError:
        raise ImportError(
            "models of Hugging Face need PyTorch and transformers: pip install 'fedran[torch]'"
        ) from None
    model, missing, settings = _load(name)
    token = any(key.endswith(_TOKENS) for key in model.state_dict())
    _require_complete(missing, token, name)
    place = torch_device(device)
    model = model.float().eval().requires_grad_(False).to(place)
    preprocess = preprocessing_of(settings, name)
    forward = torch_forward(_features(model, token), place)
    probe = forward(np.zeros((1, 3, *preprocess.shape), np.float32))
    return Backbone(
        name=f"hf:{name}",
        kind=f"hf:{model.config.model_type}/{'class token' if token else 'pooled'}",
        out_features=probe.shape[1],
        weights=hash_parameters(_used(model.state_dict(), token)),
        preprocess=preprocess,
        forward=forward,
        batch_size=suitable_batch(place),
    )


def _load(name: str) -> tuple[Any, set[str], dict[str, Any]]:
    """The model, the names of parameters that its file lacks, and its image settings."""
    from transformers import AutoImageProcessor, AutoModel

    folder = Path(name).expanduser()
    local = folder.is_dir()
    where = str(folder) if local else name
    try:
        with _quiet():
            model, info = AutoModel.from_pretrained(
                where, local_files_only=local, output_loading_info=True
            )
            settings = AutoImageProcessor.from_pretrained(where, local_files_only=local).to_dict()
    except (OSError, ValueError, RuntimeError) as reason:
        first = str(reason).strip().splitlines()[0].rstrip(".")
        if local:
            hint = "save it there with save_pretrained"
        else:
            hint = "a name needs the internet or a cached copy; else give a folder with the model"
        raise Refused(f"hf:{name}", "a vision model and its image processor", first, hint) from None
    return model, set(info["missing_keys"]), settings


def _features(model: Any, token: bool) -> Callable[[Tensor], Tensor]:
    def features(images: Tensor) -> Tensor:
        output = model(pixel_values=images)
        hidden = output.last_hidden_state
        if token:
            return hidden[:, 0]
        pooled = getattr(output, "pooler_output", None)
        if pooled is not None:
            return pooled.flatten(1)
        return hidden.mean(dim=1) if hidden.ndim == 3 else hidden.mean(dim=(2, 3))

    return features


def _used(parameters: dict[str, Tensor], token: bool) -> dict[str, Tensor]:
    """Without a pooler that is not used: checkpoints often lack it, and it is random then."""
    return {k: v for k, v in parameters.items() if not (token and k.startswith("pooler."))}


def _require_complete(missing: set[str], token: bool, name: str) -> None:
    random = sorted(k for k in missing if not (token and k.startswith("pooler.")))
    if random:
        raise Refused(
            f"hf:{name}",
            "all weights of the model",
            f"a file without {', '.join(random[:3])}",
            hint="they would be random and the features different at every site",
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' bars and reports; errors still arrive as exceptions."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
