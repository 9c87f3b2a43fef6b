"""A batch -> its summed loss: T5 with logits only at target positions, and keyphrases side by side.

The model keeps its weights, its config and its way of saving; only `forward` differs, and only for a batch
with labels. (1) Logits are computed at target positions and nowhere else. (2) Several sequences of a document
(One2One's keyphrases, PUSL's restarts) share ONE decoder row under a block mask, so that document and decoder
run once. T5's position bias depends on distances only. Inside a block they are those of a row of its own, so
the mask is enough to restart the positions. Losses and gradients equal those of repeated pairs.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import MT5ForConditionalGeneration, T5ForConditionalGeneration

from pusl.checkpoint import scales_output
from pusl.training.losses import multi_softmax_loss, sequence_loss
from pusl.training.sampled_softmax import SampledSoftmax

IGNORED = -100  # label of a padded position
FEW_ROWS = 4  # a vocabulary is large if it has this many times the ids of a batch


def counted_positions(labels: Tensor) -> Tensor:
    """Where the flattened labels count. (B, T) -> (N,)

    >>> counted_positions(torch.tensor([[5, IGNORED], [IGNORED, 7]]))
    tensor([0, 3])
    """
    return torch.nonzero(labels.flatten() != IGNORED)[:, 0]


def _fast_attention(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Plain products for bfloat16 attention on a CPU, where torch's fused kernel takes several times as long."""
    if device.type == "cpu" and torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling():
        return sdpa_kernel(SDPBackend.MATH)
    return contextlib.nullcontext()


class _KeyphraseLoss:
    """Mixed into a T5 class: forward with labels returns {"loss": sum over target tokens}."""

    sampled_softmax: SampledSoftmax | None = None

    def forward(
        self: Any, *args: Any, labels: Tensor | None = None, blocks: Tensor | None = None, **kwargs: Any
    ) -> Any:
        if labels is None:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        allowed, positions = kwargs.pop("allowed", None), kwargs.pop("positions", None)
        if positions is None:  # a collator that does not name them costs a wait on a GPU
            positions = counted_positions(labels)
        source, source_mask = kwargs.pop("input_ids"), kwargs.pop("attention_mask")  # (B, S)
        target = kwargs.pop("decoder_input_ids")  # (B, T)
        source_in, target_in = self._embedded(source, target)
        mask = None if blocks is None else self._block_mask(blocks)
        if source.device.type != "cpu":  # Hugging Face would ask a GPU whether the mask hides anything, and wait
            source_mask = self._added(source_mask[:, None, None].bool())  # (B, 1, 1, S)
        with _fast_attention(source.device):
            encoded = self.encoder(**source_in, attention_mask=source_mask).last_hidden_state  # (B, S, D)
            hidden = self.decoder(
                **target_in, attention_mask=mask, encoder_hidden_states=encoded,
                encoder_attention_mask=source_mask, use_cache=False,
            ).last_hidden_state  # (B, T, D)  # fmt: skip
        hidden = hidden.flatten(0, 1).index_select(0, positions)  # (N, D)
        if scales_output(self.config):
            hidden = hidden * (self.config.d_model**-0.5)
        right = labels.flatten().index_select(0, positions) if allowed is None else allowed  # (N,) or (N, M)
        if self.sampled_softmax is None:
            logits = self.lm_head(hidden)  # (N, V)
        else:
            logits, right = self.sampled_softmax.logits(hidden, self.lm_head.weight), self.sampled_softmax.places(right)
        return {"loss": sequence_loss(logits, right) if allowed is None else multi_softmax_loss(logits, right)}

    def _embedded(self: Any, source: Tensor, target: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What encoder and decoder take in: ids, or on a CPU the embeddings of those few rows that the batch has.

        The gradient of a lookup is as large as its table: T5's 66 MB of zeros, once for the encoder and once for the
        decoder. Looked up together, the table gets one such gradient.
        """
        table = self.get_input_embeddings().weight  # (V, D)
        shared = self.encoder.embed_tokens.weight is table and self.decoder.embed_tokens.weight is table
        many = len(table) < FEW_ROWS * (source.numel() + target.numel())
        if table.device.type != "cpu" or torch.compiler.is_compiling() or many or not shared:
            return {"input_ids": source}, {"input_ids": target}
        ids, places = torch.cat([source.flatten(), target.flatten()]).unique(return_inverse=True)
        rows = functional.embedding(ids, table)  # (U, D)
        of_source, of_target = places.split([source.numel(), target.numel()])
        return (
            {"inputs_embeds": functional.embedding(of_source.view_as(source), rows)},  # (B, S, D)
            {"inputs_embeds": functional.embedding(of_target.view_as(target), rows)},  # (B, T, D)
        )

    def _block_mask(self: Any, blocks: Tensor) -> Tensor:
        """(B, T) block numbers -> (B, 1, T, T): each position sees its own block up to itself."""
        same = blocks[:, :, None] == blocks[:, None, :]  # (B, T, T)
        return self._added(same.tril()[:, None])  # (B, 1, T, T)

    def _added(self: Any, mask: Tensor) -> Tensor:
        """A mask as the model's attention takes it."""
        if self.config._attn_implementation != "eager":
            return mask
        dtype = self.get_input_embeddings().weight.dtype  # eager attention adds its mask
        return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


class LossT5(_KeyphraseLoss, T5ForConditionalGeneration):
    """T5 that returns our losses."""


class LossMT5(_KeyphraseLoss, MT5ForConditionalGeneration):
    """mT5 that returns our losses."""


_TRAINABLE = {T5ForConditionalGeneration: LossT5, MT5ForConditionalGeneration: LossMT5}
_PLAIN = {loss: plain for plain, loss in _TRAINABLE.items()}


def with_loss(model: Any, sampled_softmax: SampledSoftmax | None = None) -> Any:
    """The same weights and modules as a model that computes our losses; `model` itself stays as it is.

    Without `sampled_softmax` the loss is over the whole vocabulary, whatever an earlier call said.
    """
    found = _view(model, _TRAINABLE.get(type(model), type(model)))
    found.sampled_softmax = sampled_softmax
    return found


def without_loss(model: Any) -> Any:
    """The same weights and modules as plain Hugging Face T5 (the class name is saved in config.json)."""
    return _view(model, _PLAIN.get(type(model), type(model)))


def _view(model: Any, kind: Any) -> Any:
    """A second object over the first one's state: whatever is set on either of them is set on both."""
    if type(model) is kind:
        return model
    view = kind.__new__(kind)
    view.__dict__ = model.__dict__
    return view
