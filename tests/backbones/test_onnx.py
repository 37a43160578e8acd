"""ONNX models: shapes, preprocessing, weights and what is refused."""

import hashlib

import numpy as np
import pytest

from fedran.backbones.catalogue import load_backbone
from fedran.core.errors import Refused

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("PIL")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

W = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)


def write(path, shape=("n", 3, 8, 8), output="matrix", kind=TensorProto.FLOAT, inputs=1):
    """Mean over the image, then a linear layer; in one of several output shapes."""
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["a"])]
    nodes.append(helper.make_node("Flatten", ["a"], ["b"]))
    nodes.append(helper.make_node("MatMul", ["b", "W"], ["f"]))
    constants = [numpy_helper.from_array(W[: shape[1]], "W")]
    if output == "pooled":
        axes = np.array([2, 3])
        nodes.append(helper.make_node("Unsqueeze", ["f", "axes"], ["y"]))
    elif output == "tokens":
        axes = np.array([1])
        nodes.append(helper.make_node("Unsqueeze", ["f", "axes"], ["t"]))
        nodes.append(helper.make_node("Neg", ["t"], ["u"]))
        nodes.append(helper.make_node("Concat", ["t", "u"], ["y"], axis=1))
    elif output == "map":
        axes = np.array([0])
        nodes.append(helper.make_node("Identity", ["x"], ["y"]))
    else:
        axes = np.array([0])
        nodes.append(helper.make_node("Identity", ["f"], ["y"]))
    constants.append(numpy_helper.from_array(axes, "axes"))
    entries = [
        helper.make_tensor_value_info("x", kind, shape),
        helper.make_tensor_value_info("z", kind, shape),
    ][:inputs]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", entries, [out], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def batch(n, size=8):
    return np.random.default_rng(1).standard_normal((n, 3, size, size)).astype(np.float32)


@pytest.mark.parametrize("output", ["matrix", "pooled", "tokens"])
@pytest.mark.parametrize("rows", ["n", 1, 2])
def test_onnx_features_of_every_output_shape_and_batch(tmp_path, output, rows):
    path = write(tmp_path / "m.onnx", (rows, 3, 8, 8), output)
    backbone = load_backbone(f"onnx:{path}")
    x = batch(5)
    np.testing.assert_allclose(backbone(x), x.mean(axis=(2, 3)) @ W, atol=1e-5)
    np.testing.assert_allclose(backbone(x[:1]), backbone(x)[:1], atol=1e-6)
    assert backbone.out_features == 5
    assert backbone.source["backbone"] == "onnx"
    assert not backbone.nonnegative
    with pytest.raises(Refused, match="never negative"):
        load_backbone(f"onnx:{path}", nonnegative=True)(x)
    assert backbone.weights == hashlib.sha256(path.read_bytes()).hexdigest()


def test_size_mean_and_std_of_an_onnx_model(tmp_path):
    path = write(tmp_path / "m.onnx", ("n", 3, "h", "w"))
    with pytest.raises(Refused, match="give a size"):
        load_backbone(f"onnx:{path}")
    backbone = load_backbone(f"onnx:{path}", size=6, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    assert str(backbone.preprocess) == "bicubic 6x6, (x - 127.5) / 127.5"
    with pytest.raises(Refused, match="8, which the model fixes, got 6"):
        load_backbone(f"onnx:{write(path)}", size=6)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"inputs": 2}, "one input"),
        ({"shape": ("n", 1, 8, 8)}, "one input, float32 images"),
        ({"shape": ("n", 3, 8, 6)}, "square images"),
        ({"output": "map"}, r"an output \(n, d\)"),
    ],
)
def test_onnx_models_without_an_image_input_are_refused(tmp_path, options, word):
    with pytest.raises(Refused, match=word):
        load_backbone(f"onnx:{write(tmp_path / 'm.onnx', **options)}")


def test_files_that_are_not_onnx_models_are_refused(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    with pytest.raises(Refused, match="an ONNX model"):
        load_backbone(f"onnx:{tmp_path / 'm.onnx'}")
    with pytest.raises(FileNotFoundError, match="expected a file"):
        load_backbone(f"onnx:{tmp_path / 'other.onnx'}")
    with pytest.raises(ValueError, match="device: expected one that onnxruntime has here"):
        load_backbone(f"onnx:{write(tmp_path / 'm.onnx')}", "tpu")


def test_weights_in_another_file_are_refused_because_no_hash_covers_them(tmp_path):
    model = onnx.load(write(tmp_path / "m.onnx"))
    path = tmp_path / "big.onnx"
    onnx.save(model, path, save_as_external_data=True, location="big.data", size_threshold=0)
    with pytest.raises(Refused, match="weights in the same file"):
        load_backbone(f"onnx:{path}")
