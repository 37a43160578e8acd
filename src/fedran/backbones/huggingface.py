"""Models of Hugging Face's transformers: of images by name or from a folder, of texts in a folder.

Features of images are the class token of the last hidden state (after the final norm) where the
model has such a token (ViT, DeiT, DINOv2, ...); otherwise the model's pooled output (ResNet,
ConvNeXt, Swin, ...); otherwise the mean over all positions. Images are prepared as the settings of
the model's image processor say.

Of texts, a folder of sentence-transformers says how the vectors of tokens become one vector. In any
other folder it is their mean. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedran.backbones.backbone import (
    SMALL_BATCH,
    Backbone,
    hash_parameters,
    suitable_batch,
    torch_device,
    torch_forward,
    without_tf32,
)
from fedran.backbones.preprocessing import Interpolation, Preprocessing, Triple
from fedran.core.errors import MissingExtra, Refused
from fedran.wire.files import read_json_object

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_TOKENS = ("cls_token", "class_embedding")
_FILTERS: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}
_UNSUPPORTED = ("do_pad", "do_flip_channel_order", "rescale_offset", "include_top", "do_thumbnail")
_AFTER_RELU = ("resnet", "regnet")
"""Model types whose pooled output is a mean of their last activation."""
_UNCROPPED_FROM = 384
"""The image processor of ConvNeXt does not crop images of this size and more."""
VISION = "a vision model and its image processor"
MODULES = ("Transformer", "Pooling", "Normalize")
"""Modules of sentence-transformers that are supported."""
POOLING = "pooling_mode_"
MEAN, FIRST, MAXIMUM = "mean of tokens", "first token", "maximum of tokens"
POOLINGS = {"mean_tokens": MEAN, "cls_token": FIRST, "max_tokens": MAXIMUM}
"""Their names in a folder behind ``POOLING``, and in fingerprints."""
TOKENS = 512
"""Most tokens of a text where the folder states no limit. What is longer is cut off."""
LANGUAGE = "a language model with its tokenizer"
_HINT = "export the model to ONNX and use onnx:FILE"


def hugging_face(name: str, device: str | None = None) -> Backbone:
    """The model and its image processor under a name on the Hub, or in a folder.

    A folder is read without the internet. Code that comes with a model is never executed.
    """
    try:
        import torch  # noqa: F401
        from transformers import AutoImageProcessor
    except ImportError:
        raise MissingExtra("Hugging Face models need PyTorch and transformers", "torch") from None
    model, missing = load_model(name, f"hf:{name}", VISION)
    with reading(name, f"hf:{name}", VISION) as where:
        settings = AutoImageProcessor.from_pretrained(**where).to_dict()
    preprocess = preprocessing_of(settings, f"hf:{name}")
    has_token = any(key.endswith(_TOKENS) for key in model.state_dict())

    def is_used(parameter: str) -> bool:  # checkpoints often lack an unused pooler
        return not (has_token and parameter.startswith("pooler."))

    require_weights(f"hf:{name}", filter(is_used, missing))
    used_device = torch_device(device)
    model = model.float().eval().requires_grad_(False).to(used_device)

    def features(images: Tensor) -> Tensor:
        output = model(pixel_values=images)
        hidden = output.last_hidden_state
        if has_token:
            return hidden[:, 0]
        if (pooled := getattr(output, "pooler_output", None)) is not None:
            return pooled.flatten(1)
        return hidden.mean(dim=1) if hidden.ndim == 3 else hidden.mean(dim=(2, 3))

    forward = torch_forward(features, used_device)
    probe = forward(np.zeros((1, 3, *preprocess.shape), np.float32))
    used = {k: v for k, v in model.state_dict().items() if is_used(k)}
    return Backbone(
        name=f"hf:{name}",
        kind=f"hf:{model.config.model_type}/{'class token' if has_token else 'pooled'}",
        out_features=probe.shape[1],
        weights=hash_parameters(used),
        preprocess=preprocess,
        forward=forward,
        nonnegative=model.config.model_type in _AFTER_RELU and model.config.hidden_act == "relu",
        batch_size=suitable_batch(used_device),
    )


def load_model(name: str, shown: str, what: str) -> tuple[Any, set[str]]:
    """The model and the parameters that its file lacks."""
    from transformers import AutoModel

    with reading(name, shown, what) as where:
        model, info = AutoModel.from_pretrained(**where, output_loading_info=True)
    return model, set(info["missing_keys"])


def require_weights(shown: str, absent: Iterable[str]) -> None:
    """Refuse a model whose file lacks weights."""
    if absent := sorted(absent):
        raise Refused(
            shown,
            "all weights of the model",
            f"a file without {', '.join(absent[:3])}",
            hint="they would be random and the features different at every site",
        )


@contextmanager
def reading(name: str, shown: str, what: str) -> Iterator[dict[str, Any]]:
    """Arguments that read a model; its errors are refusals. A folder needs no internet."""
    folder = Path(name).expanduser()
    local = folder.is_dir()
    try:
        with _quiet():
            yield {
                "pretrained_model_name_or_path": str(folder) if local else name,
                "local_files_only": local,
            }
    except (OSError, ValueError, RuntimeError) as reason:
        first = str(reason).strip().splitlines()[0].rstrip(".")
        if local:
            hint = "save it there with save_pretrained"
        else:
            hint = "a name needs the internet or a cached copy; else give a folder with the model"
        raise Refused(shown, what, first, hint) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the progress bars and warnings of transformers. Errors are exceptions anyway."""
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


