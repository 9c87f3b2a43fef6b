"""`--device` and `--precision` -> a device that is there, and a precision that it computes in.

    auto   the first CUDA GPU, else Apple's GPU (mps), else the CPU
    bf16   the default on CUDA GPUs that compute in bfloat16; elsewhere the default is fp32

float16 is not offered: the activations of T5 overflow it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from ctypes.util import find_library
from glob import glob
from typing import Any

from pusl.config import PRECISIONS
from pusl.process import half_amx
from pusl_eval.files import InputError

DRIVERS = ("/dev/nvidia[0-9]*", "/dev/nvhost-gpu", "/dev/dxg", "/dev/kfd")  # Linux, Jetson, WSL, ROCm


def resolve_device(name: str | None = "auto") -> str:
    """The device that a name stands for; one that is not there is an InputError.

    >>> resolve_device("cpu")
    'cpu'
    """
    name = (name or "auto").strip().lower()
    kind, _, number = name.partition(":")
    if kind not in ("auto", "cpu", "cuda", "mps") or (number and (kind != "cuda" or not number.isdigit())):
        raise InputError(f"device {name!r} is unknown; expected cpu, cuda, cuda:1, mps or auto")
    if kind == "cpu" or (kind == "auto" and not may_have_gpu()):
        return "cpu"
    import torch

    if kind == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if kind == "mps":
        if not torch.backends.mps.is_available():
            raise InputError("device 'mps': torch finds no Apple GPU here; use cpu or auto")
        return "mps"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= count:
        has = f"only {count}" if count else "no"
        raise InputError(f"device {name!r}: torch finds {has} CUDA GPU{'s' * (count > 1)} here; use cpu or auto")
    return name


def choose_device(name: str | None = "auto") -> str:
    """The device for a process that takes only the first GPU it sees (a trainer): other GPUs are hidden from it."""
    device = resolve_device(name)
    number = device.partition(":")[2]
    if number and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(f"device {device!r}: the launcher gives each process a GPU of its own; use cuda or auto")
    if number not in ("", "0"):
        import torch

        if torch.cuda.is_initialized():
            raise InputError(f"device {device!r}: this process uses a GPU already; set CUDA_VISIBLE_DEVICES before it")
        os.environ.update(worker_environment(int(number), torch.cuda.device_count()))
    return device.partition(":")[0]


def may_have_gpu() -> bool:
    """Whether it is worth asking torch, which takes seconds to load."""
    if sys.platform != "linux" or "torch" in sys.modules:
        return True
    return any(glob(pattern) for pattern in DRIVERS) or find_library("cuda") is not None


def resolve_precision(name: str | None, device: str) -> str:
    """The precision asked for, or the device's default; one that the device does not have is an InputError.

    >>> resolve_precision(None, "cpu"), resolve_precision("int8", "cpu")
    ('fp32', 'int8')
    """
    if name is not None and name not in PRECISIONS:
        raise InputError(f"precision {name!r} is unknown; allowed: {', '.join(PRECISIONS)}")
    kind = device.partition(":")[0]
    if name is None:
        return "bf16" if kind == "cuda" and has_bf16(device) else "fp32"
    if name == "int8" and kind != "cpu":
        raise InputError(f"precision 'int8' needs a CPU, and the device is {device}; use bf16, or --device cpu")
    if name == "tf32" and kind != "cuda":
        raise InputError(f"precision 'tf32' needs a CUDA GPU, and the device is {device}; use fp32")
    if name == "bf16" and kind == "cuda" and not has_bf16(device):
        raise InputError(f"precision 'bf16': {device} does not compute in bfloat16; use fp32")
    return name


def has_bf16(device: str) -> bool:
    """Whether a CUDA GPU computes in bfloat16 instead of emulating it."""
    import torch

    return bool(torch.cuda.get_device_capability(torch.device(device)) >= (8, 0)) or torch.version.hip is not None


def has_fast_bf16(device: str) -> bool:
    """Whether the device computes in bfloat16 instead of emulating it."""
    import torch

    kind = device.partition(":")[0]
    if kind in ("cuda", "mps"):
        return kind == "mps" or has_bf16(device)
    # AMD since Zen 4 and Intel since Cooper Lake multiply bfloat16 in AVX-512; torch 2.6 has no public test for it
    return bool(torch.cpu._is_avx512_bf16_supported()) or (bool(torch.cpu._is_amx_tile_supported()) and not half_amx())


@contextlib.contextmanager
def cuda_settings(precision: str) -> Iterator[None]:
    """How torch computes on CUDA inside the block.

    Float32 products use TF32 if `precision` is tf32, and only then. Attention never uses cuDNN's kernel, which newer
    torch prefers on Hopper and Blackwell: T5's attention always has a mask, and with a mask its backward pass can give
    NaN (pytorch/pytorch#196678) and knows no gradient of T5's position bias. The memory-efficient kernel has both.
    """
    import torch

    products, attention = torch.get_float32_matmul_precision(), torch.backends.cuda.cudnn_sdp_enabled()
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cuda.enable_cudnn_sdp(attention)


def weight_type(precision: str) -> Any:
    """The type that a model's weights are loaded in."""
    import torch

    return torch.bfloat16 if precision == "bf16" else torch.float32


def worker_environment(number: int, gpus: int) -> dict[str, str]:
    """The environment of the process with this number: the GPUs are dealt out one after the other.

    >>> worker_environment(5, 0)
    {}
    """
    if not gpus:
        return {}
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return {"CUDA_VISIBLE_DEVICES": (visible or [str(i) for i in range(gpus)])[number % gpus].strip()}


def ends_process(error: BaseException) -> bool:
    """Whether a CUDA error leaves the process unusable, so that another one must take over its work."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return "OutOfMemoryError" not in kinds and ("AcceleratorError" in kinds or "CUDA error" in str(error))


def gpu_count(device: str) -> int:
    """GPUs to deal out to worker processes: all of them for `cuda`; a device that was named is used as it is."""
    if device != "cuda":
        return 0
    import torch

    return torch.cuda.device_count()
