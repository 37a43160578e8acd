"""A feature map and a head as one torch module, or as one ONNX model."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import to_numpy
from fedran.core.errors import MissingExtra
from fedran.core.features import FeatureMap, RandomFeatures, feature_map
from fedran.core.fingerprint import require_columns, require_same, require_scaler
from fedran.core.prepare import KernelFeatures
from fedran.core.solve.head import Head

if TYPE_CHECKING:
    import torch

    from fedran.scaler import FederatedScaler

OPSET, IR_VERSION = 18, 9
MAX_BYTES = 2**31 - 2**20
"""A protocol buffer holds less than 2 GiB."""
NO_NUMBER = -(2**63)
"""The label of a row with NaN scores where labels are numbers: what NumPy makes of NaN."""


def to_torch(
    head: Head, phi: FeatureMap | None = None, scaler: FederatedScaler | None = None
) -> torch.nn.Module:
    """A frozen ``torch.nn.Sequential``: backbone features Z (n, d) in, scores (n, C) out.

    Column j of the output scores ``module.classes[j]``. It holds P or the landmarks, and W, as
    parameters that do not require gradients, so it can be put behind a backbone, moved and
    exported. ``phi`` is by default the feature map that the head's fingerprint describes. A head
    that was fitted on scaled rows needs its ``scaler``, which becomes the first step.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtra("to_torch needs PyTorch", "torch") from None
    phi = map_of(head, phi)
    _check_scaler(head, scaler)
    layers = [_linear(to_numpy(head.weights))]
    if head.landmarks is not None:
        layers[:0] = [_linear(to_numpy(head.landmarks).T), _kernel(head.scale)]
    elif isinstance(phi, RandomFeatures) and phi.projected:
        activation = torch.nn.ReLU() if phi.kind == "relu" else torch.nn.GELU()
        layers[:0] = [_linear(phi.projection), activation]
    if phi.kind != "relu" or phi.bias:
        layers.insert(0, _prepare(phi))
    if scaler is not None:
        layers.insert(0, _scale(scaler))
    module = torch.nn.Sequential(*layers).requires_grad_(False)
    module.classes = head.classes
    return module


def map_of(head: Head, phi: FeatureMap | None) -> FeatureMap:
    """The feature map of a head: ``phi`` if it fits, or that of the head's fingerprint."""
    if not isinstance(head, Head):
        got = type(head).__name__
        raise TypeError(f"head must be a Head, got {got}; an estimator has one, clf.head_")
    if phi is None:
        if head.fingerprint is None:
            raise ValueError("the head does not identify its feature map; pass phi")
        phi = feature_map(head.fingerprint)
    kind = RandomFeatures if head.landmarks is None else KernelFeatures
    if not isinstance(phi, kind):
        raise TypeError(f"phi must be a {kind.__name__}, got {type(phi).__name__}")
    if head.fingerprint is not None:
        require_same(phi.fingerprint, head.fingerprint, "feature map and head")
    width = phi.out_features if isinstance(phi, RandomFeatures) else phi.width
    if head.out_features != width:
        raise ValueError(f"phi makes {width} features, the head takes {head.out_features}")
    return phi


def _check_scaler(head: Head, scaler: FederatedScaler | None) -> None:
    """Refuse another scaler than that of the head, or one with its columns in another order."""
    require_scaler(head.fingerprint, scaler.fingerprint_ if scaler is not None else None)
    names = list(getattr(scaler, "feature_names_in_", ()))
    require_columns(head.fingerprint, names, "scaler")