def preprocessing_of(settings: Mapping[str, Any], shown: str) -> Preprocessing:
    """The preprocessing that an image processor's settings describe. Other steps are refused."""
    for field in _UNSUPPORTED:
        if settings.get(field):
            raise Refused(
                f"{shown}: {field}", "a step that fedran supports", settings[field], hint=_HINT
            )
    if not settings.get("do_resize", True):
        raise Refused(f"{shown}: do_resize", "true", False, hint=_HINT)
    resample = int(settings.get("resample") or 2)
    if resample not in _FILTERS:
        raise Refused(f"{shown}: resample", "2 (bilinear) or 3 (bicubic)", resample, hint=_HINT)
    resize, crop = _sizes(settings, shown)
    factor = settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1.0
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if settings.get("do_normalize", True):
        mean, std = settings["image_mean"], settings["image_std"]
    return Preprocessing(
        resize, _scaled(mean, factor), _scaled(std, factor), crop, _FILTERS[resample]
    )


def _scaled(values: Any, factor: float) -> Triple:
    """Values for pixels in 0 .. 255, rounded: 1 / 255 is stored with more or fewer digits."""
    a, b, c = (round(float(v) / factor, 6) for v in values)
    return a, b, c


def _sizes(
    settings: Mapping[str, Any], shown: str
) -> tuple[int | tuple[int, int], tuple[int, int] | None]:
    """Size after resizing (or of the shorter side), and the size of the centre crop."""
    size = settings.get("size")
    if not isinstance(size, Mapping):
        raise Refused(f"{shown}: size", "height and width, or shortest_edge", size, hint=_HINT)
    side, share = size.get("shortest_edge"), settings.get("crop_pct")
    if side and share:
        if side >= _UNCROPPED_FROM:
            return (side, side), None
        return int(side / share), (side, side)
    crop = None
    if settings.get("do_center_crop"):
        crop = _pair(settings.get("crop_size"), f"{shown}: crop_size")
    if side and crop and not size.get("longest_edge"):
        return int(side), crop
    return _pair(size, f"{shown}: size"), crop


def _pair(size: Any, field: str) -> tuple[int, int]:
    if isinstance(size, Mapping) and size.get("height") and size.get("width"):
        return int(size["height"]), int(size["width"])
    raise Refused(field, "height and width", size, hint=_HINT)


