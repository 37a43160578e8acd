"""``fedran federation`` and ``fedran features`` in a folder of their own; a small backbone."""

from functools import partial

import pytest


@pytest.fixture
def call(cli, tmp_path, monkeypatch):
    """``fedran federation ...`` in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return cli("federation", *map(str, arguments))

    return run


@pytest.fixture
def trial(call):
    """A trial without rows, in the folder ``t``."""
    assert call("init", "t", "--in-features", "6")[0] == 0
    return "t"


@pytest.fixture
def features(cli, monkeypatch, tmp_path):
    """``fedran features`` in a folder and with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return partial(cli, "features")


@pytest.fixture
def model(tmp_path):
    """A backbone of images in a file: their mean colour."""
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["a"]),
        helper.make_node("Flatten", ["a"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 3, 8, 8))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ("n", 3))
    graph = helper.make_graph(nodes, "g", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "mean.onnx")
    return f"onnx:{tmp_path / 'mean.onnx'}"
