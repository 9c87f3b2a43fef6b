"""Rows -> rows, as machine code: the CPU engine's kernels, compiled by numba.

Importing this module needs numba; `kernels.py` imports it where numba is installed. Each kernel works on the rows
(or tiles) from `start` to `stop` and releases Python's lock, so that threads can share the rows. No row depends on
another one: neither the batch nor the number of threads changes a bit of the result.

The inner tile of the 7-bit product (8 rows x 8 outputs, 8 registers of sums, none of them spilled) is written in
LLVM's own language, because numba has no name for its two instructions. Everything around it is plain numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pusl.decoding.cpu.kernels import GROUP, TILE

LOG2_E = np.float32(1.4426950408889634)
BLOCK = 96  # rows that stay in the second-level cache while the outputs go by


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as machine code, cached on disk for the next process where a folder can be written."""
    try:
        return numba.njit(nogil=True, fastmath=True, cache=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True, fastmath=True)(function)


@intrinsic
def _as_float32(_typing: Any, bits: Any) -> Any:
    """32 bits read as a float32."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), codegen


@intrinsic
def _to_float32(_typing: Any, value: Any) -> Any:
    """A float32 unchanged; 16 bits read as a bfloat16."""

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
    return p * _as_float32((np.int32(whole) + np.int32(127)) << np.int32(23))  # type: ignore[call-arg]


@compiled
def attend(
    start: int, stop: int, queries: Any, items: Any, counts: Any, keys: Any, values: Any, relative_bias: Any, mixed: Any
) -> None:
    """softmax(query . keys + bias) . values, row by row; only visible keys and values are read.

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
                        score += query[d] * _to_float32(keys[item, head, t, d])  # type: ignore[call-arg]
                    if len(relative_bias):
                        score += relative_bias[count - t, head]
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
                        sums[d] += weight * _to_float32(values[item, head, t, d])  # type: ignore[call-arg]
                for d in range(width):
                    mixed[i, head * width + d] = sums[d] / total
        first = last


@compiled
def masked_softmax(start: int, stop: int, scores: Any, bias: Any, real: Any) -> None:
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
            whole[i, d] = np.uint8(np.int32(x[i, d] * factor + np.float32(128.5)))  # truncating after + .5 rounds


