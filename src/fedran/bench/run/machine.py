"""What a run ran on, and how much memory it took."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_MEMORY = Path("/proc/meminfo")


def machine(device: str | None) -> str:
    """System, processor family, cores and, where one was used, the accelerator."""
    where = f"{platform.system()} {platform.machine()}, {cores()} cores"
    return f"{where}, {_accelerator(device)}" if device else where


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_rss() -> int | None:
    """Peak resident memory of this process in bytes since ``reset_peak``, where known."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def reset_peak() -> None:
    """Start the peak anew; where the system cannot, it stays that of the whole process."""
    if _CLEAR.exists():
        try:
            _CLEAR.write_text("5")
        except OSError:
            return


def available_memory() -> int | None:
    """Bytes that can be taken without swapping, where known."""
    if not _MEMORY.exists():
        return None
    for line in _MEMORY.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return None


def free_accelerator_memory(device: str | None) -> int | None:
    """Bytes free on an accelerator, where known."""
    if device is None or not device.startswith("cuda"):
        return None
    try:
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    except (ImportError, RuntimeError, AssertionError):
        return None


def _accelerator(device: str) -> str:
    if device.startswith("cuda"):
        try:
            import torch

            return str(torch.cuda.get_device_name(device))
        except (ImportError, RuntimeError, AssertionError):
            return device
    return device
