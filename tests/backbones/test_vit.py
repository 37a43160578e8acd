"""Vision Transformers: features, prefixes, refusals, stored results."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedran.backbones.catalogue import load_backbone
from fedran.core.errors import Refused
from fedran.data.catalogue import load_images

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL")

from safetensors.torch import load_file, save_file  # noqa: E402

from fedran.backbones.vit import Attention, Sizes, ViT, load_vit  # noqa: E402

SIZES = Sizes(width=24, depth=2, heads=3, patch=4, grid=3, hidden=32)


def reference_model(sizes):
    """transformers' ViT of these sizes with random weights, none of which is 0 or 1."""
    config = transformers.ViTConfig(
        hidden_size=sizes.width,
        num_hidden_layers=sizes.depth,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.hidden,
        image_size=sizes.patch * sizes.grid,
        patch_size=sizes.patch,
        layer_norm_eps=sizes.eps,
    )
    model = transformers.ViTModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def timm_weights(model, folder):
    """The weights of transformers' ViT by timm's names, written out name by name."""
    model.save_pretrained(folder)
    theirs = load_file(folder / "model.safetensors")
    found = {
        "cls_token": theirs["embeddings.cls_token"],
        "pos_embed": theirs["embeddings.position_embeddings"],
    }
    pairs = [
        ("patch_embed.proj", "embeddings.patch_embeddings.projection"),
        ("norm", "layernorm"),
    ]
    for i in range(model.config.num_hidden_layers):
        block, layer = f"blocks.{i}", f"encoder.layer.{i}"
        pairs += [
            (f"{block}.norm1", f"{layer}.layernorm_before"),
            (f"{block}.attn.proj", f"{layer}.attention.output.dense"),
            (f"{block}.norm2", f"{layer}.layernorm_after"),
            (f"{block}.mlp.fc1", f"{layer}.intermediate.dense"),
            (f"{block}.mlp.fc2", f"{layer}.output.dense"),
        ]
        for kind in ("weight", "bias"):
            parts = [f"{layer}.attention.attention.{x}.{kind}" for x in ("query", "key", "value")]
            found[f"{block}.attn.qkv.{kind}"] = torch.cat([theirs[part] for part in parts])
    for name, their_name in pairs:
        for kind in ("weight", "bias"):
            found[f"{name}.{kind}"] = theirs[f"{their_name}.{kind}"]
    return found


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(0)
    return {name: tensor.clone() for name, tensor in ViT(SIZES).state_dict().items()}


@pytest.fixture
def write(tmp_path):
    def write(tensors, metadata=None):
        path = tmp_path / "vit.safetensors"
        save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata)
        return path

    return write


@pytest.mark.parametrize("seed", range(3))
def test_features_equal_those_of_transformers(tmp_path, write, seed):
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    heads, patch, grid = (int(n) for n in rng.integers(1, 5, 3))
    hidden, depth = (int(n) for n in rng.integers(1, 5, 2))
    sizes = Sizes(6 * heads, depth, heads, patch, grid, 8 * hidden, eps=1e-6)
    model = reference_model(sizes)
    side = patch * grid
    images = torch.randn(4, 3, side, side)
    with torch.no_grad():
        wanted = model(images).last_hidden_state[:, 0]
    path = write(
        {**timm_weights(model, tmp_path), "head.bias": torch.zeros(7)}, {"num_heads": f"{heads}"}
    )
    network, preprocess = load_vit(path)
    assert network.sizes == sizes
    assert preprocess.shape == (side, side)
    torch.testing.assert_close(network(images), wanted, atol=1e-5, rtol=1e-5)
    assert not any(p.requires_grad for p in network.parameters())


