"""The leak meter: attacks on one's own message before it is sent."""

from fedran.leakage.meter import measure
from fedran.leakage.report import Attack, ClassLeakage, Finding, Leakage, Tolerance

__all__ = ["Attack", "ClassLeakage", "Finding", "Leakage", "Tolerance", "measure"]
