"""A T5 model -> its weights in one precision, encoder passes per length, and decoder steps of static shape.

For T5 of every kind, mT5, umT5 (a position bias per layer) and LongT5 (whose encoder is called as it is).
The decoder step launches as few kernels as possible: norm weights are folded into the next matrix, q, k and v are one
product, residuals are added by the product itself, and the keys and values of a text are computed once. Nothing here
reads a number back to the host, so a step can be captured as a CUDA graph or compiled as one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.activations import ACT2FN

from pusl.checkpoint import scales_output

HIDDEN = -1e30  # added to the score of what must not be seen; exp gives exactly 0
# One kernel each; Hugging Face's gelu_new takes eight.
KERNELS: dict[str, Callable[[Tensor], Tensor]] = {"gelu_new": partial(F.gelu, approximate="tanh"), "silu": F.silu}
MASK_ELEMENTS = 1 << 28  # of the encoder's attention mask at once; more texts than that are encoded in turns


@dataclass
class Feed:
    """The feed-forward part of a layer."""

    wide: Tensor
    narrow: Tensor
    act: Callable[[Tensor], Tensor] | None  # None: relu
    gated: bool

    def __call__(self, x: Tensor, eps: float) -> Tensor:
        h = F.rms_norm(x, x.shape[-1:], None, eps) @ self.wide
        if self.gated:
            gate, up = h.chunk(2, -1)
            h = (gate.relu() if self.act is None else self.act(gate)) * up
        else:
            h = h.relu_() if self.act is None else self.act(h)
        return torch.addmm(x, h, self.narrow)


@dataclass
class Layer:
    """Matrices of one layer, as `x @ matrix`."""

    qkv: Tensor
    out: Tensor
    feed: Feed


@dataclass
class CrossLayer(Layer):
    """A decoder layer, which also looks at the text."""

    cross_q: Tensor
    cross_kv: Tensor
    cross_out: Tensor


class DeviceT5:
    """T5's weights on their device, in one precision.

    Norms are folded in float32 before the result is rounded. Logits are always float32: rounded to bfloat16, many of
    the best tokens would be equal.
    """

    def __init__(self, model: Any, dtype: torch.dtype = torch.float32) -> None:
        config = model.config
        self.device: torch.device = model.device
        self.dtype = dtype
        self.heads, self.d_kv, self.eps = config.num_heads, config.d_kv, config.layer_norm_epsilon
        self.vocab_size = config.vocab_size
        with torch.no_grad():
            self.embedding = model.get_input_embeddings().weight.detach().to(dtype)
            self._stock: Any = model.encoder if config.model_type == "longt5" else None
            blocks = [] if self._stock is not None else model.encoder.block
            self.encoder = [self._layer(block, config) for block in blocks]
            memory_norm = None if self._stock is not None else model.encoder.final_layer_norm.weight
            self.decoder = [self._cross_layer(block, config, memory_norm) for block in model.decoder.block]
            scale = config.d_model**-0.5 if scales_output(config) else 1.0
            head = model.lm_head.weight.float() * (model.decoder.final_layer_norm.weight.float() * scale)
            # CUDA adds up bfloat16 products in float32, and newer torch returns them so; elsewhere float32 goes in.
            wide = self.device.type == "cuda" and "dtype" in torch.ops.aten.mm.overloads()
            self.head = head.to(dtype if wide else torch.float32).t().contiguous()
            # T5 tells distances apart up to a limit; everything farther away has one bias.
            limit = config.relative_attention_max_distance
            self.reach = limit
            shared = None if config.model_type == "umt5" else 1  # a bias for each layer, or one for all of them
            encoder = [_bias(block, limit + 1) for block in blocks[:shared]]
            decoder = [_bias(block, limit + 1) for block in model.decoder.block[:shared]]
            # Encoder: distance -limit ... limit. Decoder: hidden, then distance 0 ... limit. (biases * H, distances)
            self.encoder_ladder = self._ladder([torch.cat([one[:, -1], one[:, 0, 1:]], 1) for one in encoder])
            self.ladder = self._ladder([F.pad(one[:, -1].flip(-1), (1, 0), value=HIDDEN) for one in decoder])

    def _ladder(self, biases: Sequence[Tensor]) -> Tensor:
        if not biases:
            return torch.zeros(0, 1, dtype=self.dtype, device=self.device)
        return torch.cat(list(biases)).to(self.dtype).contiguous()

    def refresh(self, model: Any) -> None:
        """Overwrites all weights with those of a model of the same shape."""
        with torch.no_grad():
            other = DeviceT5(model, self.dtype)
            self._stock = other._stock
            for old, new in zip(self._tensors(), other._tensors(), strict=True):
                if old.data_ptr() != new.data_ptr():  # an embedding in the model's own precision is the model's
                    old.copy_(new)

    def _tensors(self) -> Iterator[Tensor]:
        yield from (self.embedding, self.head, self.encoder_ladder, self.ladder)
        for layer in (*self.encoder, *self.decoder):
            parts = {**vars(layer), **vars(layer.feed)}
            yield from (part for part in parts.values() if isinstance(part, Tensor))

    def _fold(self, weights: Sequence[Tensor], norm: Tensor | None = None) -> Tensor:
        weight = torch.cat([part.detach().float() for part in weights])
        return (weight if norm is None else weight * norm.float()).to(self.dtype).t().contiguous()

    def _layer(self, block: Any, config: Any) -> Layer:
        own, dense = block.layer[0].SelfAttention, block.layer[-1].DenseReluDense
        wide = [dense.wi_0.weight, dense.wi_1.weight] if config.is_gated_act else [dense.wi.weight]
        feed = Feed(
            wide=self._fold(wide, block.layer[-1].layer_norm.weight),
            narrow=self._fold([dense.wo.weight]),
            act=_activation(config.dense_act_fn),
            gated=config.is_gated_act,
        )
        qkv = self._fold([own.q.weight, own.k.weight, own.v.weight], block.layer[0].layer_norm.weight)
        return Layer(qkv, self._fold([own.o.weight]), feed)

    def _cross_layer(self, block: Any, config: Any, memory_norm: Tensor | None) -> CrossLayer:
        own, cross = self._layer(block, config), block.layer[1].EncDecAttention
        return CrossLayer(
            own.qkv,
            own.out,
            own.feed,
            cross_q=self._fold([cross.q.weight], block.layer[1].layer_norm.weight),
            cross_kv=self._fold([cross.k.weight, cross.v.weight], memory_norm),
            cross_out=self._fold([cross.o.weight]),
        )

    def norm(self, x: Tensor) -> Tensor:
        """T5's norm without its weight."""
        return F.rms_norm(x, x.shape[-1:], None, self.eps)

    def encode(self, tokens: Tensor, lengths: Tensor, slots: Tensor, memory: Tensor) -> None:
        """Texts of one padded length -> their keys and values, one write per decoder layer.

        Args:
            tokens: padded with anything. (m, S)
            lengths: real tokens of each text. (m,)
            slots: where in the memory each text goes. (m,)
            memory: keys and values of all slots. (L, n, S or more, 2HD)
        """
        count, length = tokens.shape
        at = torch.arange(length, device=self.device)
        unread = torch.where(at < lengths[:, None], 0.0, HIDDEN).to(self.dtype)[:, None, None]  # (m, 1, 1, S)
        biases = None if self._stock is not None else self._encoder_bias(at)  # (1 or L, 1, H, S, S)
        most = max(1, MASK_ELEMENTS // (self.heads * length * length))
        for a in range(0, count, most):
            b = min(count, a + most)
            if biases is None:
                mask = (at < lengths[a:b, None]).long()
                x = self._stock(input_ids=tokens[a:b], attention_mask=mask).last_hidden_state
                x = x.flatten(0, 1).to(self.dtype)  # (m*S, M)
            else:
                x = self._encoded(tokens[a:b], biases, unread[a:b])
            for number, layer in enumerate(self.decoder):
                keys_values = (x @ layer.cross_kv).view(b - a, length, -1)
                memory[number, :, :length].index_copy_(0, slots[a:b], keys_values)

    def _encoder_bias(self, at: Tensor) -> Tensor:
        distance = (at - at[:, None]).clamp_(-self.reach, self.reach) + self.reach  # (S, S)
        found = self.encoder_ladder.index_select(1, distance.flatten())
        return found.view(-1, 1, self.heads, len(at), len(at))  # (1 or L, 1, H, S, S)

    def _encoded(self, tokens: Tensor, biases: Tensor, unread: Tensor) -> Tensor:
        """The encoder's states, normed but for the norm's weight. (m, S) -> (m*S, M)"""
        count, length = tokens.shape
        x = F.embedding(tokens.flatten(), self.embedding)  # (m*S, M)
        for number, layer in enumerate(self.encoder):
            if number < len(biases):
                mask = biases[number] + unread  # (m, H, S, S)
            q, k, v = (self.norm(x) @ layer.qkv).view(count, length, 3, self.heads, self.d_kv).unbind(2)
            x = layer.feed(torch.addmm(x, self._attend(q, k, v, mask), layer.out), self.eps)
        return self.norm(x)

    def decode(
        self, tokens: Tensor, places: Tensor, bias: Tensor, cache: Tensor, memory: Tensor, unread: Tensor
    ) -> Tensor:
        """Feeds tokens and returns their last hidden states. (n*Q, M)

        Args:
            tokens: (n, Q)
            places: where in the flattened cache each token's key and value go. (n*Q,)
            bias: of every query and cache entry; it also says how many entries are looked at. (1 or L, n, H, Q, T)
            cache: keys and values of what was fed before. (L, n, T or more, 2HD)
            memory, unread: the texts' keys and values (L, n, S, 2HD), and a bias that hides the padding (n, 1, 1, S).
        """
        n, q_length = tokens.shape
        used, inner = bias.shape[-1], self.heads * self.d_kv
        x = F.embedding(tokens, self.embedding).flatten(0, 1)
        for number, (layer, own, text) in enumerate(zip(self.decoder, cache, memory, strict=True)):
            qkv = self.norm(x) @ layer.qkv
            own.view(-1, 2 * inner).index_copy_(0, places, qkv[:, inner:])
            q = qkv[:, :inner].view(n, q_length, self.heads, self.d_kv)
            k, v = own[:, :used].unflatten(-1, (2, self.heads, self.d_kv)).unbind(2)
            x = torch.addmm(x, self._attend(q, k, v, bias[number % len(bias)]), layer.out)
            q = (self.norm(x) @ layer.cross_q).view(n, q_length, self.heads, self.d_kv)
            k, v = text.unflatten(-1, (2, self.heads, self.d_kv)).unbind(2)
            x = torch.addmm(x, self._attend(q, k, v, unread), layer.cross_out)
            x = layer.feed(x, self.eps)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Last hidden states -> logits in float32. (N, V)"""
        x = self.norm(x)
        if self.head.dtype == torch.float32:
            return x.float() @ self.head
        return torch.mm(x, self.head, out_dtype=torch.float32)

    def bias(self, distance: Tensor) -> Tensor:
        """1 + distances into the past, 0 and less where hidden (n, Q, T) -> attention bias (1 or L, n, H, Q, T)."""
        n, q_length, used = distance.shape
        index = distance.clamp(0, self.reach + 1).flatten()
        return self.ladder.index_select(1, index).view(-1, self.heads, n, q_length, used).transpose(1, 2)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """(n, Q, H, D), (n, T, H, D) twice -> (n*Q, HD)"""
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
        return mixed.transpose(1, 2).reshape(-1, self.heads * self.d_kv)


def _activation(name: str) -> Callable[[Tensor], Tensor] | None:
    return None if name == "relu" else KERNELS.get(name) or ACT2FN[name]


def _bias(block: Any, length: int) -> Tensor:
    """The position bias of a stack as its first layer computes it. (H, length, length)"""
    with torch.no_grad():
        bias: Tensor = block.layer[0].SelfAttention.compute_bias(length, length)[0].detach().float()
    return bias
