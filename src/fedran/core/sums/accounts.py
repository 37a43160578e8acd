"""Accounts of a summary: how many rows and how much energy, and what was lost."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Accounts:
    """What is known about the error of a summary's Gram G~ against the exact Gram G = H'H.

    G~ is F F', plus the between-class part where the summary is class-centred. ``+`` adds the
    fields or takes their maximum, as each comment says. The error bounds cover truncation and
    quantisation. Floating-point rounding (unit roundoff times the norm of G) is not included.
    """

    n_rows: int = 0
    """Rows of H that are described (labelled or not). Adds."""
    energy: float = 0.0
    """||H||_F^2, before any loss. Adds."""
    cut: float = 0.0
    """Trace discarded by truncation, at clients and in merges; the ridge depends on it. Adds."""
    eps_G: float = 0.0
    """Bound on ||G - G~||_2, truncation and quantisation. Adds (triangle inequality)."""
    eps_G_fro: float = 0.0
    """The same in the Frobenius norm. Adds."""
    eps_quant: float = 0.0
    """The part of ``eps_G`` that is due to quantisation, or to noise that was added. Adds."""
    eps_B: float = 0.0
    """Bound on the Frobenius error of the class sums (quantisation). Adds."""
    eta_loc: float = 0.0
    """Largest share of its energy that any client truncated (the paper's eta_loc). Maximum."""
    eta_merge: float = 0.0
    """Largest share of the trace that any merge truncated (eta_merge). Maximum."""
    merges: int = 0
    """Largest number of truncating merges of any client's summary (L_t), those of its own batches
    included. Maximum."""
    parts: int = 0
    """Sets of rows that were summarized on their own: 1 for a client's summary. Adds."""
    weight_excess: float = 0.0
    """Sum of the weights of the rows minus their number; 0 where each row counts once. Adds."""

    def __add__(self, other: Accounts) -> Accounts:
        combine = {
            f.name: max(getattr(self, f.name), getattr(other, f.name))
            if f.name in _MAXIMA
            else getattr(self, f.name) + getattr(other, f.name)
            for f in fields(self)
        }
        return Accounts(**combine)

    def __sub__(self, other: Accounts) -> Accounts:
        """What remains of a sum without one of its parts. Maxima are kept: they still hold."""
        rest = {
            f.name: getattr(self, f.name)
            if f.name in _MAXIMA
            else max(0, getattr(self, f.name) - getattr(other, f.name))
            for f in fields(self)
        }
        rest["weight_excess"] = self.weight_excess - other.weight_excess  # may be negative
        return Accounts(**rest)

    @property
    def cut_fraction(self) -> float:
        """f = cut / energy, the share of the feature energy that truncation removed."""
        return self.cut / self.energy if self.energy > 0 else 0.0

    @property
    def weight(self) -> float:
        """Sum of the weights of the rows: their number where each counts once."""
        return self.n_rows + self.weight_excess

    @property
    def mean_row_energy(self) -> float:
        """Mean of ||h||^2 over the rows, weighted."""
        return self.energy / self.weight if self.weight > 0 else 0.0

    @property
    def rows_per_part(self) -> float:
        """Mean number of rows of the summaries, weighted."""
        return self.weight / self.parts if self.parts else 0.0

    def after_local_cut(self, lost: Loss) -> Accounts:
        """The accounts of one client after it truncated its own factor."""
        cut = replace(self._after(lost), parts=max(self.parts, min(self.n_rows, 1)))
        return replace(cut, eta_loc=max(self.eta_loc, cut.cut_fraction))

    def after_merge_cut(self, lost: Loss) -> Accounts:
        """The accounts after a merge (or any later truncation) discarded ``lost``."""
        if lost.trace <= 0:
            return self
        merged_trace = max(self.energy - self.cut, lost.trace)
        return replace(
            self._after(lost),
            eta_merge=max(self.eta_merge, lost.trace / merged_trace),
            merges=self.merges + 1,
        )

    def after_quantisation(self, spectral: float, frobenius: float, sums: float) -> Accounts:
        """The accounts after the factor and the class sums were rounded for the wire."""
        return replace(
            self,
            eps_G=self.eps_G + spectral,
            eps_G_fro=self.eps_G_fro + frobenius,
            eps_quant=self.eps_quant + spectral,
            eps_B=self.eps_B + sums,
        )

    def _after(self, lost: Loss) -> Accounts:
        return replace(
            self,
            cut=min(self.cut + lost.trace, self.energy),
            eps_G=self.eps_G + lost.spectral,
            eps_G_fro=self.eps_G_fro + lost.frobenius,
        )


_MAXIMA = frozenset({"eta_loc", "eta_merge", "merges"})


@dataclass(frozen=True, slots=True)
class Loss:
    """What one truncation discarded: three norms of the (positive semidefinite) residual."""

    spectral: float = 0.0
    frobenius: float = 0.0
    trace: float = 0.0
