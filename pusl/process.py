"""A process of ours starts -> its threads, its memory allocator, OpenMP and oneDNN are set, here and nowhere else.

A library must not change the process it is used in, so importing `pusl` or calling its functions sets nothing. Each
process that we start ourselves (the command line, the demo's trainings, workers of `generate` and `serve`, Ray actors)
calls `prepare_process` first. A program of your own may call it too, before it imports torch. What the user has
set in the environment is never changed (docs/guides/millions.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pusl_eval.files import InputError

WAIT_POLICY = "OMP_WAIT_POLICY"
ONEDNN_LIMIT = "ONEDNN_MAX_CPU_ISA"
OLD_ONEDNN_LIMIT = "DNNL_MAX_CPU_ISA"  # oneDNN's former name, which still counts
RAY_STATISTICS = "RAY_USAGE_STATS_ENABLED"
PARENT = "PUSL_PARENT"  # set by a command that starts another one: the process whose end is its end too
MOST_THREADS = 1024
TILE_LEAF = 0x1D  # of CPUID: palettes and tile sizes


def prepare_process(threads: int | None = None, *, keep_memory: bool = False) -> None:
    """Sets up the process that calls it. Call it before torch is imported: OpenMP reads its settings only then.

    Args:
        threads: torch's threads for this process; None keeps torch's own choice.
        keep_memory: keep freed memory for the next step, for processes that decode or train.
    """
    # A thread that waits for its next piece of work sleeps instead of spinning. On a machine with other load a
    # spinning thread takes the core from the very thread it waits for.
    os.environ.setdefault(WAIT_POLICY, "PASSIVE")
    os.environ.setdefault(RAY_STATISTICS, "0")  # report nothing to anyone
    avoid_half_amx()
    if keep_memory:
        keep_freed_memory()
    if threads is not None:
        import torch

        torch.set_num_threads(_checked(threads))


def end_with_parent(parent: int, end: Callable[[], None] = lambda: os._exit(1)) -> None:
    """Calls `end` soon after the process `parent`, which started this one, has died, in the middle of any work."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        end()

    threading.Thread(target=watch, daemon=True).start()


def end_with_command() -> None:
    """If another command of ours has started this one, ends it as SIGTERM does when that one dies."""
    parent = os.environ.pop(PARENT, None)
    if parent is not None:
        end_with_parent(int(parent), lambda: os.kill(os.getpid(), signal.SIGTERM))


@contextlib.contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Computes with `count` threads of torch inside the block (None: as many as before) and restores them after it."""
    import torch

    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(_checked(count))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Tells glibc to keep up to 256 MB of freed memory for the next step.

    A decoding step frees and allocates the same few large tensors (logits, log-probabilities). Returning their pages
    to the system each time costs up to a tenth of the time. A MALLOC_... variable in the environment wins. Keeping
    everything would make training from pretrained weights 3% faster, but its memory grows from step to step.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(-3, 64 << 20)  # M_MMAP_THRESHOLD: only larger blocks get a mapping of their own
        mallopt(-1, 256 << 20)  # M_TRIM_THRESHOLD


def half_amx(cpuinfo: str | Path = "/proc/cpuinfo") -> bool:
    """Whether the processor names AMX but cannot say how large its tiles are.

    Some virtual machines pass on the flags of AMX but hide the CPUID leaf with the size of its tiles. oneDNN then
    runs tile instructions on tiles it could not set up, and the first bfloat16 or int8 product ends the process with
    "Illegal instruction" and no message of Python's.
    """
    try:
        text = Path(cpuinfo).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    level = re.search(r"^cpuid level\s*:\s*(\d+)", text, re.MULTILINE)
    return level is not None and int(level[1]) < TILE_LEAF and " amx_tile" in text


def avoid_half_amx(cpuinfo: str | Path = "/proc/cpuinfo") -> None:
    """Limits oneDNN to AVX-512 on such a processor, unless a limit is set; call it before torch's first product."""
    if not onednn_is_limited() and half_amx(cpuinfo):
        os.environ[ONEDNN_LIMIT] = "AVX512_CORE_FP16"


def onednn_is_limited() -> bool:
    """Whether the environment limits the instructions of oneDNN; an empty value limits nothing."""
    return bool(os.environ.get(ONEDNN_LIMIT) or os.environ.get(OLD_ONEDNN_LIMIT))


def _checked(threads: int) -> int:
    if not 1 <= threads <= MOST_THREADS:
        raise InputError(f"threads is {threads}; expected 1 to {MOST_THREADS}")
    return threads
