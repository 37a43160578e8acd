"""Change the uploads of methods, for tests that attack their servers."""

import numpy as np

from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.registry import make_method, settings

SMALL = {"out_features": 24, "rank": 12, "dummies": 4, "rows_per_class": 50, "min_group": 1}
SMALL |= {"layers": 2, "members": 2}
NAN, INF = float("nan"), float("inf")


def altered(blob, /, kind=None, **changes):
    """The message with some fields or tensors replaced (None: removed) and a valid checksum."""
    message = unpack(blob, FILE_LIMITS)
    fields = dict(message.header.fields)
    tensors = dict(message.tensors)
    for name, value in changes.items():
        where = tensors if name in tensors or isinstance(value, np.ndarray) else fields
        found = value(where[name]) if callable(value) else value
        where.pop(name) if found is None else where.update({name: found})
    for name in ("format", "version"):
        fields.pop(name)
    own = fields.pop("kind")
    return pack(kind or own, fields, tensors)


def frozen(value):
    """A state as plain values that can be compared bit for bit."""
    if isinstance(value, dict):
        return {k: frozen(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [frozen(v) for v in value]
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if hasattr(value, "__dict__"):
        return type(value).__name__, frozen(vars(value))
    return value if isinstance(value, (int, float, str, bytes, type(None))) else repr(type(value))


def at_first(value):
    """A change that replaces the first entry of a tensor."""

    def change(tensor):
        copy = tensor.copy()
        copy.flat[0] = value
        return copy

    return change


def make(key):
    """A method with small settings."""
    return make_method(key, {k: v for k, v in SMALL.items() if k in settings(key)})