def _prepare(phi: FeatureMap) -> torch.nn.Module:
    """``phi.prepare`` as a layer, without its refusal: a negative value gives NaN under a root."""
    import torch

    class Prepare(torch.nn.Module):  # type: ignore[misc]
        hellinger: bool = phi.kind == "hellinger"
        unit_norm: bool = phi.kind != "relu"
        bias: bool = phi.bias
        constant: float = phi.in_features**0.5

        def forward(self, Z: torch.Tensor) -> torch.Tensor:
            if self.hellinger:
                Z = torch.sqrt(Z)
            if self.bias:
                Z = torch.nn.functional.pad(Z, [0, 1], value=self.constant)
            if self.unit_norm:
                largest = torch.amax(torch.abs(Z), dim=1, keepdim=True)
                Z = Z / torch.where(largest > 0, largest, 1.0)
                norms = torch.linalg.vector_norm(Z, dim=1, keepdim=True)
                Z = Z / torch.where(norms > 0, norms, 1.0)
            return Z

    return Prepare()


def _kernel(scale: float) -> torch.nn.Module:
    """The kernel of unit rows as a layer, from their inner products with the landmarks."""
    import torch

    class Kernel(torch.nn.Module):  # type: ignore[misc]
        def forward(self, inner: torch.Tensor) -> torch.Tensor:
            return torch.exp((inner - 1) / scale)

    return Kernel()


def _scale(scaler: FederatedScaler) -> torch.nn.Module:
    """``scaler.transform`` as a layer."""
    import torch

    class Scale(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.asarray(scaler.mean_, dtype=torch.float32))
            self.register_buffer("scale", torch.asarray(scaler.scale_, dtype=torch.float32))

        def forward(self, X: torch.Tensor) -> torch.Tensor:
            return (X - self.mean) / self.scale

    return Scale()


def _linear(matrix: NDArray[Any]) -> torch.nn.Linear:
    import torch

    layer = torch.nn.Linear(*matrix.shape, bias=False)
    layer.weight.data = torch.from_numpy(np.ascontiguousarray(matrix.T, dtype=np.float32))
    return layer


def to_onnx(
    head: Head, phi: FeatureMap | None = None, scaler: FederatedScaler | None = None
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
    The file has 4 M (d + C) bytes, where M is the number of random features or landmarks. Values
    that the feature map refuses are not refused by the model: NaN, and negative values under
    ``kind="hellinger"``, give NaN scores. The label of such a row is "", or -2^63 where labels are
    numbers. Rows are float32: a column whose mean is far larger than its spread loses digits
    before it is scaled, so subtract a constant first.

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
    _check_scaler(head, scaler)
    n, C = "n", len(head.classes)
    size = 4 * head.weights.shape[0] * (phi.in_features + C)
    if size > MAX_BYTES:
        raise ValueError(f"the model would have {size} bytes; ONNX files hold less than 2 GiB")
    net = _Nodes({"weights": to_numpy(head.weights)})
    rows = "features" if scaler is None else _add_scaler(net, scaler, "features")
    rows = _add_preparation(net, phi, rows)
    if isinstance(phi, RandomFeatures):
        rows = _add_random_features(net, phi, rows)
    else:
        rows = _add_kernel(net, head, rows)
    net.node("MatMul", [rows, "weights"], "scores")
    _add_label(net, head)
    numbers = net.constants["classes"].dtype == np.int64
    outputs = [
        helper.make_tensor_value_info(
            "label", TensorProto.INT64 if numbers else TensorProto.STRING, [n]
        ),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [n, C]),
    ]
    if head.calibration is not None and head.calibration.total:
        T = net.constant("temperature", np.float32(head.calibration.temperature))
        net.node("Softmax", [net.node("Div", ["scores", T], "cooled")], "probabilities", axis=1)
        outputs.append(helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [n, C]))
    graph = helper.make_graph(
        net.nodes,
        "fedran",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, [n, phi.in_features])],
        outputs,
        [numpy_helper.from_array(np.asarray(a), name) for name, a in net.constants.items()],
    )
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opset, producer_name="fedran")
    model.ir_version = IR_VERSION
    fields = dict(head.fingerprint.fields) if head.fingerprint else {}
    meta = {"classes": json.dumps(list(head.classes)), "fingerprint": json.dumps(fields)}
    helper.set_model_props(model, meta)
    onnx.checker.check_model(model)
    return model.SerializeToString()


