"""Rows of bytes x tiles of weights -> rows of floats: the product itself, compiled by numba.

The inner tile (8 rows x 8 outputs, 8 registers of sums, none of them spilled) is written in LLVM's own language,
because numba has no word for its two instructions; everything around it is plain numba. Importing this module
needs numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pusl.decoding.byte_product import GROUP, TILE
from pusl.decoding.machine import compiled

BLOCK = 96  # rows that stay in the second-level cache while the outputs go by


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
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, [argument, argument]), name)


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
