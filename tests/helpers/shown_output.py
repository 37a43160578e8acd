"""What a page shows beside what its code prints."""

import re

import numpy as np

DECIMAL = re.compile(r"\d+\.\d+")


def assert_same_output(printed, shown, **tolerance):
    """Text and whole numbers are equal. Decimals may differ: another BLAS rounds otherwise."""
    assert DECIMAL.sub("#", printed).strip() == DECIMAL.sub("#", shown).strip()
    now, then = (np.float64(DECIMAL.findall(text)) for text in (printed, shown))
    np.testing.assert_allclose(now, then, **tolerance)