@dataclass
class _Nodes:
    """Nodes and constants of an ONNX graph. The functions below add nodes after a named value."""

    constants: dict[str, NDArray[Any]]
    nodes: list[Any] = field(default_factory=list)

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, name: str, value: Any) -> str:
        self.constants[name] = np.asarray(value)
        return name


def _add_scaler(net: _Nodes, scaler: FederatedScaler, rows: str) -> str:
    mean = net.constant("mean", scaler.mean_.astype(np.float32))
    scale = net.constant("scale", scaler.scale_.astype(np.float32))
    return net.node("Div", [net.node("Sub", [rows, mean], "minus_mean"), scale], "standard")


def _add_preparation(net: _Nodes, phi: FeatureMap, rows: str) -> str:
    if phi.kind == "hellinger":
        rows = net.node("Sqrt", [rows], "roots")
    if phi.bias:
        pads = net.constant("pads", np.array([0, 0, 0, 1], dtype=np.int64))
        root = net.constant("root_of_d", np.float32(math.sqrt(phi.in_features)))
        rows = net.node("Pad", [rows, pads, root], "with_bias")
    if phi.kind == "relu":
        return rows
    # Unit norm, by the largest value first, so that no square overflows.
    axis = net.constant("axis", np.array([1], dtype=np.int64))
    zero, one = net.constant("zero", np.float32(0)), net.constant("one", np.float32(1))
    absolute = net.node("Abs", [rows], "absolute")
    for step, reduce in (("largest", "ReduceMax"), ("norm", "ReduceL2")):
        length = net.node(reduce, [absolute, axis], step, keepdims=1)
        some = net.node("Greater", [length, zero], f"{step}_is_positive")
        divisor = net.node("Where", [some, length, one], f"{step}_or_one")
        rows = absolute = net.node("Div", [rows, divisor], f"by_{step}")
    return rows


def _add_random_features(net: _Nodes, phi: RandomFeatures, rows: str) -> str:
    if not phi.projected:
        return rows
    H = net.node("MatMul", [rows, net.constant("projection", phi.projection)], "projected")
    if phi.kind == "relu":
        return net.node("Relu", [H], "random_features")
    # GELU(x) = x (1 + erf(x / sqrt 2)) / 2
    root = net.constant("root_of_half", np.float32(math.sqrt(0.5)))
    erf = net.node("Erf", [net.node("Mul", [H, root], "scaled")], "erf")
    plus_one = net.node("Add", [erf, "one"], "erf_plus_one")
    normal = net.node("Mul", [plus_one, net.constant("half", np.float32(0.5))], "normal_cdf")
    return net.node("Mul", [H, normal], "random_features")


def _add_kernel(net: _Nodes, head: Head, rows: str) -> str:
    landmarks = net.constant("landmarks", np.ascontiguousarray(to_numpy(head.landmarks).T))
    minus_one = net.node("Sub", [net.node("MatMul", [rows, landmarks], "inner"), "one"], "below_0")
    width = net.constant("kernel_scale", np.float32(head.scale))
    return net.node("Exp", [net.node("Div", [minus_one, width], "exponent")], "kernel")


def _add_label(net: _Nodes, head: Head) -> None:
    """The label with the largest score, or the label of no class where scores are NaN."""
    best = net.node("ArgMax", ["scores"], "best", axis=1, keepdims=0)
    columns = net.constant("columns", np.array([1], dtype=np.int64))
    total = net.node("ReduceSum", ["scores", columns], "total", keepdims=0)
    refused = net.node("IsNaN", [total], "refused")
    no_class = net.constant("no_class", np.int64(len(head.classes)))
    best = net.node("Where", [refused, no_class, best], "best_or_none")
    numbers = all(isinstance(c, int) for c in head.classes)
    names = [*head.classes, NO_NUMBER] if numbers else [*map(str, head.classes), ""]
    classes = np.array(names, dtype=np.int64 if numbers else object)
    net.node("Gather", [net.constant("classes", classes), best], "label")
