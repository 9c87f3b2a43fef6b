"""Tensors on `sim:0` -> the same numbers as on the CPU, and a count of what a GPU would have had to do.

    with simulated_device() as log:
        model.to("sim")
        ...
    log.operations, log.copies, log.waits

A simulated tensor holds its data on the CPU but behaves as a CUDA tensor does: it refuses numpy, refuses to be mixed
with CPU tensors, and counts every kernel, every copy between host and device, and every call that would make the
host wait. Views are free. `rms_norm` and `scaled_dot_product_attention` count as the one kernel they are on CUDA.
Outside the `with` block torch does not see the device.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

try:
    from torch.utils.backend_registration import (
        _DummyBackendModule,
        _DummyPrivateUse1Hook,
        _setup_privateuseone_for_python_backend,
    )
except ImportError:  # the package runs there, this test double does not
    pytest.skip("torch is too old for a device written in Python", allow_module_level=True)

NAME = "sim"
aten = torch.ops.aten
ALLOCATIONS = (
    aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided, aten.new_empty_strided, aten.lift_fresh,
    aten.detach, aten._unsafe_view, aten.view, aten._reshape_alias, aten.is_same_size,
)  # fmt: skip
INDEXING = (aten.index, aten.index_put_, aten.index_put, aten._index_put_impl_)
PACKED = (aten._pack_padded_sequence, aten._pack_padded_sequence_backward, aten._pad_packed_sequence, aten.lstm)
DYNAMIC = (aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim)  # the size of the result needs a wait


def _lstm_cell(inputs: Tensor, hidden: Tensor, cx: Tensor, *biases: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """One step of an LSTM, as CUDA's own kernel takes it: the new state, the new cell, and the gates."""
    gates = sum((bias for bias in biases if bias is not None), inputs + hidden)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, gates: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    i, f, g, o = gates.chunk(4, 1)
    by_state = torch.zeros_like(cy) if grad_hy is None else grad_hy
    by_cell = by_state * o * (1 - cy.tanh() ** 2) + (0 if grad_cy is None else grad_cy)
    grads = [by_cell * g * i * (1 - i), by_cell * cx * f * (1 - f), by_cell * i * (1 - g**2)]
    found = torch.cat([*grads, by_state * cy.tanh() * o * (1 - o)], 1)
    return found, by_cell * f, found.sum(0) if has_bias else None


ONLY_GPU = {  # kernels that torch has for GPUs alone
    aten._thnn_fused_lstm_cell: _lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl: _lstm_cell_backward,
}


class Log:
    """What happened on the device since the log was made or cleared."""

    def __init__(self) -> None:
        self.kernels: Counter[str] = Counter()  # by name
        self.copies: Counter[str] = Counter()  # "to device", "to host", each also with ", asynchronous"
        self.waits: Counter[str] = Counter()  # calls that wait for the device, by kind
        self.places: Counter[tuple[str, str]] = Counter()  # (kind of copy or wait, file and line)
        self.types: Counter[torch.dtype] = Counter()  # of the tensors made there

    @property
    def operations(self) -> int:
        """Kernels launched."""
        return sum(self.kernels.values())

    def clear(self) -> None:
        """Starts counting again."""
        for counter in (self.kernels, self.copies, self.waits, self.places, self.types):
            counter.clear()

    def copy(self, kind: str, asynchronous: bool) -> None:
        """Counts a copy; one that is not asynchronous also waits."""
        kind += ", asynchronous" * asynchronous
        self.copies[kind] += 1
        self.places[kind, _caller()] += 1
        if not asynchronous:
            self.waits["copy"] += 1

    def wait(self, kind: str) -> None:
        """Counts a wait."""
        self.waits[kind] += 1
        self.places[kind, _caller()] += 1


class MixedDevices(RuntimeError):
    """Tensors of two devices met in one operation."""


class _State:
    log: Log | None = None


