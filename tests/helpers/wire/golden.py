"""Regenerate the golden messages: PYTHONPATH=src:tests python -m helpers.wire.golden

Only for a new version of the format, because the files pin the output of older versions. The
numbers are chosen so that the float forms are exact on every machine: powers of two where
something is divided or rounded.
"""

import numpy as np

import fedran
from fedran.core.sums.class_sums import ClassSums
from helpers.wire.messages import FIXTURES, PRECISIONS, to_text

PRINT = fedran.Fingerprint.of(backbone="golden", d=3, seed=7, scaled=True, note=None, gain=0.5)
KERNEL_PRINT = fedran.KernelFeatures(4, source="golden").fingerprint
CLASSES = (-3, 12, "ant", "été")
COUNTS = (4, 4, 1, 1)
BITS = 7.0


def float_factor() -> np.ndarray:
    """(16, 3): sigma 16, 4, 1 and directions of +-1/2."""
    F = np.zeros((16, 3))
    F[0:4, 0] = 8
    F[0:4, 1] = [2, -2, 2, -2]
    F[12:16, 2] = [0.5, 0.5, -0.5, -0.5]
    return F


def coded_factor() -> np.ndarray:
    """(6, 3): sigma 112, 28, 7 and directions (2, 3, 6) / 7, (3, -6, 2) / 7, (6, 2, -3) / 7."""
    F = np.zeros((6, 3))
    F[0:3, 0] = [32, 48, 96]
    F[0:3, 1] = [12, -24, 8]
    F[3:6, 2] = [6, 2, -3]
    return F


def class_sums(M: int) -> np.ndarray:
    """(M, 4): columns that count in halves, alternate, vanish and are constant."""
    k = np.arange(M)
    columns = [(k - 8) / 2, np.where(k % 2, 2.0, -1.0), np.zeros(M), np.full(M, -0.25)]
    return np.stack(columns, axis=1)


def between(M: int) -> float:
    """sum_c ||b_c||^2 / n_c of these sums: 32.5 for M = 16, 16.5625 for M = 6."""
    return float(np.sum(class_sums(M) ** 2 / COUNTS))


def golden_summary(precision: str, center: str | None = "class") -> fedran.Summary:
    F = coded_factor() if precision == "mixed" else float_factor()
    energy = float(np.sum(F**2)) + 64.0 + (between(len(F)) if center else 0.0)
    accounts = fedran.Accounts(
        n_rows=11,
        parts=1,
        energy=energy,
        cut=64.0,
        eps_G=48.0,
        eps_G_fro=56.0,
        eta_loc=64.0 / energy,
    )
    sums = ClassSums(CLASSES, class_sums(len(F)), COUNTS)
    return fedran.Summary(F, sums, accounts, PRINT, center)


def golden_head() -> fedran.Head:
    weights = (np.arange(12).reshape(4, 3) - 4).astype(np.float32) / 8
    diagnosis = fedran.Diagnosis("by hand", 2.5, 0.125, 9, 3.0, 10.0, 0.0, 0.75, 1.5)
    return fedran.Head(weights, (5, "ant", "été"), diagnosis, PRINT)


def golden_points() -> fedran.Points:
    """Three classes, groups of 1 to 3 rows, means in eighths, rounded to eighths."""
    means = np.array([[4, -4, 2, 1], [0, 7, 0, -3], [8, 0, 0, 0], [-1, -1, -1, 2], [0, 0, 5, 4]])
    return fedran.Points(
        CLASSES[1:],
        np.array([0, 0, 1, 1, 2]),
        (means / 8).astype(np.float32),
        np.array([3, 2, 1, 2, 3]),
        KERNEL_PRINT,
        deviation=np.full(4, 0.125),
    )


def golden_kernel_head() -> fedran.Head:
    """Two landmarks in eighths, weights in eighths."""
    landmarks = (np.array([[4, -4, 2, 1], [0, 7, 0, -3]]) / 8).astype(np.float32)
    weights = (np.arange(6).reshape(2, 3) - 4).astype(np.float32) / 8
    diagnosis = fedran.Diagnosis(
        "by hand", 0.03, 0.0, 9, 3.0, 10.0, 0.0, agreement=0.75, largest_group=1
    )
    classes = (5, "ant", "été")
    return fedran.Head(weights, classes, diagnosis, KERNEL_PRINT, landmarks=landmarks, scale=0.25)


def golden_aggregator_of_points() -> fedran.Aggregator:
    """One upload."""
    agg = fedran.Aggregator(fingerprint=KERNEL_PRINT)
    agg.absorb(fedran.decode(fedran.encode(golden_points())), **WHO[0])
    return agg


def golden_aggregator(form: str) -> fedran.Aggregator:
    """``stack``: one upload, uncentred; ``gram``: two."""
    agg = fedran.Aggregator(16)
    first = golden_summary("float32", None if form == "stack" else "class")
    agg.absorb(fedran.decode(fedran.encode(first, "float32")), **WHO[0])
    if form != "stack":
        agg.absorb(fedran.decode(fedran.encode(golden_summary("float64"), "float64")), **WHO[1])
    return agg


WHO = [{"client": "site-1", "task": "may"}, {"client": "site-2", "task": "june.2"}]


def messages() -> dict[str, bytes]:
    made = {p: fedran.encode(golden_summary(p), p, bits=BITS) for p in PRECISIONS}
    made["uncentred"] = fedran.encode(golden_summary("float32", None), "float32")
    made["head"] = fedran.encode(golden_head())
    made["points"] = fedran.encode(golden_points())
    made["kernel_head"] = fedran.encode(golden_kernel_head())
    made["aggregator_points"] = fedran.encode(golden_aggregator_of_points())
    for form in ("stack", "gram"):
        made[f"aggregator_{form}"] = fedran.encode(golden_aggregator(form))
    return made


if __name__ == "__main__":
    FIXTURES.mkdir(exist_ok=True)
    for name, blob in messages().items():
        (FIXTURES / f"{name}.txt").write_text(to_text(blob))
