"""A T5 model -> encoder states once per text, and decoder steps over a pool of items.

For T5 of every kind (tied or not, gated or plain feed-forward), mT5, umT5 (a position bias per layer) and LongT5 (whose
encoder is called as it is, text by text).
What makes it fast: weights prepared once, norm weights folded into the next product, q, k and v in one product,
keys and values of the text computed once, and steps over RAGGED token lists: an item may feed one token, the
pair `<eok><bok>`, or the tips of a beam, and only rows whose logits are wanted reach the vocabulary.

All tokens of an item share one key/value cache; a bias of -1e30 hides what a token must not see
(other beams, other positions). Cache and text lengths are padded to multiples of 16, and appended
zeros change no bit of a sum taken in order, so an item's numbers do not depend on the rest of its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.activations import ACT2FN

from pusl.checkpoint import scales_output
from pusl.decoding.cpu.kernels import attend, load_kernels, masked_softmax
from pusl.decoding.cpu.linear import ROW_MULTIPLE, Linear, make_linear, weighted_sum
from pusl.decoding.deadline import check_time

HIDDEN = -1e30  # added to the score of what must not be seen; exp gives exactly 0
LENGTH_MULTIPLE = 16
ATTENTION_CHUNK = 1 << 20  # attention scores held at once in the encoder, so that they stay in cache
ENCODER_CHUNK = 1536  # tokens encoded at once, for the same reason
LOGITS = 1 << 26  # logits of one step: a wide search, or a large vocabulary, takes fewer items at a time


def padded(length: int, multiple: int = LENGTH_MULTIPLE) -> int:
    """The next multiple, and at least one.

    >>> padded(17), padded(0)
    (32, 16)
    """
    return max(multiple, -(-length // multiple) * multiple)


@dataclass
class FeedForward:
    """norm -> wide -> act -> narrow, plus the residual. The norm is part of `wide`."""

    wide: Linear
    narrow: Linear
    act: Callable[[Tensor], Tensor] | None  # None: relu, part of `wide`
    gated: bool

    def __call__(self, x: Tensor) -> Tensor:
        h = self.wide(x)
        if self.gated:
            gate, up = h.chunk(2, -1)
            h = (gate.relu() if self.act is None else self.act(gate)) * up
        elif self.act is not None:
            h = self.act(h)
        return self.narrow(h, residual=x)


@dataclass
class EncoderLayer:
    qkv: Linear
    out: Linear
    feed: FeedForward


@dataclass
class DecoderLayer:
    qkv: Linear
    out: Linear
    cross_q: Linear
    cross_kv: Linear
    cross_out: Linear
    feed: FeedForward


class Pool:
    """Slots of items being decoded: their texts' keys and values, and their own cache.

    New memory is expensive, so the engine keeps one pool's memory for the next pool. What an earlier item left
    there does no harm: it is finite and hidden.

    Each step for a long text reads more bytes of the text's keys and values than of anything else. With
    `chain` (see `Engine.step`) an int8 engine keeps them in bfloat16: they come from rounded products anyway.
    """

    def __init__(self, engine: Engine, slots: int, chain: bool = False) -> None:
        self.engine, self.slots = engine, slots
        kind = torch.bfloat16 if chain and engine.compiled and engine.precision == "int8" else torch.float32
        spare = engine.spare.pop() if engine.spare else None
        if spare is None or spare[0].shape[2] < slots or spare[1].dtype != kind:
            length = 4 * LENGTH_MULTIPLE
            spare = (self._empty(slots, length, torch.float32), self._empty(slots, length, kind))
        self.cache, self.memory = spare  # (L, 2, R, H, T, D), (L, 2, R, H, S, D)
        self.sources = np.zeros(slots, dtype=np.int64)  # length of each slot's text
        self.used = 0  # cache entries of the longest item

    def release(self) -> None:
        """Gives the memory back to the engine; the pool cannot be used any more."""
        self.engine.spare[:] = [(self.cache, self.memory)]
        del self.cache, self.memory

    def _empty(self, slots: int, length: int, kind: torch.dtype) -> Tensor:
        e = self.engine
        shape = (len(e.decoder), 2, slots, e.heads, length, e.d_kv)
        if e.device.type == "cpu":  # numpy leaves pages untouched until they are used
            return torch.from_numpy(np.zeros(shape, dtype=f"i{kind.itemsize}")).view(kind)
        return torch.zeros(shape, dtype=kind, device=e.device)

    def _grown(self, old: Tensor, length: int) -> Tensor:
        new = self._empty(old.shape[2], length, old.dtype)
        new[..., : old.shape[4], :] = old
        return new

    def reserve(self, length: int) -> None:
        """Makes room for `length` cache entries per item."""
        self.used = length
        if length > self.cache.shape[4]:
            self.cache = self._grown(self.cache, padded(max(length, self.cache.shape[4] * 3 // 2)))

    def fill(self, slots: Sequence[int], texts: Sequence[Sequence[int]]) -> None:
        """Encodes texts (ids) into slots."""
        longest = padded(max(len(text) for text in texts))
        if longest > self.memory.shape[4]:
            self.memory = self._grown(self.memory, longest)
        for chunk in _chunks([len(text) for text in texts]):
            check_time()
            places = [slots[i] for i in chunk]
            for layer, member, keys_values in self.engine.encode([texts[i] for i in chunk]):
                self.memory[layer, :, places[member], :, : keys_values.shape[2]] = keys_values
        self.sources[list(slots)] = [len(text) for text in texts]

    def writer(self, row: Tensor, place: Tensor) -> Callable[[int, Tensor], None]:
        """A function that stores a layer's keys and values (N, 2, H, D) at places of the items' caches."""
        _, two, slots, heads, length, d_kv = self.cache.shape
        kind = torch.arange(two, device=row.device)[:, None] * slots
        head = torch.arange(heads, device=row.device)
        index = ((kind + row[:, None, None]) * heads + head) * length + place[:, None, None]  # (N, 2, H)
        flat, index = self.cache.view(len(self.cache), -1, d_kv), index.flatten()

        def write(layer: int, keys_values: Tensor) -> None:
            flat[layer].index_copy_(0, index, keys_values.reshape(-1, d_kv))

        return write

    def close(self, done: Sequence[int], count: int) -> list[int]:
        """Frees slots among the first `count`: the last ones move into the holes.

        Returns, for each slot that is now in use, which slot it was before.
        """
        gone, stay = set(done), count - len(done)
        holes = [i for i in sorted(gone) if i < stay]
        movers = [i for i in range(stay, count) if i not in gone]
        order = list(range(stay))
        for hole, mover in zip(holes, movers, strict=True):
            order[hole] = mover
        if movers:
            old, new = (torch.tensor(part, device=self.engine.device) for part in (movers, holes))
            for store, length in ((self.cache, self.used), (self.memory, padded(int(self.sources.max())))):
                part = store[..., :length, :]
                part[:, :, new] = part[:, :, old]
            self.sources[holes] = self.sources[movers]
        return order

    def gather(self, slot: int, entries: Sequence[int], start: int) -> None:
        """Moves cache entries of a slot together, from `start` on."""
        chosen = torch.tensor(list(entries), device=self.engine.device)
        self.cache[:, :, slot, :, start : start + len(entries)] = self.cache[:, :, slot, :, chosen]


class Engine:
    """A T5 prepared for decoding on its model's device."""

    def __init__(self, model: Any, precision: str = "fp32") -> None:
        config = model.config
        self.device: torch.device = model.device
        self.precision = precision
        self.heads, self.d_kv, self.eps = config.num_heads, config.d_kv, config.layer_norm_epsilon
        self.vocab_size = config.vocab_size
        self.embedding = model.get_input_embeddings().weight.detach().float()
        make = make_linear(precision, self.device)
        with torch.no_grad():
            self._encoder: Any = model.encoder if config.model_type == "longt5" else None
            blocks = [] if self._encoder is not None else model.encoder.block
            self.encoder = [_encoder_layer(block, config, make) for block in blocks]
            memory_norm = model.encoder.final_layer_norm.weight.float()  # a bf16 model's is folded in float32
            if self._encoder is not None:  # it has applied the norm's weight itself
                memory_norm = torch.ones_like(memory_norm)
            self.decoder = [_decoder_layer(block, config, make, memory_norm) for block in model.decoder.block]
            scale = config.d_model**-0.5 if scales_output(config) else 1.0
            norm = model.decoder.final_layer_norm.weight.float()
            self.head = make(model.lm_head.weight * norm * scale, eps=self.eps)
            shared = None if config.model_type == "umt5" else 1  # one bias for all layers, or one for each
            self._encoder_biases = [_position_bias(block) for block in blocks[:shared]]
            self._decoder_biases = [_position_bias(block) for block in model.decoder.block[:shared]]
            self._relative_biases = self._biases_by_distance(512)
        self.compiled = self.device.type == "cpu" and load_kernels() is not None
        self.spare: list[tuple[Tensor, Tensor]] = []  # the memory of a released pool

    def _biases_by_distance(self, length: int) -> list[Tensor]:
        """Biases of each distance into the past; row 0 hides, row d + 1 is distance d. (length + 1, H)"""
        found = []
        for compute in self._decoder_biases:
            values = compute(length, length)[:, -1].flip(-1)  # (H, length)
            found.append(torch.cat([torch.full_like(values[:, :1], HIDDEN), values], 1).t().contiguous())
        return found

    def _encode_as_it_is(self, texts: Sequence[Sequence[int]]) -> Iterator[tuple[int, int, Tensor]]:
        """Like `encode`, by the model's own encoder. One text at a time: what stands beside it changes nothing."""
        for i, text in enumerate(texts):
            with torch.no_grad():
                x = self._encoder(input_ids=torch.tensor([list(text)], device=self.device)).last_hidden_state[0].float()
            x = F.pad(x, (0, 0, 0, padded(len(x), ROW_MULTIPLE) - len(x)))  # (N, M)
            for number, layer in enumerate(self.decoder):
                kv = layer.cross_kv(x).view(-1, 2, self.heads, self.d_kv)
                yield number, i, kv[: len(text)].permute(1, 2, 0, 3)

    def encode(self, texts: Sequence[Sequence[int]]) -> Iterator[tuple[int, int, Tensor]]:
        """Texts -> (decoder layer, number of the text, its keys and values for that layer (2, H, S, D))."""
        if self._encoder is not None:
            yield from self._encode_as_it_is(texts)
            return
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        lengths = [padded(len(texts[i]), 8 if len(texts[i]) > 8 else 16) for i in order]
        flat = np.zeros(padded(sum(lengths), ROW_MULTIPLE), dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        for start, i in zip(starts, order, strict=False):
            flat[start : start + len(texts[i])] = texts[i]
        groups: list[tuple[int, int, int]] = []  # (first row, items, length)
        for start, length in zip(starts, lengths, strict=False):
            if groups and groups[-1][2] == length:
                groups[-1] = (groups[-1][0], groups[-1][1] + 1, length)
            else:
                groups.append((int(start), 1, length))
        real = torch.tensor([len(texts[i]) for i in order], device=self.device)
        x = self.embedding[torch.from_numpy(flat).to(self.device)]
        for place, layer in enumerate(self.encoder):
            if place < len(self._encoder_biases):
                compute = self._encoder_biases[place]
                biases = {length: compute(length, length) for _, _, length in groups}  # (H, S, S)
            qkv = layer.qkv(x)  # (N, 3HD)
            mixed = qkv.new_empty(len(x), self.heads * self.d_kv)
            mixed[groups[-1][0] + groups[-1][1] * groups[-1][2] :] = 0.0  # padding rows
            first = 0
            for row, count, length in groups:
                step = max(1, ATTENTION_CHUNK // (self.heads * length * length))
                for a in range(0, count, step):
                    b = min(count, a + step)
                    rows = slice(row + a * length, row + b * length)
                    self._attend(qkv[rows], biases[length], real[first + a : first + b], mixed[rows])
                first += count
            x = layer.feed(layer.out(mixed, residual=x))
        x = F.rms_norm(x, x.shape[-1:], None, self.eps)  # once for all layers
        for number, decoder_layer in enumerate(self.decoder):
            kv = decoder_layer.cross_kv(x).view(-1, 2, self.heads, self.d_kv)
            for i, start, length in zip(order, starts, lengths, strict=False):
                yield number, i, kv[start : start + length].permute(1, 2, 0, 3)

    def _attend(self, qkv: Tensor, bias: Tensor, real: Tensor, mixed: Tensor) -> None:
        """Bidirectional attention inside texts of one padded length. (B*S, 3HD) -> mixed (B*S, HD)"""
        count, length = len(real), bias.shape[1]
        q, k, v = qkv.view(count, length, 3, self.heads, self.d_kv).permute(2, 0, 3, 1, 4)  # (B, H, S, D)
        scores = q @ k.transpose(-1, -2)
        if self.compiled:
            masked_softmax(scores, bias, real)
        else:
            hidden = torch.arange(length, device=self.device) >= real[:, None]  # (B, S)
            scores = scores.add_(bias).masked_fill_(hidden[:, None, None], HIDDEN).softmax(-1)
        mixed.view(count, length, self.heads, self.d_kv).copy_((scores @ v).transpose(1, 2))

    def _extend(self, distance: np.ndarray) -> None:
        if distance.max() + 2 > len(self._relative_biases[0]):
            self._relative_biases = self._biases_by_distance(2 * int(distance.max()) + 2)

    def biases(self, distance: np.ndarray) -> list[Tensor]:
        """Distances into the past (n, Q, T), negative where hidden -> attention biases (n * H, Q, T)."""
        self._extend(distance)
        index = torch.from_numpy(np.maximum(distance, -1) + 1).to(self.device)
        n, q, t = distance.shape
        return [bias[index].permute(0, 3, 1, 2).reshape(n * self.heads, q, t) for bias in self._relative_biases]

    def step(
        self,
        pool: Pool,
        ids: np.ndarray,
        rows: np.ndarray,
        columns: np.ndarray,
        places: np.ndarray,
        distance: np.ndarray,
        wanted: np.ndarray,
        chain: bool = False,
    ) -> Tensor:
        """Feeds tokens and returns the logits of the wanted ones. (W, V)

        Args:
            ids, rows, columns, places: for each token its id, its item's slot, its column in the
                item's query grid, and where in the item's cache its key and value go. (N,)
            distance: for each query and cache entry how far back it lies, negative if hidden. (n, Q, T)
            wanted: indices of tokens whose logits are needed.
            chain: whether every query sees all of its item's entries up to its own (no beams).
        """
        check_time()
        pool.reserve(distance.shape[2])
        # Token 0 is repeated up to a round number of rows; a repeat writes the same values again.
        fill = np.zeros(padded(len(ids), ROW_MULTIPLE), dtype=np.int64)
        fill[: len(ids)] = np.arange(len(ids))
        row, column, place = (torch.from_numpy(part[fill]).to(self.device) for part in (rows, columns, places))
        last = np.zeros(padded(len(wanted), ROW_MULTIPLE), dtype=np.int64)
        last[: len(wanted)] = wanted
        keep = torch.from_numpy(last).to(self.device)
        x = self.embedding[torch.from_numpy(ids[fill]).to(self.device)]  # (N, M)
        write = pool.writer(row, place)
        attention = self._attention(pool, row, column, distance, chain)
        kept: Tensor | None = None
        for number, layer in enumerate(self.decoder):
            qkv = layer.qkv(x).view(len(x), 3, self.heads, self.d_kv)
            write(number, qkv[:, 1:])
            queries = qkv[:, 0].flatten(1)
            if number == len(self.decoder) - 1:  # only the keys and values of the other tokens were needed
                kept, x, queries = keep, x.index_select(0, keep), queries.index_select(0, keep)
            x = layer.out(attention(number, queries, False, kept), residual=x)
            x = layer.cross_out(attention(number, layer.cross_q(x), True, kept), residual=x)
            x = layer.feed(x)
        return self.head(x)[: len(wanted)]

    def _attention(
        self, pool: Pool, row: Tensor, column: Tensor, distance: np.ndarray, chain: bool
    ) -> Callable[[int, Tensor, bool, Tensor | None], Tensor]:
        """A function (layer, queries (N, HD), over the text or the item's own cache, which tokens) -> (N, HD)."""
        if chain and self.compiled:  # no beams
            self._extend(distance)
            items, relative = row.numpy(), self._relative_biases
            seen, read = distance[items, column.numpy(), 0] + 1, pool.sources[items]

            def attention(number: int, queries: Tensor, text: bool, kept: Tensor | None) -> Tensor:
                of = slice(None) if kept is None else kept.numpy()
                if text:
                    return attend(
                        queries, items[of], read[of], pool.memory[number, 0], pool.memory[number, 1], relative[0][:0]
                    )
                bias = relative[number % len(relative)]
                return attend(queries, items[of], seen[of], pool.cache[number, 0], pool.cache[number, 1], bias)

            return attention
        n, q, t = distance.shape
        longest = padded(int(pool.sources[:n].max()))
        cell = row * q + column
        biases = self.biases(distance)
        hidden = torch.arange(longest)[None] >= torch.from_numpy(pool.sources[:n])[:, None]
        hidden = hidden.to(self.device).float().mul_(HIDDEN).repeat_interleave(self.heads, 0)[:, None]  # (nH, 1, S)
        hidden = hidden.expand(-1, q, -1)
        grid = torch.zeros(n * q, self.heads * self.d_kv, device=self.device)

        def grid_attention(number: int, queries: Tensor, text: bool, kept: Tensor | None) -> Tensor:
            cells = cell if kept is None else cell[kept]
            grid.index_copy_(0, cells, queries)
            if text:
                mixed = self._attend_grid(grid, pool.memory[number, :, :n, :, :longest], hidden, n, q)
            else:
                mixed = self._attend_grid(grid, pool.cache[number, :, :n, :, :t], biases[number % len(biases)], n, q)
            return mixed.index_select(0, cells)

        return grid_attention

    def _attend_grid(self, grid: Tensor, keys_values: Tensor, bias: Tensor, n: int, q: int) -> Tensor:
        """Attention of every item's query grid over its keys. (n*Q, HD) -> (n*Q, HD)"""
        queries = grid.view(n, q, self.heads, self.d_kv).transpose(1, 2).reshape(n * self.heads, q, self.d_kv)
        k, v = keys_values.flatten(1, 2)  # (nH, T, D)
        mixed = weighted_sum(torch.baddbmm(bias, queries, k.transpose(1, 2)).softmax(-1), v)  # (nH, Q, D)
        return mixed.view(n, self.heads, q, self.d_kv).transpose(1, 2).reshape(n * q, -1)


def _chunks(lengths: Sequence[int]) -> list[list[int]]:
    """Texts of similar length together, about ENCODER_CHUNK tokens each.

    >>> _chunks([1000, 10, 900])
    [[1, 2], [0]]
    """
    chunks: list[list[int]] = [[]]
    total = 0
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if chunks[-1] and total + lengths[i] > ENCODER_CHUNK:
            chunks.append([])
            total = 0
        chunks[-1].append(i)
        total += lengths[i]
    return chunks


def _position_bias(block: Any) -> Callable[[int, int], Tensor]:
    """The position bias of a stack, (H, Q, K), as its first layer computes it."""
    attention = block.layer[0].SelfAttention

    def compute(queries: int, keys: int) -> Tensor:
        with torch.no_grad():
            bias: Tensor = attention.compute_bias(queries, keys)[0].detach().float()
        return bias

    return compute


def _feed(layer: Any, config: Any, make: Callable[..., Linear]) -> FeedForward:
    dense, norm, eps = layer.DenseReluDense, layer.layer_norm.weight.float(), config.layer_norm_epsilon
    relu = config.dense_act_fn == "relu"
    act = None if relu else ACT2FN[config.dense_act_fn]
    if config.is_gated_act:
        wide = torch.cat([dense.wi_0.weight, dense.wi_1.weight])
        return FeedForward(make(wide * norm, eps=eps), make(dense.wo.weight), act, True)
    return FeedForward(make(dense.wi.weight * norm, relu=relu, eps=eps), make(dense.wo.weight), act, False)


def _encoder_layer(block: Any, config: Any, make: Callable[..., Linear]) -> EncoderLayer:
    attention, norm = block.layer[0].SelfAttention, block.layer[0].layer_norm.weight.float()
    qkv = torch.cat([attention.q.weight, attention.k.weight, attention.v.weight]) * norm
    return EncoderLayer(
        make(qkv, eps=config.layer_norm_epsilon), make(attention.o.weight), _feed(block.layer[-1], config, make)
    )


def _decoder_layer(block: Any, config: Any, make: Callable[..., Linear], memory_norm: Tensor) -> DecoderLayer:
    own, cross, eps = block.layer[0].SelfAttention, block.layer[1].EncDecAttention, config.layer_norm_epsilon
    qkv = torch.cat([own.q.weight, own.k.weight, own.v.weight]) * block.layer[0].layer_norm.weight.float()
    return DecoderLayer(
        qkv=make(qkv, eps=eps),
        out=make(own.o.weight),
        cross_q=make(cross.q.weight * block.layer[1].layer_norm.weight.float(), eps=eps),
        cross_kv=make(torch.cat([cross.k.weight, cross.v.weight]) * memory_norm),
        cross_out=make(cross.o.weight),
        feed=_feed(block.layer[-1], config, make),
    )
