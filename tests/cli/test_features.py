"""``fedran features`` from the command line."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedran.data.catalogue import load_dataset, load_images
from fedran.data.feature_file import read_feature_file
from fedran_bench.run.config import load_config
from fedran_bench.run.progress import Reporter
from fedran_bench.run.sweep import execute

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    for part, n in (("train", 4), ("test", 2)):
        for name in ("ant", "bee"):
            folder = tmp_path / "insects" / part / name
            folder.mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return tmp_path / "insects"


def test_features_of_a_folder_are_written_to_a_file(features, images, model, tmp_path):
    code, out, err = features(str(images), "--backbone", model)
    assert code == 0
    assert "8 training and 4 test images of insects" in err
    assert "12/12" in err
    assert "next: fedran condense insects-mean.npz --out insects.fedran" in out
    data = read_feature_file(tmp_path / "insects-mean.npz")
    assert data.X_train.shape == (8, 3)
    assert data.y_train.tolist() == ["ant"] * 4 + ["bee"] * 4
    assert data.source["preprocessing"].startswith("bicubic 8x8, (x - [123.675")
    assert list((tmp_path / "cache" / "fedran" / "features").iterdir())


def test_options_of_the_features_command(features, images, model, tmp_path):
    options = ("--out", "f.npz", "--mean", "0,0,0", "--std", "1,1,1")
    code, _, _ = features(str(images), "--backbone", model, *options)
    assert code == 0
    with np.load(tmp_path / "f.npz") as file:
        assert file["train"].dtype == np.float32
        assert str(file["preprocessing"]) == "bicubic 8x8, (x - 0) / 255"


def test_features_of_a_vision_transformer(features, images, tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    from fedran.backbones.vit import Sizes, ViT

    torch.manual_seed(0)
    network = ViT(Sizes(width=64, depth=1, heads=1, patch=4, grid=2, hidden=8))
    save_file(network.state_dict(), tmp_path / "tiny.safetensors")
    options = ("--backbone", "vit:tiny.safetensors", "--std", "0.2,0.2,0.2", "--device", "cpu")
    code, _, err = features(str(images), *options)
    assert code == 0
    assert "vit-64x1x1-eps1e-06, 64 features, bicubic 8x8, (x - 127.5) / 51\n" in err
    assert "features can be negative: prepared as kind cosine" in err
    data = read_feature_file(tmp_path / "insects-tiny.npz")
    pixels = Image.open(images / "train" / "ant" / "0.png").resize((8, 8), Image.Resampling.BICUBIC)
    batch = (torch.from_numpy(np.array(pixels, np.float32)).permute(2, 0, 1) - 127.5) / 51
    wanted = network(batch[None]).detach().numpy()[0]
    assert np.abs(data.X_train - wanted).max(axis=1).min() < 1e-5
    code, _, err = features(str(images), "--backbone", "vit:other.safetensors")
    assert code == 2
    assert "but other.safetensors does not exist" in err


def test_the_features_command_reports_a_damaged_chunk(features, images, model, tmp_path):
    arguments = (str(images), "--backbone", model)
    assert features(*arguments)[0] == 0
    code, _, err = features(*arguments)
    assert (code, "insects-mean.npz exists; name another file with --out" in err) == (2, True)
    chunk = next((tmp_path / "cache" / "fedran" / "features").glob("*/*.safetensors"))
    chunk.write_bytes(b"damaged")
    code, _, err = features(*arguments, "--overwrite")
    assert code == 0
    assert "computed again" in " ".join(err.split())


def test_errors_of_the_features_command_are_one_line(features, images, model):
    for arguments, word in (
        (("cifar10",), "did you mean 'cifar100'"),
        ((str(images), "--backbone", "efficientnet"), "did you mean 'efficientnet_lite0'"),
        ((str(images), "--backbone", model, "--mean", "1,2"), "--mean: expected 3 numbers"),
        ((str(images), "--backbone", model, "--out", "x/y.npz"), "does not exist"),
    ):
        code, _, err = features(*arguments)
        assert code == 2
        assert word in err
        assert err.strip().splitlines()[-1].startswith("fedran: ")


def test_a_feature_file_leads_back_to_its_images(features, images, model):
    """So that a benchmark can also measure what sending the images would cost."""
    assert features(str(images), "--backbone", model, "--out", "f.npz")[0] == 0
    found = load_dataset("f.npz")
    assert found.images is not None
    assert found.images.encoded(0) == load_images(str(images)).train.encoded(0)
    next((images / "train" / "ant").iterdir()).unlink()
    assert load_dataset("f.npz").images is None


def test_the_tiny_vit_of_the_guide_runs(features, tmp_path):
    """The script, the configuration and the commands of docs/how-to/vit.md, as they are written."""
    pytest.importorskip("transformers")
    page = (Path(__file__).parents[2] / "docs/how-to/vit.md").read_text(encoding="utf-8")
    part = page.partition("## Try it without data")[2].partition("\n## ")[0]
    script, config, commands = re.findall(r"```(?:py|toml|console)\n(.*?)```", part, re.DOTALL)
    exec(script, {})
    (tmp_path / "tiny.toml").write_text(config)
    extract = next(x for x in commands.splitlines() if x.startswith("$ fedran features "))
    code, _, err = features(*extract.split()[3:])
    assert code == 0, err
    outcome = execute(load_config("tiny.toml"), tmp_path / "runs", Reporter())
    assert (outcome.done, outcome.failed) == (2, ())
