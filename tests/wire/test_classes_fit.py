"""A server accepts only as many classes as readers of its head accept."""

import numpy as np
import pytest

import fedran
from fedran.core.solve.head import Diagnosis
from fedran.wire.head_codec import classes_fit
from fedran.wire.validation import Limits


def reads(classes, M, limits):
    """Whether a head of these classes can be encoded and decoded."""
    names = dict.fromkeys(Diagnosis.__dataclass_fields__, 0.0)
    diagnosis = Diagnosis(**{**names, "route": "", "n_rows": 1})
    head = fedran.Head(np.ones((M, len(classes)), np.float32), tuple(classes), diagnosis, None)
    try:
        fedran.decode(fedran.encode(head), fedran.Head, limits=limits)
    except fedran.Refused:
        return False
    return True


@pytest.mark.parametrize(
    "limits",
    [
        Limits(decoded=40_000),
        Limits(classes=30),
        Limits(header=2**16 + 500),
        Limits(message=2**16 + 8000),
    ],
    ids=["decoded", "classes", "header", "message"],
)
@pytest.mark.parametrize("name", ["{}", "\u00e9" * 40 + "{}"], ids=["short", "long"])
def test_classes_that_fit_can_be_read(limits, name):
    M, found = 48, []
    for count in range(1, 140, 3):
        classes = sorted(name.format(n) for n in range(count))
        found.append(classes_fit(classes, M, limits))
        assert not found[-1] or reads(classes, M, limits)
    assert True in found
    assert False in found
