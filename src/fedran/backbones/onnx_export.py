"""A feature map and a head as one ONNX model."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedran.backbones.torch_export import map_of
from fedran.core._linalg.arrays import to_numpy
from fedran.core.errors import MissingExtra
from fedran.core.features import RandomFeatures
from fedran.core.fingerprint import require_scaler
from fedran.core.head import Head

if TYPE_CHECKING:
    from fedran.scaler import FederatedScaler

OPSET, IR_VERSION = 18, 9
MAX_BYTES = 2**31 - 2**20
"""A protocol buffer holds less than 2 GiB."""


def to_onnx(
    head: Head, phi: RandomFeatures | None = None, scaler: FederatedScaler | None = None
) -> bytes:
    """An ONNX model as bytes: backbone features (n, d) in, labels and scores out.

    The feature map, the weights and the labels are inside, so the file needs nothing of fedran.

    Parameters
    ----------
    head:
        The head.
    phi:
        Its feature map. By default the one that the head's fingerprint describes.
    scaler:
        The scaler of its rows, which a head of ``FedRANClassifier(scaler=...)`` needs. The model
        then takes rows that are not scaled.

    Returns
    -------
    bytes
        A model with the input ``features``, float32 (n, d), and the outputs ``label``, int64 or
        string (n,), and ``scores``, float32 (n, C). Where the head is calibrated there is a third
        output, ``probabilities``, float32 (n, C). The metadata hold the classes as JSON. Labels of
        both kinds in one head are all written as strings.

    Notes
    -----
    The file has 4 M (d + C) bytes. Values that the feature map refuses are not refused by the
    model: NaN, and negative values under ``kind="hellinger"``, give NaN scores.

    Examples
    --------
    ::

        Path("head.onnx").write_bytes(fedran.to_onnx(head))
        session = onnxruntime.InferenceSession("head.onnx")
        labels, scores = session.run(["label", "scores"], {"features": Z})
    """
    try:
        import onnx
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        raise MissingExtra("to_onnx needs the package onnx", "onnx") from None
    phi = map_of(head, phi)
    require_scaler(head.fingerprint, scaler.fingerprint_ if scaler is not None else None)
    size = 4 * head.out_features * (phi.in_features + len(head.classes))
    if size > MAX_BYTES:
        raise ValueError(f"the model would have {size} bytes; ONNX files hold less than 2 GiB")
    constants = {"weights": to_numpy(head.weights)}
    nodes: list[Any] = []

    def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(name: str, value: Any) -> str:
        constants[name] = np.asarray(value)
        return name

    rows = "features"
    if scaler is not None:
        mean = constant("mean", scaler.mean_.astype(np.float32))
        rows = node("Sub", [rows, mean], "minus_mean")
        rows = node("Div", [rows, constant("scale", scaler.scale_.astype(np.float32))], "standard")
    if phi.kind == "hellinger":
        rows = node("Sqrt", [rows], "roots")
    if phi.bias:
        pads = constant("pads", np.array([0, 0, 0, 1], dtype=np.int64))
        root = constant("root_of_d", np.float32(math.sqrt(phi.in_features)))
        rows = node("Pad", [rows, pads, root], "with_bias")
    if phi.kind != "relu":  # unit norm, by the largest value first, so that no square overflows
        axis = constant("axis", np.array([1], dtype=np.int64))
        zero, one = constant("zero", np.float32(0)), constant("one", np.float32(1))
        absolute = node("Abs", [rows], "absolute")
        for step, reduce in (("largest", "ReduceMax"), ("norm", "ReduceL2")):
            length = node(reduce, [absolute, axis], step, keepdims=1)
            some = node("Greater", [length, zero], f"{step}_is_positive")
            divisor = node("Where", [some, length, one], f"{step}_or_one")
            rows = node("Div", [rows, divisor], f"by_{step}")
            absolute = rows
    H = rows
    if phi.projected:
        H = node("MatMul", [rows, constant("projection", phi.projection)], "projected")
    if phi.projected and phi.kind == "relu":
        H = node("Relu", [H], "random_features")
    elif phi.projected:  # GELU(x) = x (1 + erf(x / sqrt 2)) / 2
        scaled = node("Mul", [H, constant("root_of_half", np.float32(math.sqrt(0.5)))], "scaled")
        plus_one = node("Add", [node("Erf", [scaled], "erf"), "one"], "erf_plus_one")
        normal = node("Mul", [plus_one, constant("half", np.float32(0.5))], "normal_cdf")
        H = node("Mul", [H, normal], "random_features")
    node("MatMul", [H, "weights"], "scores")
    best = node("ArgMax", ["scores"], "best", axis=1, keepdims=0)
    numbers = all(isinstance(c, int) for c in head.classes)
    names = np.array(head.classes) if numbers else np.array([str(c) for c in head.classes])
    constants["classes"] = names.astype(np.int64 if numbers else object)
    node("Gather", ["classes", best], "label")
    n, C = "n", len(head.classes)
    kind = TensorProto.INT64 if numbers else TensorProto.STRING
    outputs = [
        helper.make_tensor_value_info("label", kind, [n]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [n, C]),
    ]
    if head.calibration is not None and head.calibration.total:
        T = constant("temperature", np.float32(head.calibration.temperature))
        node("Softmax", [node("Div", ["scores", T], "cooled")], "probabilities", axis=1)
        outputs.append(helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [n, C]))
    graph = helper.make_graph(
        nodes,
        "fedran",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, [n, phi.in_features])],
        outputs,
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opset, producer_name="fedran")
    model.ir_version = IR_VERSION
    fields = dict(head.fingerprint.fields) if head.fingerprint else {}
    meta = {"classes": json.dumps(list(head.classes)), "fingerprint": json.dumps(fields)}
    helper.set_model_props(model, meta)
    onnx.checker.check_model(model)
    return model.SerializeToString()
