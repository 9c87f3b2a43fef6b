"""The processor's own description -> oneDNN told not to use what does not work.

Some virtual machines pass the flags of AMX on but cut CPUID off below the leaf that holds the size of its tiles.
oneDNN then runs tile instructions on tiles it could not set up, and the first bfloat16 or int8 product ends the
process with "Illegal instruction", without a word of Python's.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

LIMIT = "ONEDNN_MAX_CPU_ISA"
OLDER_LIMIT = "DNNL_MAX_CPU_ISA"  # oneDNN's former name; it still counts
TILE_LEAF = 0x1D  # of CPUID: palettes and tile sizes


def half_amx(cpuinfo: str | Path = "/proc/cpuinfo") -> bool:
    """Whether the processor names AMX but cannot say how large its tiles are."""
    try:
        text = Path(cpuinfo).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    level = re.search(r"^cpuid level\s*:\s*(\d+)", text, re.MULTILINE)
    return level is not None and int(level[1]) < TILE_LEAF and " amx_tile" in text


def avoid_half_amx(cpuinfo: str | Path = "/proc/cpuinfo") -> None:
    """Limits oneDNN to AVX-512 there, if nobody set a limit; to be called before torch's first product."""
    if not os.environ.get(LIMIT) and not os.environ.get(OLDER_LIMIT) and half_amx(cpuinfo):
        os.environ[LIMIT] = "AVX512_CORE_FP16"
