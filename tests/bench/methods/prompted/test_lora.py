"""Low-rank changes of a ViT's layers, and the Grams of their inputs."""

import pytest

torch = pytest.importorskip("torch")

from fedran.backbones.vit import load_vit  # noqa: E402
from fedran_bench.methods.prompted.frozen_vit import frozen_vit  # noqa: E402
from fedran_bench.methods.prompted.lora import (  # noqa: E402
    changed_features,
    input_grams,
    pack_symmetric,
    unpack_symmetric,
)
from helpers.bench.tiny_vit import DEPTH, WIDTH, tiny_vit  # noqa: E402

LAYERS = ("blocks.0.attn.qkv", "blocks.1.attn.proj", "blocks.0.mlp.fc1", "blocks.1.mlp.fc2")


def tokens_and_changes(scale, seed=0):
    random = torch.Generator().manual_seed(seed)
    network = load_vit(tiny_vit())[0]
    tokens = network.embed(torch.randn(3, 3, 8, 8, generator=random))
    shapes = {name: network.get_parameter(f"{name}.weight").shape for name in LAYERS}
    changes = {n: scale * torch.randn(s, generator=random) for n, s in shapes.items()}
    return network, tokens, changes


@pytest.mark.parametrize("seed", range(3))
def test_changes_are_added_to_the_weights_of_their_layers(seed):
    network, tokens, changes = tokens_and_changes(0.1, seed)
    vit = frozen_vit(tiny_vit(), "cpu", "float32")
    before = changed_features(vit, tiny_vit(), tokens, {})
    torch.testing.assert_close(before, network.encode(tokens)[:, 0])
    found = changed_features(vit, tiny_vit(), tokens, changes)
    for name, change in changes.items():
        network.get_parameter(f"{name}.weight").data += change
    torch.testing.assert_close(found, network.encode(tokens)[:, 0])
    # The shared network itself is unchanged.
    torch.testing.assert_close(changed_features(vit, tiny_vit(), tokens, {}), before)


def test_small_changes_survive_bfloat16():
    """Half a step of bfloat16 would be lost if it were added to rounded weights."""
    _, tokens, changes = tokens_and_changes(0.0005)
    exact, rounded = (frozen_vit(tiny_vit(), "cpu", p) for p in ("float32", "bfloat16"))
    for name in LAYERS:
        weights = exact.network.get_parameter(f"{name}.weight")
        summed = (weights + changes[name]).bfloat16()
        assert (summed != weights.bfloat16()).float().mean() > 0.05
    found = changed_features(rounded, tiny_vit(), tokens.bfloat16(), changes)
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found, changed_features(exact, tiny_vit(), tokens, changes), atol=0.1, rtol=0.1
    )


def test_grams_are_sums_over_all_tokens_of_all_passes():
    network, tokens, _ = tokens_and_changes(0)
    vit = frozen_vit(tiny_vit(), "cpu", "float32")
    with input_grams(vit, LAYERS) as grams:
        for part in tokens.split(2):
            changed_features(vit, tiny_vit(), part, {})
    after = dict(grams)
    changed_features(vit, tiny_vit(), tokens, {})
    assert all(after[name] is grams[name] for name in LAYERS)
    first = network.blocks[0].norm1(tokens)
    wanted = sum(torch.outer(row, row) for image in first for row in image)
    torch.testing.assert_close(grams["blocks.0.attn.qkv"], wanted, rtol=1e-4, atol=1e-4)
    assert grams["blocks.1.mlp.fc2"].shape == (2 * WIDTH, 2 * WIDTH)
    assert DEPTH == 2


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (3, 4, 4)])
def test_symmetric_matrices_survive_packing(shape):
    G = torch.randn(shape)
    G = G + G.mT
    m = shape[-1]
    packed = pack_symmetric(G)
    assert packed.shape == (*shape[:-2], m * (m + 1) // 2)
    assert torch.equal(unpack_symmetric(packed, m), G)