@dataclass(frozen=True)
class Reduction:
    """How a text becomes one vector. The form as text is part of the fingerprint."""

    tokens: int
    pooling: str
    normalized: bool

    def __str__(self) -> str:
        unit = ", unit norm" if self.normalized else ""
        return f"at most {self.tokens} tokens, {self.pooling}{unit}"

    def __call__(self, text: str) -> str:
        """The text as it is: the tokenizer needs those of a whole batch."""
        return text

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """One vector per text from those of its tokens (n, t, d); ``mask`` is 0 for padding."""
        mask = mask.unsqueeze(-1)
        if self.pooling == FIRST:
            pooled = hidden[:, 0]
        elif self.pooling == MAXIMUM:
            pooled = hidden.masked_fill(mask == 0, -1e9).amax(dim=1)
        else:
            pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        length = pooled.norm(dim=1, keepdim=True).clamp(min=1e-12) if self.normalized else 1.0
        return pooled / length


def text_backbone(folder: str | Path, device: str | None = None) -> Backbone:
    """The language model and the tokenizer in a folder as a frozen backbone of texts."""
    try:
        import torch
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingExtra("language models need PyTorch and transformers", "text") from None
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; expected one with {LANGUAGE}")
    inner, pooling, normalized = _modules(folder)
    model, missing = load_model(str(inner), f"hf:{folder}", LANGUAGE)
    # Texts do not use the pooler, which checkpoints often lack.
    require_weights(f"hf:{folder}", [name for name in missing if not name.startswith("pooler.")])
    with reading(str(inner), f"hf:{folder}", LANGUAGE) as where:
        tokenizer = AutoTokenizer.from_pretrained(**where)
    limit = read_json_object(inner / "sentence_bert_config.json").get("max_seq_length")
    limit = limit or tokenizer.model_max_length
    rule = Reduction(limit if limit <= 2**20 else TOKENS, pooling, normalized)
    used = torch_device(device)
    model = model.float().eval().requires_grad_(False).to(used)

    def forward(texts: Any) -> NDArray[np.float32]:
        tokens = tokenizer(
            list(texts), padding=True, truncation=True, max_length=rule.tokens, return_tensors="pt"
        ).to(used)
        with torch.inference_mode(), without_tf32():
            hidden = model(**tokens).last_hidden_state
            return rule.pool(hidden, tokens["attention_mask"]).cpu().numpy()

    weights = {k: v for k, v in model.state_dict().items() if not k.startswith("pooler.")}
    vocabulary = json.dumps(tokenizer.get_vocab(), sort_keys=True)
    digest = hashlib.sha256((hash_parameters(weights) + vocabulary).encode())
    return Backbone(
        name=f"hf:{folder}",
        kind=f"hf:{model.config.model_type}/text",
        out_features=model.config.hidden_size,
        weights=digest.hexdigest(),
        preprocess=rule,
        forward=forward,
        batch_size=max(8 * SMALL_BATCH, suitable_batch(used)),
        takes="text",
    )


def _modules(folder: Path) -> tuple[Path, str, bool]:
    """The folder of the network, the pooling, and whether vectors get unit norm."""
    if not (folder / "modules.json").is_file():
        return folder, MEAN, False
    try:
        modules = [
            (m["type"].rpartition(".")[2], folder / m["path"])
            for m in json.loads((folder / "modules.json").read_bytes())
        ]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise Refused(f"{folder}/modules.json", "a list of modules", "other text") from None
    places = dict(modules)
    if other := [kind for kind in places if kind not in MODULES]:
        raise Refused(f"{folder}/modules.json", f"the modules {', '.join(MODULES)}", other[0])
    stated = read_json_object(places.get("Pooling", folder) / "config.json")
    names = [
        k.removeprefix(POOLING) for k, on in stated.items() if k.startswith(POOLING) and on is True
    ]
    if len(names) != 1 or names[0] not in POOLINGS:
        raise Refused(
            f"{folder}: pooling", f"one of {', '.join(POOLINGS)}", ", ".join(names) or "none"
        )
    return places.get("Transformer", folder), POOLINGS[names[0]], "Normalize" in places
