"""Flags and YAML -> a checked TrainConfig.

Options with the value `None` depend on the model or the paradigm: what suits t5-base ruins a random model
of a million parameters, and the reverse. `resolve` fills them in, so that run.json shows what was used.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from pusl import paradigms
from pusl.checkpoint import SHAPES
from pusl.config import DEVICE, check, option
from pusl.devices import resolve_device
from pusl.examples import Columns
from pusl.paradigms import LOSSES, ORDERS
from pusl_eval.files import InputError, check_input
from pusl_eval.flags import SEED

METRICS = ("B@2mu", "B@mu", "F1@O")
SCRATCH = "scratch:"

OPTIMIZERS = ("adamw", "muon")
PRETRAINED_RATE = 2e-4  # paper: t5-base
# AdamW's learning rate for random models, by shape; Muon takes one for all
SCRATCH_RATES = {"tiny": 3e-3, "mini": 1e-3, "small": 5e-4}
MUON_RATE = 1e-2
MOST_SEEDS = 2**32  # as many as numpy takes


@dataclass(frozen=True)
class TrainConfig(Columns):
    """Everything that decides a training run."""

    paradigm: str = option("pusl", "what the model learns to write for an item", paradigms.names)
    model: str = option(
        "google-t5/t5-base", "model to start from: a Hub id, a folder, or scratch:tiny, scratch:mini or scratch:small"
    )
    train: str | None = option(None, "training file (JSONL, JSONL.gz, Parquet, CSV, TSV): id, text, keyphrases")
    dev: str | None = option(None, "held-out items to find the best model with; without them the last one is kept")
    out: str | None = option(None, "folder for the best model")
    epochs: float = option(10.0, "passes over the training file", minimum=0.0001)
    max_steps: int | None = option(None, "stop after this many optimizer steps instead of --epochs", minimum=1)
    optimizer: str | None = option(
        None, "muon trains new models several times faster (default: adamw pretrained, muon scratch)", OPTIMIZERS
    )
    lr: float | None = option(
        None, "peak learning rate (default: muon 1e-2; adamw 2e-4 pretrained, 5e-4 to 3e-3 scratch)", minimum=0.0
    )
    batch_size: int | None = option(
        None, "items per optimizer step on average, over all processes (default: 32 pretrained, 64 scratch)", minimum=1
    )
    accumulation: int = option(
        1, "micro-batches of different lengths per step and process; more of them need less memory", minimum=1
    )
    tokens_per_batch: int | None = option(
        None, "padded tokens (source + target) per micro-batch, instead of --batch-size", minimum=16
    )
    order: str | None = option(
        None, "order of an item's keyphrases; shuffle: another one in every epoch (default: shuffle)", ORDERS
    )
    loss: str | None = option(
        None,
        "order-free: any token that continues one of the keyphrases is right; sequence: only the next one "
        "(default: order-free for groov, else sequence)",
        LOSSES,
    )
    restart: float = option(
        0.0,
        "pusl: probability that a keyphrase is learned without those before it; 1 is the same as one2one",
        minimum=0.0,
    )
    learn_bok: bool = option(False, "pusl: include <bok> in the loss, as the paper does; the decoder always inserts it")
    min_keyphrases: int = option(
        1, "train only on items with at least this many keyphrases; helps if most labels are missing", minimum=1
    )
    mu: float | None = option(
        None, "μ, mean keyphrases per item, for scores and defaults (default: that of the training file)", minimum=0.0
    )
    max_source_length: int = option(256, "source tokens; longer texts are truncated", minimum=2)
    max_target_length: int = option(256, "target tokens; longer targets are truncated between keyphrases", minimum=4)
    max_phrase_tokens: int = option(48, "longest keyphrase, in tokens; longer ones are dropped", minimum=1)
    vocab_size: int | None = option(
        None, "vocabulary size of scratch models (default: 2000 tiny, 8000 mini, 32000 small)", minimum=260
    )
    dropout: float | None = option(None, "dropout rate (default: the model's own, 0.1 for scratch)", minimum=0.0)
    warmup: float = option(0.05, "share of the steps with a rising learning rate", minimum=0.0)
    weight_decay: float = option(0.0, "weight decay", minimum=0.0)
    max_grad_norm: float = option(1.0, "largest gradient norm; larger gradients are clipped", minimum=0.0)
    seed: int = option(0, SEED, minimum=0)
    eval_every: int | None = option(None, "steps between two dev scores (default: a tenth of the run)", minimum=1)
    dev_items: int = option(500, "score at most this many dev items during training", minimum=1)
    metric: str = option(
        "B@2mu", "dev score that chooses the best model; F1@O counts at most 2μ phrases per item", METRICS
    )
    patience: int = option(3, "stop after this many dev scores without a better one; 0 never stops", minimum=0)
    save_every: int | None = option(None, "steps between checkpoints for --resume (default: --eval-every)", minimum=1)
    log_every: int = option(10, "steps between points of the loss curve", minimum=1)
    device: str = option("auto", DEVICE)
    bf16: bool | None = option(None, "compute in bfloat16 (default: on GPUs that have it); T5 overflows in float16")
    compile: bool = option(False, "compile the model with torch.compile: minutes of preparation, faster steps on a GPU")
    gradient_checkpointing: bool = option(False, "recompute activations in the backward pass: less memory, more time")
    sampled_softmax: int | None = option(
        None,
        "loss over the tokens of the training keyphrases and this many others, drawn anew in each batch, instead of "
        "the whole vocabulary: less time and memory if the vocabulary is large, as mT5's is (try 1000)",
        minimum=1,
    )
    workers: int = option(0, "processes that prepare batches", minimum=0)
    pad_multiple: int = option(8, "pad lengths to a multiple of this", minimum=1, maximum=1024)
    report_to: str = option(
        "none", "where to log: none, tensorboard, wandb, mlflow or another tracker that Hugging Face Trainer knows"
    )
    push_to_hub: str | None = option(None, "Hub repository (user/model) for the finished model, private if it is new")
    push_public: bool = option(False, "make a new Hub repository public, and allow one that is public already")
    push_labels: bool | None = option(None, "upload the training labels too (default: you are asked)")
    license: str | None = option(None, "license of the model, for its card: apache-2.0, mit, ...")
    language: str | None = option(None, "languages of the texts, for the model card: en, or en,de")
    dataset: str | None = option(None, "Hub id of the training data, for the model card")
    keep_checkpoints: bool = option(False, "keep optimizer states and checkpoints after the run")

    @property
    def shape(self) -> str:
        """`tiny` for scratch:tiny, an empty string for pretrained models."""
        return self.model.removeprefix(SCRATCH) if self.model.startswith(SCRATCH) else ""

    @property
    def order_free(self) -> bool:
        """Whether the order-free loss is used."""
        return self.loss == "order-free"


def check_scratch(model: str) -> None:
    """Refuses `scratch:` with a shape that is not known; any other name is a folder or a Hub id."""
    if model.startswith(SCRATCH) and model.removeprefix(SCRATCH) not in SHAPES:
        raise InputError(f"unknown model '{model}'; known: {', '.join(SCRATCH + name for name in SHAPES)}")


def resolve(config: TrainConfig) -> TrainConfig:
    """The config with its `None` values filled in, or an InputError that names what is wrong."""
    check(config)
    missing = [f"--{name}" for name in ("train", "out") if not getattr(config, name)]
    if missing:
        raise InputError(f"{' and '.join(missing)} must be given")
    for name in ("train", "dev"):
        if getattr(config, name):
            check_input(getattr(config, name))
    check_scratch(config.model)
    resolve_device(config.device)
    if config.seed >= MOST_SEEDS:
        raise InputError(f"'seed' is {config.seed}; it must be below {MOST_SEEDS}")
    if config.dropout is not None and config.dropout >= 1:
        raise InputError(f"'dropout' is {config.dropout}; it must be below 1")
    if config.max_phrase_tokens + 2 > config.max_target_length:
        raise InputError(
            f"'max_target_length' is {config.max_target_length}; it must leave room for a keyphrase of "
            f"'max_phrase_tokens' ({config.max_phrase_tokens}) and its two marks"
        )
    paradigm = paradigms.get(config.paradigm)
    paradigm.check(config)
    optimizer = config.optimizer or ("muon" if config.shape else "adamw")
    rate = MUON_RATE if optimizer == "muon" else SCRATCH_RATES.get(config.shape, PRETRAINED_RATE)
    opened: dict[str, Any] = {
        "optimizer": optimizer, "lr": rate, "batch_size": 64 if config.shape else 32,
        "loss": paradigm.losses[0], "order": paradigm.orders[0],
    }  # fmt: skip
    if config.shape:
        opened["vocab_size"] = SHAPES[config.shape][-1]
    opened = {name: value for name, value in opened.items() if getattr(config, name) is None}
    return dataclasses.replace(config, **opened)
