"""A frozen Vision Transformer on a device, and the images of clients as its tokens.

Nothing in front of the first trained tensor changes, so images are resized and embedded once per
task and client. All rounds and epochs of the task read the tokens from the device. For the same
reason there is no data augmentation: it would have to run on images again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedran.data.catalogue import data_file
from fedran_bench.methods.trained.lazy_torch import Tensor, load_torch, torch
from fedran_bench.methods.trained.local_training import Precision

if TYPE_CHECKING:
    from fedran.backbones.preprocessing import Preprocessing
    from fedran.backbones.vit import Sizes, ViT

ROWS_PER_PASS = 500
"""Rows per forward pass without gradients."""


@dataclass(frozen=True)
class Embedded:
    """Images as the input of a ViT's blocks, with their frozen features."""

    tokens: Tensor
    """(n, 1 + patches, width) in the precision of the network, class token first."""
    query: Tensor
    """(n, width) in float32: features of the network without prompts, by which prompts are chosen.
    Width 0 for methods that do not ask for them."""
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    """Other tensors with one row per image, see ``PromptedMethod.training_rows``."""

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, which: Any) -> Embedded:
        extra = {name: tensor[which] for name, tensor in self.extra.items()}
        return Embedded(self.tokens[which], self.query[which], extra)


@dataclass(frozen=True, eq=False)
class FrozenViT:
    """A ViT whose blocks compute in one precision.

    ``bfloat16``: the blocks' weights and activations are bfloat16. Images are embedded, and
    trained tensors, head, loss and optimiser are kept in float32. ``float32``: float32 throughout,
    and the embedding of patches does not use TF32. Whether matrix products use it is torch's
    setting, by default no.
    """

    network: ViT
    preprocess: Preprocessing
    device: str
    dtype: Any

    @property
    def sizes(self) -> Sizes:
        """Width, depth and so on."""
        return self.network.sizes

    def embed(self, images: Tensor, query: bool = True) -> Embedded:
        """Tokens and queries of uint8 images (n, 3, h, w); without queries if not asked for."""
        tokens, queries = [], []
        with torch.no_grad():
            for part in images.split(ROWS_PER_PASS) if len(images) else [images]:
                prepared = prepare(part.to(self.device), self.preprocess)
                with torch.backends.cudnn.flags(allow_tf32=False):
                    tokens.append(self.network.embed(prepared).to(self.dtype))
                if query:
                    queries.append(self.features(tokens[-1]))
                else:
                    queries.append(torch.zeros(len(part), 0, device=self.device))
        return Embedded(torch.cat(tokens), torch.cat(queries))

    def features(self, tokens: Tensor, prefixes: Mapping[int, Tensor] | None = None) -> Tensor:
        """The class token after all blocks (n, width) in float32.

        ``prefixes`` maps the number of a block to keys and values (n, 2, length, width).
        """
        cast = {block: prefix.to(self.dtype) for block, prefix in (prefixes or {}).items()}
        return self.network.encode(tokens, cast)[:, 0].float()


def prepare(images: Tensor, preprocess: Preprocessing) -> Tensor:
    """uint8 images (n, 3, h, w) as the network's input, equal to ``preprocess`` on each image.

    As in Pillow, columns are resized before rows, and halves are rounded up after both. Pillow
    computes with integers, so a few values differ by one or two levels of 255.
    """
    n, _, height, width = images.shape
    goal = preprocess.resized_shape(height, width)
    x = images.float()
    resize = partial(torch.nn.functional.interpolate, align_corners=False, antialias=True)
    for size in ((height, goal[1]), goal):
        if tuple(x.shape[2:]) != size:
            x = resize(x, size, mode=preprocess.interpolation) if n else x.new_zeros(0, 3, *size)
            x = (x + 0.5).floor().clamp(0, 255) if preprocess.rounded else x
    x = x.clamp(0, 255)
    if preprocess.crop is not None:
        high, wide = preprocess.crop
        top, left = (goal[0] - high) // 2, (goal[1] - wide) // 2
        x = x[:, :, top : top + high, left : left + wide]
    mean, std = (x.new_tensor(v).view(1, 3, 1, 1) for v in (preprocess.mean, preprocess.std))
    return (x - mean) / std


@lru_cache(maxsize=4)
def frozen_vit(path: str, device: str, precision: Precision) -> FrozenViT:
    """The ViT in a file, loaded once per process."""
    load_torch()
    from fedran.backbones.vit import load_vit

    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    with torch.inference_mode(False):  # also if the first use is a prediction
        network, preprocess = load_vit(find_weights(path))
        network = network.to(device)
        network.blocks.to(dtype)
        network.norm.to(dtype)
    return FrozenViT(network, preprocess, device, dtype)


@lru_cache(maxsize=4)
def vit_sizes(path: str) -> Sizes:
    """Width, depth and so on of the ViT in a file, whose weights are not kept."""
    load_torch()
    from fedran.backbones.vit import load_vit

    return load_vit(find_weights(path))[0].sizes


def find_weights(path: str) -> Path:
    """A file in the current folder, or below the folder that FEDRAN_DATA names."""
    found = Path(path).expanduser()
    return found if found.exists() else data_file(path, "the weights of a ViT")
