"""Rows have the shape of features or images, and one label each."""

import numpy as np
import pytest

from fedran.core.errors import Refused
from fedran.data.rows import Rows


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (np.zeros((2, 3, 4)), [0, 1], "rows: expected features"),
        (np.zeros((2, 4, 4, 3)), [0, 1], "rows: expected features"),
        (np.zeros((2, 3)), [0], "labels: expected 2, one per row"),
    ],
)
def test_rows_of_a_wrong_shape_or_with_too_few_labels_are_refused(X, y, words):
    with pytest.raises(Refused, match=words):
        Rows(X, y)
