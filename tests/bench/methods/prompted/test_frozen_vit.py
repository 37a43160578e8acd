"""Images on their way into a frozen ViT: resizing, tokens, queries, and where weights are found."""

import numpy as np
import pytest
import torch

from fedran.backbones.preprocessing import Preprocessing
from fedran.backbones.vit import load_vit
from fedran_bench.methods.prompted.frozen_vit import find_weights, frozen_vit, prepare
from helpers.bench.tiny_vit import tiny_vit


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("how", ["bicubic", "bilinear"])
@pytest.mark.parametrize("kind", ["exact", "crop", "unrounded"])
def test_images_are_prepared_as_one_by_one(how, kind, seed):
    """Rounded values differ by a level or two where Pillow's integers break a tie otherwise."""
    pytest.importorskip("PIL")
    preprocess = {
        "exact": Preprocessing((61, 59), (10, 20, 30), (50, 60, 70), interpolation=how),
        "crop": Preprocessing(53, (10, 20, 30), (50, 60, 70), (48, 41), interpolation=how),
        "unrounded": Preprocessing((61, 59), (0, 0, 0), (1, 1, 1), None, how, rounded=False),
    }[kind]
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (3, *rng.integers(5, 40, 2), 3), dtype=np.uint8)
    found = prepare(torch.tensor(images.transpose(0, 3, 1, 2)), preprocess).numpy()
    wanted = np.stack([preprocess(image) for image in images])
    assert found.shape == wanted.shape
    levels = np.abs(found - wanted) * np.array(preprocess.std).reshape(3, 1, 1)
    assert levels.max() < (0.01 if kind == "unrounded" else 2.01)
    assert (levels > 0.01).mean() < 0.06


def test_embedded_images_and_queries_are_those_of_the_network():
    images = np.random.default_rng(0).integers(0, 256, (7, 8, 8, 3), dtype=np.uint8)
    network, preprocess = load_vit(tiny_vit())
    x = torch.tensor(np.stack([preprocess(image) for image in images]))
    vit = frozen_vit(tiny_vit(), "cpu", "float32")
    found = vit.embed(torch.tensor(images.transpose(0, 3, 1, 2)))
    with torch.no_grad():
        torch.testing.assert_close(found.tokens, network.embed(x))
        torch.testing.assert_close(found.query, network(x))
    assert vit.embed(torch.zeros(3, 3, 8, 8, dtype=torch.uint8), query=False).query.shape == (3, 0)
    assert len(vit.embed(torch.zeros(0, 3, 5, 5, dtype=torch.uint8))) == 0


def test_bfloat16_is_close_to_float32_and_features_stay_float32():
    images = torch.randint(0, 256, (9, 3, 8, 8), dtype=torch.uint8)
    exact = frozen_vit(tiny_vit(), "cpu", "float32").embed(images)
    rough = frozen_vit(tiny_vit(), "cpu", "bfloat16").embed(images)
    assert rough.tokens.dtype == torch.bfloat16
    assert rough.query.dtype == torch.float32
    assert (rough.query - exact.query).norm() < 0.05 * exact.query.norm()


def test_weights_are_found_here_or_below_the_data_folder(tmp_path, monkeypatch):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "a.safetensors").touch()
    monkeypatch.chdir(tmp_path / "weights")
    monkeypatch.delenv("FEDRAN_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="FEDRAN_DATA is not set"):
        find_weights("weights/a.safetensors")
    monkeypatch.setenv("FEDRAN_DATA", str(tmp_path))
    assert find_weights("weights/a.safetensors") == tmp_path / "weights" / "a.safetensors"
    assert find_weights("a.safetensors").name == "a.safetensors"
