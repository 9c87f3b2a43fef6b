"""Batches -> optimizer steps: Hugging Face's Trainer with our batches, our loss and our dev scores.

Three properties hold by construction and are tested. Dropout depends on (seed, micro-batch) only, so
that a resumed run and a run on more processes draw the same masks. The loss of a step is the sum over
its tokens divided by their number, whatever the number of micro-batches and processes. The best model
is written to the run's folder as soon as it is known.
"""

from __future__ import annotations

import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import Trainer, TrainerCallback, TrainingArguments

from pusl.training.collate import BatchPlan, PlanSampler
from pusl.training.optimizer import Muon
from pusl.training.record import mark_complete

PREFIX = "eval_"
LOG_INTERVAL = 30.0  # seconds between two lines of the bar in a log file, where nobody watches it


class TrainingError(RuntimeError):
    """Training cannot continue; the message says why and what to try."""


class EpochLoader(DataLoader):
    """A DataLoader that tells its batch sampler the epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]

    def check_worker_number_rationality(self) -> None:
        """More processes than cores are the user's wish; torch would warn of them, also in later epochs."""


class KeyphraseTrainer(Trainer):
    """Trainer with token-budget batches and generation scores.

    `score(step)` returns dev scores on every process; `keep(scores)` writes the best model (main process only).
    """

    loss_is_scaled_for_ga = True  # compute_loss divides by the tokens of the whole step

    def __init__(
        self, *, plan: BatchPlan, score: Callable[[], dict[str, float]] | None,
        keep: Callable[[dict[str, float]], None], metric: str, patience: int, seed: int, workers: int = 0,
        muon: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        _use_one_gpu(kwargs["args"])
        super().__init__(**kwargs)
        self.model_accepts_loss_kwargs = True  # asks Trainer to count the step's tokens
        self.plan, self.score, self.keep, self.workers = plan, score, keep, workers
        self.metric, self.patience, self.mask_seed = metric, patience, seed
        self.muon = muon
        self.items_seen = 0
        self.seconds = {"train": 0.0, "dev": 0.0}

    def get_train_dataloader(self) -> DataLoader:
        """This process's share of the plan; accelerate must not see it, since it would split it again."""
        sampler = PlanSampler(self.plan, self.args.process_index, self.args.world_size)
        return EpochLoader(
            self.train_dataset, batch_sampler=sampler, collate_fn=self.data_collator,  # type: ignore[arg-type]
            num_workers=self.workers, persistent_workers=self.workers > 0, pin_memory=torch.cuda.is_available(),
        )  # fmt: skip

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Moves a batch to the device; from pinned memory the host does not wait for it."""
        device = self.args.device
        return {
            name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
            for name, value in inputs.items()
        }

    def create_optimizer(self, model: Any = None) -> Any:
        """AdamW as Trainer makes it, or Muon."""
        if self.muon and self.optimizer is None:
            assert self.model is not None
            self.optimizer = Muon(self.model, self.args.learning_rate, self.args.weight_decay)
        return super().create_optimizer(model)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Loss of one micro-batch, as its share of the step's mean over target tokens."""
        self.items_seen += inputs.pop("items") * self.args.world_size
        torch.manual_seed(((self.mask_seed << 40) + inputs.pop("batch_number")) % 2**63)
        tokens = num_items_in_batch if num_items_in_batch is not None else (inputs["labels"] != -100).sum()
        # The processes' gradients are averaged, ours have to be added.
        loss = model(**inputs)["loss"] * self.args.world_size / tokens
        return (loss, {"loss": loss}) if return_outputs else loss

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Generates for the dev items, keeps the model if it is the best so far, and stops a stale run."""
        if self.score is None:
            return {}
        began = time.perf_counter()
        model: Any = self.model
        model.eval()
        with torch.random.fork_rng():
            scores = self.score()
        earlier = dev_history(self.state.log_history, self.metric)
        # As long as nothing is right, the model that saw more is the better guess.
        if not earlier or scores[self.metric] > max(earlier) or max(earlier) == 0:
            if self.is_world_process_zero():
                self.keep({"step": self.state.global_step, **scores})
            self.accelerator.wait_for_everyone()
        self.log({PREFIX + name: value for name, value in scores.items()})
        if is_stale(self.state.log_history, self.metric, self.patience):
            self.control.should_training_stop = True
        self.control.should_evaluate = False  # or the end of the epoch would ask again
        model.train()
        self.seconds["dev"] += time.perf_counter() - began
        return scores


def _use_one_gpu(args: TrainingArguments) -> None:
    """Without a launcher one process trains on one GPU: nn.DataParallel would average sums and split blocks wrongly."""
    count = args.n_gpu
    if count > 1:
        args._n_gpu = 1
        logging.getLogger(__name__).warning(
            f"{count} GPUs are here and one is used. For all of them: "
            f"accelerate launch --multi_gpu --num_processes {count} -m pusl train ..."
        )


def dev_history(log: list[dict[str, float]], metric: str) -> list[float]:
    """The dev metric's values so far."""
    return [entry[PREFIX + metric] for entry in log if PREFIX + metric in entry]


def is_stale(log: list[dict[str, float]], metric: str, patience: int) -> bool:
    """Whether none of the last `patience` dev scores was a new best.

    >>> log = [{"eval_B@2mu": value} for value in (0.1, 0.3, 0.3, 0.2)]
    >>> is_stale(log, "B@2mu", 2), is_stale(log, "B@2mu", 3), is_stale(log, "B@2mu", 0)
    (True, False, False)
    """
    values = dev_history(log, metric)
    if not patience or len(values) <= patience:
        return False
    # A model that has not been right once is still warming up, not stale.
    best = max(values[:-patience])
    return best > 0 and max(values[-patience:]) <= best


class Progress(TrainerCallback):
    """A bar with loss, learning rate, items/s and the latest dev score, on the main process."""

    def __init__(self, trainer: KeyphraseTrainer) -> None:
        self.trainer = trainer
        self.bar: tqdm | None = None
        self.shown: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self.bar = tqdm(
                total=state.max_steps, initial=state.global_step, unit="step", file=sys.stderr, desc="train",
                mininterval=0.1 if sys.stderr.isatty() else LOG_INTERVAL,
            )  # fmt: skip
        self.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.bar:
            self.bar.update(state.global_step - self.bar.n)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if not self.bar or not logs:
            return
        if "loss" in logs:
            busy = time.perf_counter() - self.began - self.trainer.seconds["dev"]
            self.shown["loss"] = f"{logs['loss']:.3f}"
            self.shown["lr"] = f"{logs['learning_rate']:.1e}"
            self.shown["items/s"] = f"{self.trainer.items_seen / max(busy, 1e-9):.0f}"
        for name in ("B@2mu", "F1@O"):
            if PREFIX + name in logs:
                self.shown[name] = f"{logs[PREFIX + name]:.3f}"
        self.bar.set_postfix(self.shown, refresh=False)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends the bar's line, so that an error begins its own."""
        if self.bar:
            self.bar.close()


class Checkpoints(TrainerCallback):
    """A mark on complete checkpoints, and a clean stop on signals."""

    def __init__(self, stop: StopSignal, on_save: Callable[[Any], None]) -> None:
        self.stop, self.saved = stop, on_save

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.stop.agreed(args):
            control.should_save = control.should_training_stop = True
        if control.should_save:
            control.should_log = True  # a resumed run starts a new window of the loss curve here, so every run does

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} at step {state.global_step}: the run diverged. "
                f"Start again with a smaller --lr (now {args.learning_rate:g}) or more --warmup"
            )

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            # A checkpoint without this mark was killed while writing; the one before it is used.
            mark_complete(Path(args.output_dir) / f"checkpoint-{state.global_step}")
            self.saved(state)
        control.should_save = False  # or the end of the epoch would ask again


class StopSignal:
    """Ctrl-C or SIGTERM -> finish the step, save, stop; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.requested = False
        self._earlier: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._earlier[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True

    def agreed(self, args: Any) -> bool:
        """Whether any process was asked to stop: all of them have to stop at the same step."""
        if args.world_size == 1:
            return self.requested
        flag = torch.tensor([float(self.requested)], device=args.device)
        torch.distributed.all_reduce(flag)
        return bool(flag.item())