def test_attention_equals_its_definition_with_and_without_a_prefix():
    torch.manual_seed(0)
    attention = Attention(SIZES)
    tokens, prefix = torch.randn(2, 5, 24), torch.randn(2, 2, 3, 24)
    for given in (None, prefix):
        wanted = torch.empty(2, 5, 24)
        for i in range(2):
            q, k, v = (
                tokens[i] @ attention.qkv.weight[part].T + attention.qkv.bias[part]
                for part in (slice(0, 24), slice(24, 48), slice(48, 72))
            )
            if given is not None:
                k, v = torch.cat([given[i, 0], k]), torch.cat([given[i, 1], v])
            for columns in (slice(0, 8), slice(8, 16), slice(16, 24)):
                scores = torch.exp(q[:, columns] @ k[:, columns].T / 8**0.5)
                wanted[i, :, columns] = scores / scores.sum(1, keepdim=True) @ v[:, columns]
        torch.testing.assert_close(attention(tokens, given), attention.proj(wanted))


def test_prefixes_reach_their_blocks_and_prompts_are_trained_through_a_frozen_network(weights):
    network = ViT(SIZES).requires_grad_(False)
    network.load_state_dict(weights)
    images, prefix = torch.randn(2, 3, 12, 12), torch.randn(2, 2, 4, 24, requires_grad=True)
    tokens = network.embed(images)
    torch.testing.assert_close(network.encode(tokens)[:, 0], network(images))
    by_hand = network.blocks[1](network.blocks[0](tokens), prefix)
    found = network(images, {1: prefix})
    torch.testing.assert_close(found, network.norm(by_hand)[:, 0])
    assert not torch.allclose(found, network(images, {0: prefix}), atol=1e-3)
    found.sum().backward()
    assert prefix.grad.abs().sum() > 0
    # Prompt tokens behind the class token are rows of the attention like any others.
    prompted = torch.cat([tokens[:, :1], torch.randn(2, 3, 24), tokens[:, 1:]], dim=1)
    assert network.encode(prompted).shape == (2, 1 + 3 + 9, 24)


def test_adapters_see_the_input_of_the_second_norm_and_add_to_their_block(weights):
    network = ViT(SIZES).requires_grad_(False)
    network.load_state_dict(weights)
    tokens = network.embed(torch.randn(2, 3, 12, 12))
    adapters = [torch.nn.Linear(24, 24) for _ in range(2)]
    by_hand = tokens
    for block, adapter in zip(network.blocks, adapters, strict=True):
        between = by_hand + block.attn(block.norm1(by_hand))
        by_hand = between + block.mlp(block.norm2(between)) + adapter(between)
    found = network.encode(tokens, adapters=adapters)
    torch.testing.assert_close(found, network.norm(by_hand))
    found.sum().backward()
    assert all(adapter.weight.grad.abs().sum() > 0 for adapter in adapters)


def test_the_backbone_and_its_source(weights, write):
    path = write(weights, {"num_heads": "3"})
    backbone = load_backbone(f"vit:{path}", "cpu")
    assert backbone.out_features == 24
    assert backbone.nonnegative is False
    assert backbone.source == {
        "backbone": "vit-24x2x3-eps1e-06",
        "weights": backbone.weights,
        "preprocessing": "bicubic 12x12, (x - 127.5) / 127.5",
    }
    batch = np.random.default_rng(0).standard_normal((3, 3, 12, 12)).astype(np.float32)
    together = backbone(batch)
    for i in range(3):
        np.testing.assert_allclose(backbone(batch[i : i + 1])[0], together[i], atol=1e-5)

    def reloaded(tensors, heads="3", **options):
        return load_backbone(f"vit:{write(tensors, {'num_heads': heads})}", "cpu", **options).source

    # Unused tensors and a wider type change nothing; weights, heads and preprocessing do.
    halves = {k: v.half() for k, v in weights.items()}
    same = {"head.weight": torch.zeros(5, 24)} | {k: v.float() for k, v in halves.items()}
    assert reloaded(same) == reloaded(halves) != backbone.source
    assert reloaded(weights) == backbone.source != reloaded(weights, heads="4")
    other = reloaded(weights, mean=(0, 0, 0), std=(1, 1, 1))
    assert other["preprocessing"] == "bicubic 12x12, (x - 0) / 255"