class _Module(_DummyBackendModule):
    """What torch expects of `torch.sim`."""

    def get_rng_state(self, _device: int = 0) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, _state: Tensor, _device: int = 0) -> None:
        """There is no generator of its own."""

    def set_device(self, _device: int) -> None:
        """There is only one."""

    def is_available(self) -> bool:
        return _State.log is not None

    def synchronize(self, _device: Any = None) -> None:
        if _State.log is not None:
            _State.log.wait("synchronize")

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return True

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class _Hook(_DummyPrivateUse1Hook):
    """Hides the device from `torch.accelerator` unless it is in use."""

    def is_available(self) -> bool:
        return _State.log is not None


_setup_privateuseone_for_python_backend(NAME, backend_module=_Module(), hook=_Hook())
DEVICE = torch.device(f"{NAME}:0")


class SimulatedTensor(torch.Tensor):
    """A tensor that says it is on `sim:0`; `raw` is its data."""

    __slots__ = ["raw"]
    raw: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: Tensor) -> SimulatedTensor:
        made: SimulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype, device=DEVICE
        )
        made.raw = raw
        if _State.log is not None:
            _State.log.types[raw.dtype] += 1
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"SimulatedTensor({self.raw!r})"

    def tolist(self) -> Any:
        if _State.log is not None:
            _State.log.copy("to host", False)
        return self.raw.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert a tensor on sim:0 to numpy; use Tensor.cpu() first")

    __array__ = numpy

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Catches functions that make tensors on the device, and copies from the CPU to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


@contextlib.contextmanager
def simulated_device() -> Iterator[Log]:
    """Turns the device on and counts what it does."""
    before, _State.log = _State.log, Log()
    lift = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    norm, attention = F.rms_norm, F.scaled_dot_product_attention
    F.rms_norm = _fused("rms_norm", norm)
    F.scaled_dot_product_attention = _fused("scaled_dot_product_attention", attention)
    try:
        with _Mode():
            yield _State.log
    finally:
        F.rms_norm, F.scaled_dot_product_attention = norm, attention
        torch._C._set_only_lift_cpu_tensors(lift)
        _State.log = before


def on_device(model: Any) -> Any:
    """A copy of a Hugging Face model on the device. Tied weights stay tied."""
    import copy

    moved = copy.deepcopy(model)
    tied = moved.get_output_embeddings().weight is moved.get_input_embeddings().weight
    moved.to(NAME)
    if tied:
        moved.get_output_embeddings().weight = moved.get_input_embeddings().weight
        moved.encoder.embed_tokens.weight = moved.decoder.embed_tokens.weight = moved.shared.weight
    return moved


