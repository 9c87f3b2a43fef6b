"""Word ids + label numbers -> logits: a Transformer or a BiLSTM under word-label attention or one mean vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pusl.baselines.attention import PAD


class Encoder(nn.Module):
    """Word ids -> hidden vectors."""

    def __init__(self, size: int, config: Any) -> None:
        super().__init__()
        self.pad, self.width = PAD, config.width
        self.words = nn.Embedding(size, config.width, padding_idx=PAD)
        self.places = nn.Embedding(config.length, config.width)
        nn.init.normal_(self.words.weight, std=0.1)
        nn.init.normal_(self.places.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            config.width, config.heads, 2 * config.width, config.dropout, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, ids: Tensor) -> Tensor:
        position = torch.arange(ids.shape[1], device=ids.device)
        hidden = self.dropout(self.words(ids) + self.places(position))  # (B, T, D)
        return self.layers(hidden, src_key_padding_mask=ids == PAD)  # (B, T, D)


class BiLstm(nn.Module):
    """Word ids -> hidden vectors of a bidirectional LSTM, half of each from either side."""

    def __init__(self, size: int, config: Any) -> None:
        super().__init__()
        self.pad, self.width = PAD, 2 * (config.width // 2)
        self.words = nn.Embedding(size, config.width, padding_idx=PAD)
        nn.init.normal_(self.words.weight, std=0.1)
        self.lstm = nn.LSTM(config.width, config.width // 2, config.layers, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, ids: Tensor) -> Tensor:
        lengths = (ids != PAD).sum(dim=1).clamp(min=1).cpu()
        # Packed, so that the backward direction starts at a text's last word and not in the padding.
        words = nn.utils.rnn.pack_padded_sequence(self.dropout(self.words(ids)), lengths, True, enforce_sorted=False)
        hidden, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(words)[0], True, total_length=ids.shape[1])
        return self.dropout(hidden)  # (B, T, D)


class LabelNet(nn.Module):
    """An encoder (with `width` and `pad`), and a vector and a bias for each label."""

    def __init__(self, encoder: Any, labels: int, config: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.queries = nn.Embedding(labels, encoder.width)
        self.bias = nn.Embedding(labels, 1)
        nn.init.normal_(self.queries.weight, std=0.1)


class WordLabelNet(LabelNet):
    """Each label attends to the words with its own vector."""

    def __init__(self, encoder: Any, labels: int, config: Any) -> None:
        super().__init__(encoder, labels, config)
        width = encoder.width
        self.hidden = nn.Linear(width, width)
        # With one shared last layer, two labels that attend to the same words would differ only in the bias.
        self.out: nn.Embedding | None = nn.Embedding(labels, width) if config.label_layer else None
        self.shared = nn.Linear(width, 1)
        if self.out is not None:
            nn.init.normal_(self.out.weight, std=0.1)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        hidden = self.encoder(ids)  # (B, T, D)
        fit = hidden @ self.queries(labels).T  # (B, T, L)
        share = fit.masked_fill((ids == self.encoder.pad)[:, :, None], -1e9).softmax(dim=1)  # (B, T, L)
        seen = share.transpose(1, 2) @ hidden  # (B, L, D)
        inner = torch.relu(self.hidden(seen))  # (B, L, D)
        if self.out is None:
            return self.shared(inner).squeeze(-1) + self.bias(labels).T  # (B, L)
        return (inner * self.out(labels)).sum(dim=-1) + self.bias(labels).T  # (B, L)


class DocVecNet(LabelNet):
    """One vector per text, one linear layer."""

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        known = (ids != self.encoder.pad)[:, :, None]
        mean = (self.encoder(ids) * known).sum(dim=1) / known.sum(dim=1).clamp(min=1)  # (B, D)
        return mean @ self.queries(labels).T + self.bias(labels).T  # (B, L)