def test_heads_have_64_columns_unless_the_metadata_say_otherwise(write):
    torch.manual_seed(0)
    tensors = ViT(Sizes(128, 1, 2, 2, 1, 8)).state_dict()
    assert load_vit(write(tensors))[0].sizes.heads == 2
    assert load_vit(write(tensors, {"num_heads": "8"}))[0].sizes.heads == 8
    for width in (48, 1280):  # the published ViT of width 1280 has 16 heads, not 20
        tensors = ViT(Sizes(width, 1, 1, 2, 1, 1)).state_dict()
        with pytest.raises(Refused, match=rf"num_heads: expected .* for width {width}, got none"):
            load_vit(write(tensors))


def without(*names):
    return lambda tensors: {k: v for k, v in tensors.items() if k not in names}


def added(**others):
    return lambda tensors: tensors | {k.replace("__", "."): v for k, v in others.items()}


@pytest.mark.parametrize(
    ("change", "metadata", "message"),
    [
        (without("norm.bias"), {}, r"timm's names, got a file without norm\.bias; .*hf:F"),
        (without("patch_embed.proj.weight"), {}, "a file without patch_embed.proj.weight"),
        (without("blocks.1.norm1.weight"), {}, r"a file without blocks\.1\.norm1\.weight"),
        (added(norm__bias=torch.zeros(23)), {}, r"norm\.bias: .* shape \(24,\), got \(23,\)"),
        (added(blocks__1__ls1__gamma=torch.ones(24)), {}, r"a file with blocks\.1\.ls1\.gamma"),
        (added(pos_embed=torch.zeros(1, 9, 24)), {}, "square grid of patches, got 9 positions"),
        (added(pos_embed=torch.zeros(10, 24)), {}, r"\(1, positions, width\), got \(10, 24\)"),
        (added(cls_token=torch.full((1, 1, 24), torch.nan)), {}, "cls_token: .* got NaN or inf"),
        (added(cls_token=torch.zeros(1, 1, 24).char()), {}, r"floating.* got torch\.int8"),
        (added(patch_embed__proj__weight=torch.zeros(24, 3, 0, 0)), {}, "got a size below 1"),
        (lambda tensors: tensors, {"num_heads": "5"}, "got 5 heads, which do not divide"),
        (lambda tensors: tensors, {"num_heads": "0"}, "a ViT, got a size below 1"),
        (lambda tensors: tensors, {"num_heads": "many"}, "sizes of a ViT, got invalid literal"),
    ],
)
def test_other_weights_are_refused(weights, write, change, metadata, message):
    path = write(change(weights), {"num_heads": "3"} | metadata)
    with pytest.raises(Refused, match=message):
        load_vit(path)


def test_other_files_and_folders_are_refused(tmp_path):
    path = tmp_path / "vit.safetensors"
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_vit(path)
    path.write_bytes(b"\x80" * 100)
    with pytest.raises(Refused, match=r"expected a \.safetensors file"):
        load_vit(path)
    with pytest.raises(FileNotFoundError, match="is a folder; for a folder of tr"):
        load_vit(tmp_path)


@pytest.mark.skipif("FEDRAN_DATA" not in os.environ, reason="needs the data below FEDRAN_DATA")
def test_vit_tiny_computes_the_stored_features():
    """The stored features were computed from images rounded to 10 bits, as in TF32 or float16.

    With the same rounding of images nearly all values agree in float16, the others to one unit in
    the last place. Without it the difference is of the size of this rounding.
    """
    root = Path(os.environ["FEDRAN_DATA"])
    backbone = load_backbone(f"vit:{root / 'weights' / 'vit_tiny_patch16_224.safetensors'}", "cpu")
    with np.load(root / "features" / "cifar100-vit_ti16.npz") as file:
        stored = file["test"]
    images = load_images("cifar100").test
    rows = np.random.default_rng(0).choice(len(images), 48, replace=False)
    batch = np.stack([backbone.preprocess(images.pixels(int(i))) for i in rows])
    wanted = stored[rows].astype(np.float32)
    rounded = backbone(batch.astype(np.float16).astype(np.float32))
    np.testing.assert_allclose(rounded, wanted, rtol=2**-10, atol=1e-4)
    assert np.mean(rounded.astype(np.float16) == stored[rows]) > 0.9
    wanted = wanted[:8]
    assert np.linalg.norm(backbone(batch[:8]) - wanted) < 1e-3 * np.linalg.norm(wanted)
