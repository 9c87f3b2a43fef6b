"""Words -> a Transformer or a BiLSTM -> one vector per label (word-label attention) or one per text -> label scores.

`word-label`: each label attends to the words, α_ij = softmax_i(h_i·w_j), φ_j = Σ_i α_ij h_i, score = MLP(φ_j).
`doc-vec`: the same encoder, the mean of the h_i, one linear layer. `attention-xml`: word-label attention over a BiLSTM,
the network of AttentionXML without its label tree. The Transformer starts from scratch, or from a pretrained
encoder (pretrained.py). The loss is binary cross-entropy. With many labels a step scores the batch's own labels and a
random sample of the others, and the logits are corrected for this sampling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tqdm.auto import tqdm

from pusl.baselines.label_matrix import TrainingData
from pusl.baselines.model import Baseline, Ranking, top_k
from pusl.config import DEVICE, option
from pusl.devices import resolve_device
from pusl.words import words
from pusl_eval.files import InputError, read_json, write_json
from pusl_eval.flags import SEED

PAD, UNKNOWN = 0, 1
DEEPEST = 100  # layers; a network takes memory before its first step


@dataclass
class AttentionConfig:
    width: int = option(128, "size of the vectors", minimum=8, maximum=8192)
    layers: int = option(1, "Transformer layers, without --encoder", minimum=1, maximum=DEEPEST)
    heads: int = option(4, "attention heads", minimum=1)
    length: int = option(64, "words read per text", minimum=1, maximum=100_000)
    epochs: int = option(10, "passes over the training items", minimum=1)
    batch: int = option(64, "items per step", minimum=1)
    rate: float = option(4e-3, "learning rate (AdamW, linear decay)", minimum=1e-9, maximum=1e6)
    dropout: float = option(0.2, "dropout on words and hidden vectors", minimum=0)
    negatives: int = option(500, "labels sampled per step in addition to the batch's own; 0 = all labels", minimum=0)
    label_layer: bool = option(True, "one last layer per label instead of a shared one; not for doc-vec")
    vocabulary: int = option(30_000, "size of the vocabulary, in words", minimum=10)
    seed: int = option(0, SEED, minimum=0)
    encoder: str = option("", "pretrained encoder to start from: a Hub id or a folder (BERT, T5, a PUSL model, ...)")
    encoder_layers: int = option(0, "lowest layers of the pretrained encoder to keep; 0 = all", minimum=0)
    encoder_rate: float = option(1e-4, "learning rate of the pretrained encoder's last layer", minimum=0, maximum=1e6)
    layer_decay: float = option(
        0.9, "discriminative rates: each layer learns at this times the rate of the layer above", minimum=0
    )
    warmup: float = option(
        0.1, "slanted rates: share of the steps in which a pretrained encoder's rates rise", minimum=0
    )
    device: str = option("auto", DEVICE)


@dataclass
class AttentionXmlConfig(AttentionConfig):
    """As published: one LSTM layer, and last layers that all labels share."""

    layers: int = option(1, "LSTM layers", minimum=1, maximum=DEEPEST)
    label_layer: bool = option(False, "one last layer per label instead of the shared ones")


class _Neural(Baseline):
    Config = AttentionConfig
    net_name: ClassVar[str]
    net: Any
    device: str = "cpu"

    tokenizer: Any = None  # of a pretrained encoder
    scratch: ClassVar[str] = "Encoder"

    def _build(self, known: int, encoder: Any = None) -> Any:
        from pusl.baselines import attention_net

        if not self.config.dropout < 1:
            raise InputError(f"--dropout {self.config.dropout:g} must be below 1")
        if encoder is None:
            if self.config.width % self.config.heads:
                raise InputError(f"--width {self.config.width} must be a multiple of --heads {self.config.heads}")
            encoder = getattr(attention_net, self.scratch)(known + 2, self.config)
        return getattr(attention_net, self.net_name)(encoder, len(self.labels), self.config)

    def _fit(self, data: TrainingData) -> None:
        import torch

        config = self.config
        encoder = None
        kept: list[str] = []
        if config.encoder:
            from pusl.baselines.pretrained import load_encoder

            if self.scratch != "Encoder":
                raise InputError("--encoder is for word-label and doc-vec; attention-xml reads with its own BiLSTM")
            if config.layers != AttentionConfig().layers:
                raise InputError("--layers is for models from scratch; with --encoder it is --encoder-layers")
            encoder, self.tokenizer = load_encoder(config.encoder, config.encoder_layers)
        else:
            if config.encoder_layers:
                raise InputError("--encoder-layers needs --encoder; the layers of a model from scratch are --layers")
            counts = Counter(word for text in data.texts for word in words(text))
            kept = [word for word, count in counts.most_common(config.vocabulary) if count > 1 or len(counts) < 1000]
        self.vocabulary = {word: number + 2 for number, word in enumerate(kept)}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.net = self._build(len(kept), encoder)
            shares = torch.from_numpy((data.frequencies + 0.5) / (len(data.texts) + 1)).float()
            with torch.no_grad():
                self.net.bias.weight.copy_(torch.logit(shares)[:, None])
            self._move(resolve_device(config.device))
            self._train(data)
        self.net.eval()

    def _move(self, device: str) -> None:
        self.device = device
        self.net.to(device)

    def _train(self, data: TrainingData) -> None:
        import torch

        config, draw = self.config, np.random.default_rng(self.config.seed)
        ids, lengths = self._ids(data.texts)
        per_epoch = -(-len(ids) // config.batch)
        steps = config.epochs * per_epoch
        if self.tokenizer is None:
            optimizer = torch.optim.AdamW(self.net.parameters(), lr=config.rate, weight_decay=0.01)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        else:
            inner = {id(parameter) for parameter in self.net.encoder.parameters()}
            heads = [parameter for parameter in self.net.parameters() if id(parameter) not in inner]
            groups = [{"params": heads}, *self.net.encoder.groups(config.encoder_rate, config.layer_decay)]
            optimizer = torch.optim.AdamW(groups, lr=config.rate, weight_decay=0.01)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: slanted(step, steps, config.warmup))
        self.net.train()
        for epoch in range(config.epochs):
            # Batches of similar length: sort within random blocks, then shuffle the batches.
            order = draw.permutation(len(ids))
            block_size = config.batch * 20
            blocks = [order[i : i + block_size] for i in range(0, len(order), block_size)]
            order = np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in blocks])
            starts = draw.permutation(per_epoch) * config.batch
            for start in tqdm(starts, f"epoch {epoch + 1}/{config.epochs}", leave=False, disable=None):
                rows = order[start : start + config.batch]
                loss = self._loss(data, rows, ids[rows, : max(1, lengths[rows].max())], draw)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
                optimizer.step()
                schedule.step()

    def _loss(self, data: TrainingData, rows: np.ndarray, ids: np.ndarray, draw: np.random.Generator) -> Any:
        import torch

        block = data.matrix[rows]
        chosen = sample_labels(np.unique(block.indices), len(data.labels), self.config.negatives, draw)
        target = torch.from_numpy(block[:, chosen].toarray()).float().to(self.device)
        logits = self.net(torch.from_numpy(ids).to(self.device), torch.from_numpy(chosen).to(self.device))  # (B, L)
        rates = negative_rates(data.frequencies[chosen] / len(data.texts), self.config, len(data.labels))
        logits = logits - torch.from_numpy(np.log(rates)).float().to(self.device)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="sum") / len(rows)

    def _ids(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if self.tokenizer is not None:
            from pusl.baselines.pretrained import token_table

            return token_table(self.tokenizer, texts, self.config.length, self.net.encoder.pad)
        table = np.full((len(texts), self.config.length), PAD, np.int64)
        lengths = np.zeros(len(texts), np.int64)
        for row, text in enumerate(texts):
            found = [self.vocabulary.get(word, UNKNOWN) for word in words(text)[: self.config.length]] or [UNKNOWN]
            table[row, : len(found)] = found
            lengths[row] = len(found)
        return table, lengths

    def rank(self, texts: Sequence[str], k: int) -> Ranking:
        import torch

        with torch.inference_mode():
            return self._rank(texts, k)

    def _rank(self, texts: Sequence[str], k: int) -> Ranking:
        import torch

        ids, lengths = self._ids(texts)
        parts = []
        for start in range(0, len(texts), 32):
            rows = ids[start : start + 32, : max(1, lengths[start : start + 32].max())]
            words_of = torch.from_numpy(rows).to(self.device)
            scores = [
                self.net(words_of, torch.arange(first, min(first + 4096, len(self.labels))).to(self.device))
                for first in range(0, len(self.labels), 4096)
            ]
            parts.append(top_k(torch.cat(scores, dim=1).sigmoid().cpu().numpy(), k))
        return np.concatenate([numbers for numbers, _ in parts]), np.concatenate([scores for _, scores in parts])

    def _save(self, folder: Path) -> None:
        from safetensors.torch import save_file

        write_json(folder / "vocabulary.json", {"words": list(self.vocabulary)})
        save_file(
            {name: part.contiguous().cpu() for name, part in self.net.state_dict().items()},
            folder / "model.safetensors",
        )
        if self.tokenizer is not None:
            from pusl.baselines.pretrained import save_encoder

            save_encoder(folder / "encoder", self.net.encoder, self.tokenizer)

    def _load(self, folder: Path) -> None:
        from safetensors.torch import load_file

        stored = read_json(folder / "vocabulary.json")["words"]
        self.vocabulary = {word: number + 2 for number, word in enumerate(stored)}
        encoder = None
        if self.config.encoder:
            from pusl.baselines.pretrained import empty_encoder

            encoder, self.tokenizer = empty_encoder(folder / "encoder", self.config.encoder_layers)
        self.net = self._build(len(stored), encoder)
        self.net.load_state_dict(load_file(folder / "model.safetensors"))
        self._move(resolve_device("auto"))  # the machine that trained it may have had another
        self.net.eval()


def slanted(step: int, steps: int, rising: float) -> float:
    """Share of the learning rate at a step: a short rise, then a long fall (slanted triangular).

    >>> [round(slanted(step, 10, 0.2), 2) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.12]
    """
    top = max(1, round(rising * steps)) if rising > 0 else 0
    if step < top:
        return (step + 1) / top
    return (steps - step) / max(1, steps - top)


def sample_labels(own: np.ndarray, total: int, count: int, draw: np.random.Generator) -> np.ndarray:
    """The batch's own labels and `count` random ones; all labels if `count` is 0."""
    if count == 0 or total <= len(own) + count:
        return np.arange(total)
    return np.union1d(own, draw.choice(total, count, replace=False)).astype(np.int64)


def negative_rates(shares: np.ndarray, config: AttentionConfig, total: int) -> np.ndarray:
    """How often a label is scored for an item that lacks it: another item of the batch has it, or it was drawn.

    If a label is scored for all items that have it, but only for a share q of the others, its odds grow by 1/q.
    Subtracting ln q from the logit in training makes the model learn the true odds.
    """
    if config.negatives == 0:
        return np.ones_like(shares)
    drawn = min(1.0, config.negatives / total)
    return 1 - (1 - shares) ** (config.batch - 1) * (1 - drawn)


class WordLabel(_Neural):
    """Trained from scratch, or from a pretrained encoder (--encoder). Scores are sigmoid outputs (probabilities)."""

    net_name = "WordLabelNet"


class DocVec(_Neural):
    """Scores are sigmoid outputs (probabilities)."""

    net_name = "DocVecNet"


class AttentionXml(_Neural):
    """AttentionXML's network over all labels, without its label tree and ensemble. Scores are sigmoid outputs
    (probabilities). It reads with its own BiLSTM, so the flags for a pretrained encoder do not apply.
    """

    Config = AttentionXmlConfig
    net_name = "WordLabelNet"
    scratch = "BiLstm"
