"""Functions that numba compiles to machine code; importing this module needs numba (see kernels.py).

Each works on the rows from `start` to `stop` and lets go of Python's lock, so that threads can share the rows out.
A row does not depend on the others: neither the batch nor the number of threads changes a bit of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LOG2_E = np.float32(1.4426950408889634)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as machine code, kept on disk for the next process where there is a folder for it."""
    try:
        return numba.njit(nogil=True, fastmath=True, cache=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True, fastmath=True)(function)


@intrinsic
def _float_of(_typing: Any, bits: Any) -> Any:
    """The float32 that 32 bits stand for."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), codegen


@intrinsic
def _real(_typing: Any, value: Any) -> Any:
    """A float32 as it is; 16 bits as the bfloat16 they stand for."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        if isinstance(value, types.Float):
            return arguments[0]
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(arguments[0], word), word(16)), ir.FloatType())

    return types.float32(value), codegen


@numba.njit(fastmath=True, inline="always")
def exponential(x: Any) -> Any:
    """e**x for x <= 0, to six digits. Unlike np.exp it is computed for eight values at once inside a loop."""
    z = max(x * LOG2_E, np.float32(-126.0))
    whole = np.floor(z + np.float32(0.5))
    f = z - whole  # -1/2 to 1/2; 2**f by its Taylor series
    p = np.float32(1.5403530e-4)
    p = p * f + np.float32(1.3333558e-3)
    p = p * f + np.float32(9.6181291e-3)
    p = p * f + np.float32(5.5504109e-2)
    p = p * f + np.float32(2.4022651e-1)
    p = p * f + np.float32(6.9314718e-1)
    p = p * f + np.float32(1.0)
    return p * _float_of((np.int32(whole) + np.int32(127)) << np.int32(23))  # type: ignore[call-arg]


@compiled
def attend(
    start: int, stop: int, queries: Any, items: Any, counts: Any, keys: Any, values: Any, ladder: Any, mixed: Any
) -> None:
    """softmax(query . keys + bias) . values, row by row; only keys and values that are seen are read.

    Neighboring rows of one item take turns at each head, so that the second finds keys and values in the cache.
    """
    heads, length, width = keys.shape[1:]
    query, sums, weights = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(length, np.float32)
    first = start
    while first < stop:
        item, last = items[first], first + 1
        while last < stop and items[last] == item:
            last += 1
        for head in range(heads):
            for i in range(first, last):
                count = counts[i]
                for d in range(width):
                    query[d], sums[d] = queries[i, head * width + d], 0.0
                largest = np.float32(-3e38)
                for t in range(count):
                    score = np.float32(0.0)
                    for d in range(width):
                        score += query[d] * _real(keys[item, head, t, d])  # type: ignore[call-arg]
                    if len(ladder):
                        score += ladder[count - t, head]
                    weights[t] = score
                    if score > largest:
                        largest = score
                total = np.float32(0.0)
                for t in range(count):
                    weight = exponential(weights[t] - largest)
                    weights[t] = weight
                    total += weight
                for t in range(count):
                    weight = weights[t]
                    for d in range(width):
                        sums[d] += weight * _real(values[item, head, t, d])  # type: ignore[call-arg]
                for d in range(width):
                    mixed[i, head * width + d] = sums[d] / total
        first = last


@compiled
def soften(start: int, stop: int, scores: Any, bias: Any, real: Any) -> None:
    """scores = softmax(scores + bias) over each text's real tokens, in place; the rest becomes 0."""
    heads, length, _ = bias.shape
    for i in range(start, stop):
        count = real[i]
        for head in range(heads):
            for q in range(length):
                row, added = scores[i, head, q], bias[head, q]
                largest = np.float32(-3e38)
                for t in range(count):
                    row[t] += added[t]
                    largest = max(largest, row[t])
                total = np.float32(0.0)
                for t in range(count):
                    weight = exponential(row[t] - largest)
                    row[t] = weight
                    total += weight
                share = np.float32(1.0) / total
                for t in range(count):
                    row[t] *= share
                for t in range(count, length):
                    row[t] = 0.0


@compiled
def round_to_bytes(start: int, stop: int, x: Any, whole: Any, scale: Any) -> None:
    """x = (whole - 128) * scale, whole from 1 to 255."""
    width = x.shape[1]
    for i in range(start, stop):
        largest = np.float32(1e-10)
        for d in range(width):
            largest = max(largest, abs(x[i, d]))
        factor = np.float32(127.0) / largest
        scale[i, 0] = largest / np.float32(127.0)
        for d in range(width):
            whole[i, d] = np.uint8(np.int32(x[i, d] * factor + np.float32(128.5)))  # cutting off after + .5 rounds


@compiled
def round_to_seven_bits(start: int, stop: int, x: Any, eps: float, whole: Any, scale: Any, zero: Any) -> None:
    """x = (whole - zero) * scale, whole from 0 to 127; zero itself is met exactly.

    With eps >= 0 the scale is that of x / sqrt(mean of x² + eps).
    """
    width = x.shape[1]
    for i in range(start, stop):
        low, high = np.float32(0.0), np.float32(1e-10)
        for d in range(width):
            low = min(low, x[i, d])
            high = max(high, x[i, d])
        step = (high - low) / np.float32(127.0)
        factor = np.float32(1.0) / step
        middle = np.float32(np.int32(np.float32(0.5) - low * factor))
        scale[i], zero[i] = step, middle
        if eps >= 0.0:
            squares = np.float32(0.0)
            for d in range(width):
                squares += x[i, d] * x[i, d]
            scale[i] = step / np.sqrt(squares / width + eps)
        for d in range(width):
            value = np.int32(x[i, d] * factor + middle + np.float32(0.5))
            whole[i, d] = np.uint8(min(value, np.int32(127)))
