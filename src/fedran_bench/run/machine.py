"""The machine that runs the benchmark: cores, memory and accelerator."""

from __future__ import annotations

import os
import platform
import resource

import joblib

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that linear algebra libraries read when they are loaded."""


def describe_machine(device: str | None) -> str:
    """System, processor family, cores and, where one was used, the accelerator."""
    where = f"{platform.system()} {platform.machine()}, {usable_cores()} cores"
    if device is not None and device.startswith("cuda"):
        import torch

        device = torch.cuda.get_device_name(device)
    return where if device is None else f"{where}, {device}"


def usable_cores() -> int:
    """Cores that this process may use, including the limits of containers."""
    return int(joblib.cpu_count())


def peak_memory() -> int:
    """Largest resident memory of this process so far, in bytes. A run has a process of its own."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def threads_per_run(side_by_side: int) -> int:
    """An equal share of the cores. Environment variables may ask for fewer threads."""
    share = max(1, usable_cores() // max(1, side_by_side))
    asked = [os.environ.get(name, "") for name in THREAD_VARIABLES]
    return min([share, *(int(n) for n in asked if n.isdecimal() and int(n) > 0)])
