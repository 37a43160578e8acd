"""Models of transformers: features, weights and image processors."""

import json

import numpy as np
import pytest

from fedran.backbones.catalogue import load_backbone
from fedran.backbones.huggingface import preprocessing_of
from fedran.core.errors import Refused

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

EXACT = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 16, "width": 16},
    "resample": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
CROPPED = {
    "image_processor_type": "ConvNextImageProcessor",
    "size": {"shortest_edge": 32},
    "crop_pct": 0.875,
    "resample": 3,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def save(model, folder, settings):
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return model.eval()


def tiny_vit(seed=0, pooler=False):
    torch.manual_seed(seed)
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=16,
        patch_size=8,
    )
    return transformers.ViTModel(config, add_pooling_layer=pooler)


def tiny_resnet():
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1], layer_type="basic"
    )
    return transformers.ResNetModel(config)


def pictures():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (30 + 7 * k, 50, 3), dtype=np.uint8) for k in range(3)]


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_features_equal_those_of_the_hugging_face_model(tmp_path, kind):
    model, settings = (tiny_vit(), EXACT) if kind == "vit" else (tiny_resnet(), CROPPED)
    model = save(model, tmp_path, settings)
    backbone = load_backbone(f"hf:{tmp_path}", "cpu")
    batch = np.stack([backbone.preprocess(x) for x in pictures()])
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    theirs = [
        processor(images=Image.fromarray(x), return_tensors="pt")["pixel_values"]
        for x in pictures()
    ]
    np.testing.assert_allclose(batch, torch.cat(theirs).numpy(), atol=1e-5)
    with torch.no_grad():
        output = model(torch.from_numpy(batch))
    wanted = output.last_hidden_state[:, 0] if kind == "vit" else output.pooler_output.flatten(1)
    found = backbone(batch)
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5)
    for i in range(3):
        np.testing.assert_allclose(backbone(batch[i : i + 1])[0], found[i], atol=1e-5)
    assert backbone.out_features == found.shape[1]
    expected = "hf:vit/class token" if kind == "vit" else "hf:resnet/pooled"
    assert backbone.source["backbone"] == expected
    assert backbone.nonnegative is (kind == "resnet")
    assert str(tmp_path) not in "".join(backbone.source.values())


def test_the_hash_covers_the_weights_that_are_used(tmp_path):
    pooled = tiny_vit(pooler=True)
    pooled.load_state_dict(tiny_vit().state_dict(), strict=False)
    for name, model in (
        ("a", tiny_vit()),
        ("b", pooled),
        ("c", tiny_vit(seed=1)),
        ("d", tiny_vit().half()),
    ):
        (tmp_path / name).mkdir()
        save(model, tmp_path / name, EXACT)
    hashes = {n: load_backbone(f"hf:{tmp_path / n}", "cpu").weights for n in "abcd"}
    # A pooler that is missing is filled with random numbers; it must not be hashed.
    assert hashes["a"] == load_backbone(f"hf:{tmp_path / 'a'}", "cpu").weights == hashes["b"]
    assert len(set(hashes.values())) == 3


def test_models_without_all_weights_are_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    save(tiny_vit(), tmp_path, EXACT)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    save_file(
        {k: v for k, v in weights.items() if "layernorm.bias" not in k}, path, {"format": "pt"}
    )
    with pytest.raises(Refused, match=r"all weights of the model, got a file without .*layernorm"):
        load_backbone(f"hf:{tmp_path}")


def test_folders_and_names_without_a_model_are_refused(tmp_path, monkeypatch):
    with pytest.raises(Refused, match=r"a vision model and its image processor.*save_pretrained"):
        load_backbone(f"hf:{tmp_path}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(Refused, match="needs the internet or a cached copy"):
        load_backbone("hf:nobody/has-this-model")


def test_settings_of_image_processors_become_preprocessing_or_are_refused():
    resized = preprocessing_of({**CROPPED, "size": {"shortest_edge": 384}}, "x")
    assert resized.resize == (384, 384)
    assert resized.crop is None
    assert preprocessing_of(CROPPED, "x").resize == 36
    clip = {
        **EXACT,
        "size": {"shortest_edge": 20},
        "do_center_crop": True,
        "crop_size": {"height": 18, "width": 16},
        "do_rescale": False,
        "do_normalize": False,
    }
    p = preprocessing_of(clip, "x")
    assert (p.resize, p.crop, p.mean, p.std) == (20, (18, 16), (0, 0, 0), (1, 1, 1))
    for change, word in (
        ({"do_pad": True}, "do_pad"),
        ({"do_resize": False}, "do_resize"),
        ({"resample": 1}, "bilinear"),
        ({"size": 16}, "height and width, or shortest_edge"),
        ({"size": {"shortest_edge": 16}}, "height and width"),
    ):
        with pytest.raises(Refused, match=word):
            preprocessing_of({**EXACT, **change}, "x")
