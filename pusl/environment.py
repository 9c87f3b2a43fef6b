"""This machine -> versions and hardware, for bug reports and run.json."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "torch", "transformers", "accelerate", "datasets", "tokenizers", "sentencepiece", "openai", "numpy", "scipy",
    "pyarrow",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of Python, PUSL and the packages it depends on."""
    from pusl import __version__

    found = {"pusl": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def git_hash() -> str | None:
    """The commit of the source tree PUSL runs from; None when it is installed from a wheel."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def hardware() -> dict[str, str]:
    """Cores, memory, and the accelerators torch sees."""
    import torch

    from pusl.devices import resolve_device, resolve_precision

    found = {"system": f"{platform.system()} {platform.release()} {platform.machine()}", "cores": str(os.cpu_count())}
    if hasattr(os, "sysconf"):
        found["memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
    found["cpu"] = f"{_cpu_name()} ({torch.backends.cpu.get_cpu_capability()})"
    found["threads"] = str(torch.get_num_threads())
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    found["gpus"] = ", ".join(gpus) or "none"
    device = resolve_device()
    found["device"] = f"{device}, in {resolve_precision(None, device)} unless told otherwise"
    return found


def describe() -> dict[str, str]:
    """Everything `pusl env` prints."""
    return {**versions(), "git": git_hash() or "unknown", **hardware()}


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
