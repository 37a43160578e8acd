"""Vision Transformers (Dosovitskiy et al. 2021) as modules that methods can prompt and train.

The weights come from a .safetensors file with timm's names, which the parameters of ``ViT`` have
too, so that the code of published prompt and LoRA methods carries over. The features are the class
token after the final norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional as F

from fedran.backbones.backbone import (
    Backbone,
    hash_parameters,
    suitable_batch,
    torch_device,
    torch_forward,
)
from fedran.backbones.preprocessing import Preprocessing, Triple, imagenet
from fedran.core.errors import Refused

HEAD_WIDTH = 64
"""Columns per attention head of the published models up to width 1024. Wider ones differ."""
HALF: Triple = (0.5, 0.5, 0.5)
Adapter = Callable[[Tensor], Tensor]
"""Tokens (n, t, width) to what is added to the output of a block."""
_HINT = "export the model to ONNX and use onnx:FILE"


@dataclass(frozen=True)
class Sizes:
    """What determines a ViT apart from its weights."""

    width: int
    depth: int
    heads: int
    patch: int
    """Side of a patch in pixels."""
    grid: int
    """Patches per side of an image."""
    hidden: int
    """Width of the hidden layer of each MLP."""
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if min(self.width, self.depth, self.heads, self.patch, self.grid, self.hidden) < 1:
            raise ValueError(f"a size below 1 in {self}")
        if self.width % self.heads:
            raise ValueError(f"{self.heads} heads, which do not divide the width {self.width}")
        if not 0 <= self.eps < 1:
            raise ValueError(f"an eps of {self.eps}, which is not from 0 to 1")

    @property
    def side(self) -> int:
        """Side of an image in pixels."""
        return self.patch * self.grid


class PatchEmbedding(nn.Module):
    """Images (n, 3, side, side) to patch tokens (n, patches, width), row by row."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, sizes.width, sizes.patch, sizes.patch)

    def forward(self, images: Tensor) -> Tensor:
        """Patch tokens."""
        return self.proj(images).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Self-attention with several heads. A prefix adds keys and values that no token computed."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.proj = nn.Linear(sizes.width, sizes.width)

    def forward(self, tokens: Tensor, prefix: Tensor | None = None) -> Tensor:
        """Tokens (n, t, width). ``prefix`` (n, 2, length, width): its keys and its values."""
        q, k, v = (self._split(part) for part in self.qkv(tokens).chunk(3, dim=-1))
        if prefix is not None:
            k = torch.cat([self._split(prefix[:, 0]), k], dim=2)
            v = torch.cat([self._split(prefix[:, 1]), v], dim=2)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """(n, t, width) as (n, heads, t, width / heads)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Mlp(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.fc1 = nn.Linear(sizes.width, sizes.hidden)
        self.fc2 = nn.Linear(sizes.hidden, sizes.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (n, t, width)."""
        return self.fc2(F.gelu(self.fc1(tokens)))


class Block(nn.Module):
    """Attention and MLP, each after a norm and with a shortcut."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(sizes.width, sizes.eps)
        self.attn = Attention(sizes)
        self.norm2 = nn.LayerNorm(sizes.width, sizes.eps)
        self.mlp = Mlp(sizes)

    def forward(
        self, tokens: Tensor, prefix: Tensor | None = None, adapter: Adapter | None = None
    ) -> Tensor:
        """Tokens (n, t, width). An adapter works beside the MLP, on the input of its norm."""
        tokens = tokens + self.attn(self.norm1(tokens), prefix)
        out = tokens + self.mlp(self.norm2(tokens))
        return out if adapter is None else out + adapter(tokens)


class ViT(nn.Module):
    """``forward`` is ``embed``, then ``encode``, then the class token.

    A method can call the steps itself, for example to cache the embedded images or to insert
    prompt tokens between them. Prompts of attention layers are passed as ``prefixes``, modules
    beside the MLPs as ``adapters``.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.patch_embed = PatchEmbedding(sizes)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, sizes.width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 1 + sizes.grid**2, sizes.width))
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.depth))
        self.norm = nn.LayerNorm(sizes.width, sizes.eps)

    def forward(self, images: Tensor, prefixes: Mapping[int, Tensor] | None = None) -> Tensor:
        """Features (n, width) of images (n, 3, side, side)."""
        return self.encode(self.embed(images), prefixes)[:, 0]

    def embed(self, images: Tensor) -> Tensor:
        """Tokens (n, 1 + patches, width) with their positions, the class token first."""
        patches = self.patch_embed(images)
        return torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], 1) + self.pos_embed

    def encode(
        self,
        tokens: Tensor,
        prefixes: Mapping[int, Tensor] | None = None,
        adapters: Sequence[Adapter] | None = None,
    ) -> Tensor:
        """Tokens after all blocks and the final norm.

        ``prefixes`` maps the number of a block to (n, 2, length, width), see ``Attention``.
        ``adapters`` has one entry per block, see ``Block``.
        """
        for number, block in enumerate(self.blocks):
            prefix = prefixes.get(number) if prefixes else None
            tokens = block(tokens, prefix, adapters[number] if adapters else None)
        return self.norm(tokens)


