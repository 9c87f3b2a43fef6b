"""A device -> the most memory that was used there since the last look, in MiB.

On CUDA it is what torch allocated, on Linux's CPU what the process held, libraries included. Elsewhere it is unknown.
"""

from __future__ import annotations

from pathlib import Path

import torch


def restart(device: str) -> None:
    """Forgets earlier peaks."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
    elif device == "cpu" and Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")


def peak(device: str) -> float | None:
    """MiB since `restart`."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device) / 2**20
    if device != "cpu" or not Path("/proc/self/status").exists():
        return None
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), None)


def taken(device: str) -> float:
    """MiB of a GPU that are not free, whoever holds them: for engines that do not allocate through torch."""
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / 2**20


def shown(memory: float | None) -> str:
    """A cell of a table.

    >>> shown(1234.5), shown(None)
    ('1,234', '')
    """
    return "" if memory is None else f"{memory:,.0f}"
