"""Checks that honest summaries always pass: their accounts, factor and class sums fit together.

``check_summary`` holds for every summary, ``check_row_energy`` where the feature map says more.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from fedran.core._linalg.arrays import to_numpy
from fedran.core.errors import Refused
from fedran.core.features import largest_row_norm, row_energy_range

if TYPE_CHECKING:
    from fedran.core.summary import Summary

ENERGY_SLACK = 1e-4
"""Relative tolerance for rounding in the checks of factor and class sums against the energy."""


def check_summary(summary: Summary) -> None:
    """Refuse a summary whose numbers cannot describe real rows.

    All values are finite, counts are positive and add up to at most ``n_rows``, a centred
    factor has at most ``n_rows`` minus the number of classes columns, cut <= M eps_G, and
    ||F||^2 + cut = energy, where a centred summary adds sum_c ||b_c||^2 / n_c on the left.
    Without centring that sum is at most the energy (Cauchy-Schwarz). Where the feature map
    bounds the norm of a row by R, energy <= n_rows R^2 and ||b_c|| <= n_c R. Limits are per row, so
    every row counts once.
    """
    acc, counts = summary.accounts, summary.counts
    for field in fields(acc):
        value = getattr(acc, field.name)
        if not (math.isfinite(value) and value >= 0):
            raise Refused(f"accounts.{field.name}", "a finite number, at least 0", value)
    if summary.sums.weights is not None or acc.weight_excess:
        raise Refused(
            "weights", "rows that count once", "weighted rows", hint="repeat rows instead"
        )
    if acc.n_rows == 0 and acc.energy > 0:
        raise Refused("accounts.energy", "0 where n_rows is 0", acc.energy)
    if not min(acc.n_rows, 1) <= acc.parts <= acc.n_rows:
        raise Refused("accounts.parts", f"1 to n_rows = {acc.n_rows}", acc.parts)
    if any(n < 1 for n in counts):
        raise Refused("counts", "at least one row for every class listed", min(counts))
    if sum(counts) > acc.n_rows:
        raise Refused("counts", f"at most n_rows = {acc.n_rows} in all", sum(counts))
    free = acc.n_rows - (len(summary.classes) if summary.center else 0)
    if summary.rank > free:
        what = "n_rows - classes" if summary.center else "n_rows"
        raise Refused("rank", f"at most {what} = {free}", summary.rank)
    _check_energy(summary)
    largest = None if summary.fingerprint is None else largest_row_norm(summary.fingerprint)
    if largest is not None:
        _check_row_norms(summary, largest)
    if max(acc.eta_loc, acc.eta_merge) > 1 + ENERGY_SLACK:
        raise Refused("accounts", "eta_loc and eta_merge of at most 1", "larger shares")
    least = (acc.cut - ENERGY_SLACK * acc.energy) / summary.out_features
    if acc.eps_G < least:
        raise Refused("accounts.eps_G", f"at least cut / M = {least:.6g}", acc.eps_G)


def _check_energy(summary: Summary) -> None:
    """The squared norms of the factor and the class sums, and what was cut, are the energy."""
    acc = summary.accounts
    with np.errstate(over="ignore", invalid="ignore"):
        held = float(np.sum(summary.sigma**2))
        norms = np.linalg.norm(to_numpy(summary.class_sums), axis=0)
        between = float(np.sum(norms**2 / np.asarray(summary.counts)))
    if not math.isfinite(held):
        raise Refused("factor", "finite values", "NaN or infinity")
    if not np.all(np.isfinite(norms)):
        raise Refused("class_sums", "finite values", "NaN, infinity or beyond float64")
    # The wire format keeps every ||b_c||, so eps_B excuses nothing.
    if between > acc.energy * (1 + ENERGY_SLACK):
        raise Refused(
            "class_sums",
            f"sums that energy {acc.energy:.6g} and the counts allow",
            f"sums that need {between:.6g}",
        )
    total, parts = held + acc.cut, "||F||^2 + cut"
    if summary.center:
        total, parts = total + between, f"{parts} + sum_c ||b_c||^2 / n_c"
    if not abs(total - acc.energy) <= ENERGY_SLACK * acc.energy:
        raise Refused("accounts.energy", f"{parts} = {total:.6g}", f"{acc.energy:.6g}")


def _check_row_norms(summary: Summary, largest: float) -> None:
    """Energy and class sums are at most those of rows of this norm."""
    acc = summary.accounts
    if acc.energy > acc.n_rows * largest**2 * (1 + ENERGY_SLACK):
        expected = f"at most {largest**2:.6g} per row, as rows of this feature map have"
        raise Refused("accounts.energy", expected, f"{acc.mean_row_energy:.6g}")
    norms = np.linalg.norm(to_numpy(summary.class_sums), axis=0) / np.asarray(summary.counts)
    if np.any(norms > largest * (1 + ENERGY_SLACK)):
        c = int(np.argmax(norms))
        raise Refused(
            "class_sums",
            f"a norm of at most n_c {largest:.6g}, as rows of this feature map have",
            f"{norms[c]:.6g} per row of class {summary.classes[c]!r}",
        )


def check_row_energy(summary: Summary) -> None:
    """Refuse more energy or larger class sums than rows of the feature map can have."""
    energies = None if summary.fingerprint is None else row_energy_range(summary.fingerprint)
    if energies is not None:
        _check_row_norms(summary, math.sqrt(energies[1]))