def vit_backbone(
    path: str | Path,
    device: str | None = None,
    *,
    mean: Triple | None = None,
    std: Triple | None = None,
) -> Backbone:
    """The ViT in a file as a frozen backbone, see ``load_vit``."""
    network, preprocess = load_vit(path, mean=mean, std=std)
    sizes, used_device = network.sizes, torch_device(device)
    return Backbone(
        name=f"vit:{path}",
        # Heads and eps change the features, but are not in the weights.
        kind=f"vit-{sizes.width}x{sizes.depth}x{sizes.heads}-eps{sizes.eps:g}",
        out_features=sizes.width,
        weights=hash_parameters(network.state_dict()),
        preprocess=preprocess,
        forward=torch_forward(network.to(used_device), used_device),
        nonnegative=False,  # it ends in a norm
        batch_size=suitable_batch(used_device),
    )


def load_vit(
    path: str | Path, *, mean: Triple | None = None, std: Triple | None = None
) -> tuple[ViT, Preprocessing]:
    """A ViT in float32 on the CPU without gradients, and the preprocessing of its images.

    ``path`` is a .safetensors file with timm's names. The sizes come from the shapes. The number
    of heads comes from ``num_heads`` in the file's metadata, else each head has 64 columns. Such a
    file does not say how images are prepared: bicubic, with ``mean`` and ``std`` of pixels in
    0 .. 1, by default 0.5.
    """
    path = Path(path).expanduser()
    tensors, metadata = _read(path)
    tensors = {k: v for k, v in tensors.items() if not k.startswith("head.")}
    network = _assemble(tensors, str(path), metadata.get("num_heads"))
    preprocess = imagenet(network.sizes.side, mean or HALF, std or HALF)
    return network.eval().requires_grad_(False), preprocess


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a .safetensors file in float32, and its metadata."""
    if not path.is_file():
        hint = "; for a folder of transformers use hf:FOLDER" if path.is_dir() else ""
        what = f"but {path} {'is a folder' if hint else 'does not exist'}"
        raise FileNotFoundError(f"vit: expected a .safetensors file, {what}{hint}")
    try:
        with safe_open(path, framework="pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as reason:
        raise Refused(f"{path}", "a .safetensors file", f"{reason}") from None
    tensors = {}
    for name, tensor in stored.items():
        if not tensor.is_floating_point():
            raise Refused(f"{path}: {name}", "floating-point numbers", f"{tensor.dtype}")
        tensors[name] = tensor.float()
        if not tensors[name].isfinite().all():
            raise Refused(f"{path}: {name}", "finite numbers", "NaN or infinity")
    return tensors, metadata


def _assemble(tensors: Mapping[str, Tensor], where: str, heads: Any) -> ViT:
    """A ViT from tensors with timm's names. Other or missing tensors and shapes are refused."""

    def present(name: str) -> Tensor:
        if name not in tensors:
            hint = f"for a model of transformers use hf:FOLDER; else {_HINT}"
            raise Refused(where, "a ViT with timm's names", f"a file without {name}", hint)
        return tensors[name]

    def shape(name: str, *axes: str) -> tuple[int, ...]:
        found = tuple(present(name).shape)
        if len(found) != len(axes):
            raise Refused(f"{where}: {name}", f"the shape ({', '.join(axes)})", found)
        return found

    width, _, patch, _ = shape("patch_embed.proj.weight", "width", "3", "patch", "patch")
    positions = shape("pos_embed", "1", "positions", "width")[1]
    hidden, _ = shape("blocks.0.mlp.fc1.weight", "hidden", "width")
    grid = math.isqrt(max(positions - 1, 0))
    if grid**2 + 1 != positions:
        what = "a class token and a square grid of patches"
        raise Refused(f"{where}: pos_embed", what, f"{positions} positions", _HINT)
    if heads is None and (width % HEAD_WIDTH or width > 1024):
        hint = "add it to the file's metadata"
        raise Refused(f"{where}: num_heads", f"a number of heads for width {width}", "none", hint)
    depth = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    try:
        number = width // HEAD_WIDTH if heads is None else int(heads)
        sizes = Sizes(width, depth, number, patch, grid, hidden)
    except ValueError as reason:
        raise Refused(where, "sizes of a ViT", f"{reason}") from None
    with torch.device("meta"):  # names and shapes, but no memory
        network = ViT(sizes)
    wanted = network.state_dict()
    for name, parameter in wanted.items():
        if present(name).shape != parameter.shape:
            expected = f"the shape {tuple(parameter.shape)}"
            raise Refused(f"{where}: {name}", expected, tuple(tensors[name].shape))
    other = sorted(set(tensors) - set(wanted))
    if other:
        what = f"a file with {', '.join(other[:3])}"
        raise Refused(where, "the tensors of a plain ViT with timm's names", what, _HINT)
    network.load_state_dict(dict(tensors), assign=True)
    return network