def _fused(name: str, real: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that runs as one kernel where no gradient is wanted."""

    def call(*args: Any, **kwargs: Any) -> Tensor:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        on_sim = [isinstance(x, SimulatedTensor) for x in tensors]
        if not any(on_sim) or (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
            return real(*args, **kwargs)
        if not all(on_sim):
            raise MixedDevices(f"{name}: tensors on {DEVICE} and cpu")
        if _State.log is not None:
            _State.log.kernels[name] += 1
        return SimulatedTensor(real(*tree_map(_raw, args), **tree_map(_raw, kwargs)))

    return call


def _raw(x: Any) -> Any:
    return x.raw if isinstance(x, SimulatedTensor) else x


def _names_device(device: Any, kind: str) -> bool:
    return device is not None and torch.device(device).type == kind


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    log = _State.log or Log()
    packet = func._overloadpacket
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    on_sim = [x for x in tensors if isinstance(x, SimulatedTensor)]
    on_cpu = [x for x in tensors if not isinstance(x, SimulatedTensor)]
    device = kwargs.get("device")
    if packet is aten.to and func in (aten.to.device, aten.to.other):  # here the device is not a keyword
        target = args[1] if func is aten.to.device else args[1].device
        kind = args[2] if func is aten.to.device else args[1].dtype
        if _names_device(target, NAME) or on_sim:
            if torch.device(target).type == args[0].device.type and kind == args[0].dtype:
                return args[0]
            with _Mode():
                return aten._to_copy.default(
                    args[0], dtype=kind, device=target, non_blocking=bool(len(args) > 3 and args[3])
                )
    if not on_sim and not _names_device(device, NAME):
        return func(*args, **kwargs)
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        with _Mode():  # inference mode has not taken it apart yet
            out = func.decompose(*args, **kwargs)
        if out is not NotImplemented:
            return out
    crossing = _copied(func, args, kwargs, log, bool(on_sim), bool(on_cpu))
    if crossing is not None:
        return crossing
    large = [x for x in on_cpu if x.dim() > 0]  # numbers may come from the CPU
    if large and on_sim:
        if packet not in (*INDEXING, *PACKED) or not isinstance(args[0], SimulatedTensor):
            raise MixedDevices(f"{func}: tensors on {DEVICE} and cpu")
        for _ in large if packet in INDEXING else ():  # lengths of packed sequences belong on the host
            log.copy("to device", False)
    _count(func, args, log)
    plain = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    if device is not None:
        plain["device"] = torch.device("cpu")
    out = ONLY_GPU.get(packet, func)(*tree_map(_raw, args), **tree_map(_raw, plain))
    written = [one.alias_info is not None and one.alias_info.is_write for one in func._schema.returns]
    if func._schema.is_mutable and written == [True]:  # in place: the same tensor comes back
        return kwargs.get("out", args[0] if args else None)
    if packet is aten._pack_padded_sequence:
        return SimulatedTensor(out[0]), out[1]
    return tree_map(lambda x: SimulatedTensor(x) if type(x) is Tensor else x, out)


def _copied(func: Any, args: Any, kwargs: dict[str, Any], log: Log, on_sim: bool, on_cpu: bool) -> Any:
    """The result of a copy between host and device; None if the function is not one."""
    device = kwargs.get("device")
    if func is aten._to_copy.default:
        to_host, to_device = _names_device(device, "cpu"), _names_device(device, NAME) and not on_sim
        if not (to_host or to_device):
            return None
        log.copy("to host" if to_host else "to device", bool(kwargs.get("non_blocking")))
        raw = _raw(args[0])
        kind = kwargs.get("dtype") or raw.dtype
        out = raw.to(kind) if kind != raw.dtype else raw.clone()
        return out if to_host else SimulatedTensor(out)
    if func is aten.copy_.default and on_sim and on_cpu:
        asynchronous = bool(kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
        log.copy("to device" if isinstance(args[0], SimulatedTensor) else "to host", asynchronous)
        _raw(args[0]).copy_(_raw(args[1]))
        return args[0]
    return None


def _count(func: Any, args: Any, log: Log) -> None:
    packet = func._overloadpacket
    if func is aten._local_scalar_dense.default:
        log.wait("item")
        return
    if func is aten.scalar_tensor.default:  # CUDA keeps the value of `x[...] = number` on the CPU
        return
    indices = [i for i in args[1] if i is not None] if packet in INDEXING else []
    masked = any(isinstance(i, SimulatedTensor) and i.dtype == torch.bool for i in indices)
    fills = packet is not aten.index and len(indices) == 1 and masked and args[2].numel() == 1
    if packet in DYNAMIC or (masked and not fills):  # `x[mask] = number` is masked_fill_ on CUDA
        log.wait("size")
    if packet is aten.equal:
        log.wait("equal")
    is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)
    if not is_view and packet not in ALLOCATIONS:
        log.kernels[str(func)] += 1


def _caller() -> str:
    for frame in reversed(traceback.extract_stack(limit=40)):
        if "/pusl/" in frame.filename or "/transformers/" in frame.filename:
            return f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"
    return "test"
