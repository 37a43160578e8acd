"""The leak meter: attacks on one's own message before it is sent."""

from fedran.leakage.membership import Number
from fedran.leakage.meter import Leakage, Tolerance, measure

__all__ = ["Leakage", "Number", "Tolerance", "measure"]