@compiled
def round_to_seven_bits(start: int, stop: int, x: Any, eps: float, whole: Any, scale: Any, zero: Any) -> None:
    """x = (whole - zero) * scale, whole from 0 to 127; zero itself is exact.

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


@intrinsic
def _tile(
    _typing: Any, rows: Any, stride: Any, weights: Any, groups: Any, scales: Any, sums: Any, scale: Any, shift: Any,
    added: Any, added_stride: Any, floor: Any, out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """out = max(rows x weights * scale * scales - shift * sums + added, floor). Addresses; strides in bytes."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        rows, stride, weights, groups, scales, sums, scale, shift, added, added_stride, floor, out, out_stride = (
            arguments
        )
        number, word, real = ir.IntType(64), ir.IntType(32), ir.FloatType()
        reals = ir.VectorType(real, 8)
        bytes32, shorts, words = (ir.VectorType(ir.IntType(bits), 256 // bits) for bits in (8, 16, 32))
        pairs = _instruction(builder, "llvm.x86.avx2.pmadd.ub.sw", shorts, bytes32)
        fours = _instruction(builder, "llvm.x86.avx2.pmadd.wd", words, shorts)
        ones, zeros = ir.Constant(shorts, [1] * 16), ir.Constant(words, [0] * 8)

        def at(address: Any, offset: int, kind: Any) -> Any:
            loaded = builder.load(builder.inttoptr(builder.add(address, number(offset)), kind.as_pointer()))
            loaded.align = 1  # weights begin at a cache line, but nothing breaks if a copy of them does not
            return loaded

        def row_of(address: Any, between: Any, row: int) -> Any:
            return builder.add(address, builder.mul(between, number(row)))

        def spread(one: Any, kind: Any) -> Any:
            """One value, eight times."""
            nothing = ir.Constant(kind, ir.Undefined)
            return builder.shuffle_vector(builder.insert_element(nothing, one, word(0)), nothing, zeros)

        entry, loop = builder.block, builder.append_basic_block("loop")
        done = builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        group = builder.phi(number)
        before = [builder.phi(words) for _ in range(TILE)]
        here = builder.add(weights, builder.mul(group, number(GROUP * TILE)))
        first, second = (at(here, offset, bytes32) for offset in (0, 32))
        after = []
        for row in range(TILE):
            place = builder.add(row_of(rows, stride, row), builder.mul(group, number(GROUP)))
            low, high = (builder.bitcast(spread(at(place, offset, word), words), bytes32) for offset in (0, 4))
            four = builder.add(builder.call(pairs, [low, first]), builder.call(pairs, [high, second]))
            after.append(builder.add(before[row], builder.call(fours, [four, ones])))
        following = builder.add(group, number(1))
        for old, start, new in zip([group, *before], [number(0), *[zeros] * TILE], [following, *after], strict=True):
            old.add_incoming(start, entry)
            old.add_incoming(new, loop)
        builder.cbranch(builder.icmp_signed("<", following, groups), loop, done)

        builder.position_at_end(done)
        unit, weight_sum, lowest = at(scales, 0, reals), at(sums, 0, reals), spread(floor, reals)
        for row in range(TILE):
            size, back = (spread(at(address, 4 * row, real), reals) for address in (scale, shift))
            value = builder.fmul(builder.sitofp(after[row], reals), builder.fmul(size, unit))
            value = builder.fsub(value, builder.fmul(back, weight_sum))
            value = builder.fadd(value, at(row_of(added, added_stride, row), 0, reals))
            value = builder.select(builder.fcmp_ordered(">", value, lowest), value, lowest)
            target = builder.inttoptr(row_of(out, out_stride, row), reals.as_pointer())
            builder.store(value, target).align = 4
        return context.get_dummy_value()

    return types.void(*[types.intp] * 10, types.float32, types.intp, types.intp), codegen


def _instruction(builder: Any, name: str, result: Any, argument: Any) -> Any:
    declared = builder.module.globals.get(name)
    return declared or ir.Function(builder.module, ir.FunctionType(result, [argument, argument]), name)


@compiled
def multiply(
    start: int, stop: int, rows: Any, scale: Any, zero: Any, tiles: Any, scales: Any, sums: Any, residual: Any,
    relu: bool, y: Any,
) -> None:  # fmt: skip
    """y = (rows - zero) * scale @ weights (+ residual, or no less than 0), for the tiles from start to stop.

    Args:
        rows: bytes, and room behind them. (N, stride)
        scale, zero: of the rows. (N,)
        tiles: weights, outputs in blocks of TILE. (blocks, groups, GROUP * TILE)
        scales, sums: of the outputs, and the scaled sums of their weights. (blocks * TILE,)
        residual: what is added, (N, O) or empty.
        y: the result. (N, O)
    """
    count, stride = rows.shape
    groups, outputs = tiles.shape[1], y.shape[1]
    shift = scale * zero
    nothing, edge = np.zeros(TILE, np.float32), np.empty((TILE, TILE), np.float32)
    floor = np.float32(0.0 if relu else -np.inf)
    for block in range(0, count, BLOCK):
        for tile in range(start, stop):
            first = tile * TILE
            whole = first + TILE <= outputs
            for i in range(block, min(count, block + BLOCK), TILE):
                added, added_stride, out, out_stride = nothing.ctypes.data, 0, edge.ctypes.data, 4 * TILE
                if whole:
                    out, out_stride = y.ctypes.data + 4 * (i * outputs + first), 4 * outputs
                    if len(residual):
                        added, added_stride = residual.ctypes.data + 4 * (i * outputs + first), 4 * outputs
                _tile(  # type: ignore[call-arg]  # the compiler passes the first one
                    rows.ctypes.data + i * stride, stride, tiles.ctypes.data + tile * groups * GROUP * TILE, groups,
                    scales.ctypes.data + 4 * first, sums.ctypes.data + 4 * first, scale.ctypes.data + 4 * i,
                    shift.ctypes.data + 4 * i, added, added_stride, floor, out, out_stride,
                )  # fmt: skip
                if not whole:  # the last outputs do not fill a tile
                    for r in range(TILE):
                        for c in range(outputs - first):
                            value = edge[r, c]
                            y[i + r, first + c] = value + residual[i + r, first + c] if len(residual) else value
