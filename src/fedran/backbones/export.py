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

    def unit(x: torch.Tensor, _: None) -> torch.Tensor:
        largest = torch.amax(torch.abs(x), dim=1, keepdim=True)
        x = x / torch.where(largest > 0, largest, 1.0)
        norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        return x / torch.where(norms > 0, norms, 1.0)

    do: dict[str, Any] = {
        "Sub": lambda x, value: x - value,
        "Div": lambda x, value: x / value,
        "MatMul": lambda x, value: x @ value,
        "Pad": lambda x, value: torch.cat([x, value.expand(len(x), 1)], dim=1),
        "Sqrt": lambda x, _: torch.sqrt(x),
        "Exp": lambda x, _: torch.exp(x),
        "Relu": lambda x, _: torch.relu(x),
        "Gelu": lambda x, _: torch.nn.functional.gelu(x),
        "Unit": unit,
    }

    class Step(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, name: str, value: NDArray[np.float32] | None) -> None:
            super().__init__()
            self.name = name
            tensor = None if value is None else torch.nn.Parameter(torch.tensor(value))
            self.register_parameter("value", tensor)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return do[self.name](x, self.value)

    steps = [Step(name, value) for name, value in _steps(head, phi, scaler)]
    module = torch.nn.Sequential(*steps).requires_grad_(False)
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


def _steps(
    head: Head, phi: FeatureMap, scaler: FederatedScaler | None
) -> list[tuple[str, NDArray[np.float32] | None]]:
    """All that is done to rows: operations, named as in ONNX where it has them, and constants.

    What the feature map refuses becomes NaN. A scaler must be that of the head, with its columns in
    the same order.
    """
    require_scaler(head.fingerprint, scaler.fingerprint_ if scaler is not None else None)
    require_columns(head.fingerprint, list(getattr(scaler, "feature_names_in_", ())), "scaler")
    found: list[tuple[str, Any]] = []
    if scaler is not None:
        found += [("Sub", scaler.mean_), ("Div", scaler.scale_)]
    if phi.kind == "hellinger":
        found.append(("Sqrt", None))
    if phi.bias:
        found.append(("Pad", math.sqrt(phi.in_features)))
    if phi.kind != "relu":
        found.append(("Unit", None))
    if head.landmarks is not None:  # exp((inner product - 1) / scale)
        found.append(("MatMul", to_numpy(head.landmarks).T))
        found += [("Sub", 1.0), ("Div", head.scale), ("Exp", None)]
    elif isinstance(phi, RandomFeatures) and phi.projected:
        found += [("MatMul", phi.projection), ("Relu" if phi.kind == "relu" else "Gelu", None)]
    found.append(("MatMul", to_numpy(head.weights)))
    return [(name, None if v is None else np.array(v, np.float32)) for name, v in found]


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
    n, C = "n", len(head.classes)
    size = 4 * head.weights.shape[0] * (phi.in_features + C)
    if size > MAX_BYTES:
        raise ValueError(f"the model would have {size} bytes; ONNX files hold less than 2 GiB")
    rows, net = "features", _Nodes({})
    net.constant("zero", np.float32(0))
    net.constant("one", np.float32(1))
    for number, (name, value) in enumerate(_steps(head, phi, scaler)):
        rows = _add_step(net, f"{name}_{number}", name, rows, value)
    net.node("Identity", [rows], "scores")
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


def _add_step(
    net: _Nodes, output: str, name: str, rows: str, value: NDArray[np.float32] | None
) -> str:
    """Add the nodes of a step after the value ``rows``."""
    if name == "Pad":
        pads = net.constant("pads", np.array([0, 0, 0, 1], dtype=np.int64))
        return net.node(name, [rows, pads, net.constant("root_of_d", value)], output)
    if name == "Unit":  # by the largest value first, so that no square overflows
        axis = net.constant("axis", np.array([1], dtype=np.int64))
        absolute = net.node("Abs", [rows], "absolute")
        for step, reduce in (("largest", "ReduceMax"), ("norm", "ReduceL2")):
            length = net.node(reduce, [absolute, axis], step, keepdims=1)
            some = net.node("Greater", [length, "zero"], f"{step}_is_positive")
            divisor = net.node("Where", [some, length, "one"], f"{step}_or_one")
            rows = absolute = net.node("Div", [rows, divisor], f"by_{step}")
        return rows
    if name == "Gelu":  # x (1 + erf(x / sqrt 2)) / 2
        root = net.constant("root_of_half", np.float32(math.sqrt(0.5)))
        erf = net.node("Erf", [net.node("Mul", [rows, root], "scaled")], "erf")
        plus_one = net.node("Add", [erf, "one"], "erf_plus_one")
        normal = net.node("Mul", [plus_one, net.constant("half", np.float32(0.5))], "normal_cdf")
        return net.node("Mul", [rows, normal], output)
    more = [] if value is None else [net.constant(f"{output}_value", value)]
    return net.node(name, [rows, *more], output)


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
