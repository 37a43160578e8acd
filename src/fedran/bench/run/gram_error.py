"""How far a method's Gram is from the exact one of the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedran.core._linalg.arrays import namespace, to_device
from fedran.core.exact import ExactSum
from fedran.data.dataset import Dataset
from fedran.data.stream import Stream


class ExactGrams:
    """The exact Gram of all labelled rows so far, grown task by task."""

    def __init__(self, dataset: Dataset, stream: Stream) -> None:
        self.dataset, self.stream = dataset, stream
        self.total: ExactSum | None = None
        self.done = 0

    def error(self, phi: Callable[[Any], Any], found: Any, task: int, method: Any) -> float:
        """||G_found - G||_F / ||G||_F over tasks 0 .. ``task``; M^2 n operations a task."""
        device = getattr(method, "device", None)
        if self.total is None:
            self.total = ExactSum(int(found.shape[0]), device=device, stack=False)
        for t in range(self.done, task + 1):
            for rows in self._rows(t):
                for part in np.array_split(rows, max(1, len(rows) // 4096)):
                    self.total.add_factor(phi(to_device(self.dataset.X_train[part], device)).T)
        self.done = task + 1
        exact = self.total.gram()
        norm = namespace(exact).linalg.vector_norm
        return float(norm(found - exact)) / (float(norm(exact)) or 1.0)

    def _rows(self, t: int) -> list[Any]:
        task = self.stream.tasks[t]
        return [rows[task.has_label(k)] for k, rows in enumerate(task.rows) if len(rows)]
