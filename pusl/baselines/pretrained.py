"""A hub id or a folder -> a pretrained text encoder and its tokenizer, for word-label and doc-vec.

Any encoder that transformers knows (BERT, RoBERTa, the encoder of a T5 or of a PUSL model). Upper layers can be left
out, and every layer gets its own learning rate: lower layers hold general knowledge and should move less
(discriminative rates, Howard and Ruder 2018).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pusl_eval.files import InputError

LAYERS = ("block", "layer", "layers", "h")  # what families call their list of layers


class PretrainedEncoder(nn.Module):
    """Token ids -> hidden vectors."""

    def __init__(self, model: Any, pad: int, layers: int = 0) -> None:
        super().__init__()
        self.model = model
        self.pad = pad
        self.width = int(model.config.hidden_size)
        parent, name = layer_list(model)
        total = len(getattr(parent, name))
        if layers > total:
            raise InputError(f"--encoder-layers is {layers}; the encoder has {total} layers")
        if layers:
            setattr(parent, name, getattr(parent, name)[:layers])
        self._layers = [*getattr(parent, name)]

    def forward(self, ids: Tensor) -> Tensor:
        mask = (ids != self.pad).long()
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state  # (B, T, D)

    def groups(self, rate: float, decay: float) -> Iterator[dict[str, Any]]:
        """One group of parameters per layer with its learning rate; embeddings move least."""
        used: set[int] = set()
        for depth, layer in enumerate(reversed(self._layers)):
            parameters = [p for p in layer.parameters() if id(p) not in used]
            used.update(map(id, parameters))
            yield {"params": parameters, "lr": rate * decay**depth}
        rest = [p for p in self.model.parameters() if id(p) not in used]
        yield {"params": rest, "lr": rate * decay ** len(self._layers)}


def layer_list(model: Any) -> tuple[Any, str]:
    """The module that holds the encoder's layers, and the list's name."""
    found = [
        (len(part), module, name)
        for module in model.modules()
        for name, part in module.named_children()
        if isinstance(part, nn.ModuleList) and name in LAYERS
    ]
    if not found:
        raise InputError(f"a {model.config.model_type} has no list of layers that this baseline knows")
    _, module, name = max(found, key=lambda entry: entry[0])
    return module, name


def load_encoder(name: str, layers: int = 0) -> tuple[PretrainedEncoder, Any]:
    """The pretrained encoder and its tokenizer; an InputError names what is wrong."""
    from transformers import AutoModel, AutoTokenizer

    from pusl.checkpoint import quiet

    with quiet():
        try:
            model = AutoModel.from_pretrained(name, dtype=torch.float32, trust_remote_code=False)
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except Exception as error:
            # transformers, safetensors and tokenizers each have their own errors
            reason = " ".join(str(error).split())[:120]
            raise InputError(
                f"--encoder {name}: not a folder with a model, and not found on the Hub ({reason})"
            ) from None
    return _wrap(model, tokenizer, layers), tokenizer


def save_encoder(folder: Path, encoder: PretrainedEncoder, tokenizer: Any) -> None:
    """Its shape and its tokenizer; the weights are stored with the rest of the network."""
    encoder.model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def empty_encoder(folder: Path, layers: int) -> tuple[PretrainedEncoder, Any]:
    """An encoder of the stored shape, its weights still to be loaded."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    model = AutoModel.from_config(AutoConfig.from_pretrained(folder, trust_remote_code=False))
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    return _wrap(model, tokenizer, layers), tokenizer


def _wrap(model: Any, tokenizer: Any, layers: int) -> PretrainedEncoder:
    if model.config.is_encoder_decoder:
        model = model.get_encoder()
    return PretrainedEncoder(model, tokenizer.pad_token_id or 0, layers)


def token_table(tokenizer: Any, texts: Sequence[str], length: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids, cut at `length` and padded, and how many each text has."""
    lists = tokenizer(list(texts), truncation=True, max_length=length)["input_ids"]
    table = np.full((len(texts), length), pad, np.int64)
    for row, ids in enumerate(lists):
        table[row, : len(ids)] = ids
    return table, np.array([len(ids) for ids in lists], np.int64)
