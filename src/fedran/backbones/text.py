"""Language models in a folder: texts to features, as sentence-transformers computes them.

A folder of sentence-transformers says how the vectors of tokens become one vector. In any other
folder of Hugging Face's transformers it is their mean. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedran.backbones.backbone import (
    SMALL_BATCH,
    Backbone,
    hash_parameters,
    suitable_batch,
    torch_device,
    without_tf32,
)
from fedran.backbones.huggingface import load_model, reading, require_weights
from fedran.core.errors import MissingExtra, Refused
from fedran.wire.files import read_json_object

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

MODULES = ("Transformer", "Pooling", "Normalize")
"""Modules of sentence-transformers that are supported."""
POOLING = "pooling_mode_"
MEAN, FIRST, MAXIMUM = "mean of tokens", "first token", "maximum of tokens"
POOLINGS = {"mean_tokens": MEAN, "cls_token": FIRST, "max_tokens": MAXIMUM}
"""Their names in a folder behind ``POOLING``, and in fingerprints."""
TOKENS = 512
"""Most tokens of a text where the folder states no limit. What is longer is cut off."""
WHAT = "a language model with its tokenizer"


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
        raise FileNotFoundError(f"{folder}: no such folder; expected one with {WHAT}")
    inner, pooling, normalized = _modules(folder)
    model, missing = load_model(str(inner), f"hf:{folder}", WHAT)
    # Texts do not use the pooler, which checkpoints often lack.
    require_weights(f"hf:{folder}", [name for name in missing if not name.startswith("pooler.")])
    with reading(str(inner), f"hf:{folder}", WHAT) as where:
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
