"""TrainConfig -> a trained model folder. The one function behind `pusl train`.

    from pusl.training import TrainConfig, train
    train(TrainConfig(paradigm="pusl", model="scratch:tiny", train="train.jsonl", dev="dev.jsonl", out="model"))

Resumable; deterministic on one device; distributed by `accelerate launch --multi_gpu --num_processes 4
-m pusl train ...` or torchrun (on CPUs set ACCELERATE_USE_CPU=true).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.trainer_callback import PrinterCallback

from pusl import paradigms
from pusl.checkpoint import LABELS_FILE, Checkpoint, load_base, quiet, save_checkpoint, save_labels, scratch_model
from pusl.devices import choose_device, cuda_settings, has_fast_bf16, resolve_device
from pusl.examples import read_examples
from pusl.hub import check_login, push
from pusl.tokenizer import token_ids, train_tokenizer
from pusl.training.collate import BatchPlan, Collator, target_lengths
from pusl.training.curves import CURVE_FILE, curve_points, draw_curve
from pusl.training.data import PreparedData, is_prepared, prepare
from pusl.training.dev_scores import DevSet, metadata, warn_of_overlap
from pusl.training.modelcard import write_card
from pusl.training.objective import with_loss, without_loss
from pusl.training.record import RunFolder, RunRecord, check_base, check_complete, check_same, new_record
from pusl.training.sampled_softmax import SampledSoftmax
from pusl.training.train_config import TrainConfig, resolve
from pusl.training.trainer import Checkpoints, KeyphraseTrainer, Progress, StopSignal, TrainingError, is_stale
from pusl_eval.files import InputError, folder_atomic

__all__ = ["TrainConfig", "TrainResult", "TrainingError", "is_main_process", "train"]

log = logging.getLogger(__name__)
EVALUATIONS = 10  # dev scores per run, unless eval_every says otherwise


@dataclass
class TrainResult:
    """How a run ended. `finished` is False after Ctrl-C; `best` holds the dev scores of the kept model."""

    path: Path
    finished: bool
    steps: int
    best: dict[str, float] | None
    record: RunRecord


def train(
    config: TrainConfig, *, resume: bool = False, force: bool = False, labels: Iterable[str] | None = None,
    score_first: bool = False, callbacks: Sequence[TrainerCallback] = (),
) -> TrainResult:  # fmt: skip
    """Trains one model and returns how it went. `config.out` holds the best model.

    Nothing is written, and with `force` nothing is removed, until the input has been checked and the model loaded.

    Args:
        config: what to train, on what, where to.
        resume: continue the unfinished run in `config.out`.
        force: replace the run in `config.out`.
        labels: the model's training labels, where they are not those of the training file.
        callbacks: your own `transformers.TrainerCallback` objects; they see every step, log and dev score.
        score_first: also score the model before its first step; it stays if training never beats it.
    """
    config = resolve(config)
    device = choose_device(config.device)
    config = with_precision(config, device)
    state = PartialState(cpu=device == "cpu")  # without a GPU only this makes it distributed
    folder = RunFolder(str(config.out))
    check_base(config.model, folder.path)
    record = folder.admit(resume, force)
    if record is not None:
        check_same(config, record, folder.path)
        if record["status"] == "finished":
            if state.is_main_process:
                folder.tidy(config.keep_checkpoints)  # a kill may have come before
            return TrainResult(folder.path, True, record["steps"], record["best"], record)
    with quiet():
        base = None if config.shape else load_base(config.model, config.dropout, paradigms.get(config.paradigm))
    _check_first_rows(config)
    _check_report_to(config.report_to)
    if config.push_to_hub:
        check_push(config)
    state.wait_for_everyone()  # all have read the folder before the main process writes to it
    is_new = record is None
    with folder.locked() if state.is_main_process else contextlib.nullcontext():
        if state.is_main_process:
            folder.admit(resume, force)  # another run may have begun or ended here meanwhile
        if is_new and state.is_main_process:
            folder.begin(new_record(config, state.num_processes, device), force)
        state.wait_for_everyone()
        record = folder.record()
        assert record is not None
        try:
            with quiet():
                return TrainingRun(config, folder, record, state, base, labels, score_first, callbacks).run()
        except InputError:
            if is_new and state.is_main_process:
                folder.discard()  # so that the corrected command needs no --force
            raise


def check_push(config: TrainConfig) -> None:
    """What would stop the upload after hours of training stops the run before its first step."""
    if config.push_labels is None:
        raise InputError(
            "--push-to-hub: the model comes with its training labels (labels.txt.gz). "
            "Pass --push-labels to upload them or --no-push-labels to leave them out"
        )
    check_login(str(config.push_to_hub))


def _check_first_rows(config: TrainConfig) -> None:
    """Missing columns and empty files are found here, before anything is written."""
    for path in filter(None, (config.train, config.dev)):
        next(iter(read_examples(path, columns=config)))


def _check_report_to(name: str) -> None:
    """An integration that is not installed would stop the run after its data were prepared."""
    from transformers.integrations.integration_utils import get_available_reporting_integrations

    installed = ["none", "all", *get_available_reporting_integrations()]
    if name not in installed:
        raise InputError(f"--report-to {name}: not installed or not known; here it can be {', '.join(installed)}")


class TrainingRun:
    """One call of `train`, after all checks. `base`: a pretrained model and its tokenizer."""

    def __init__(
        self, config: TrainConfig, folder: RunFolder, record: RunRecord, state: PartialState,
        base: tuple[Any, Any] | None, labels: Iterable[str] | None, score_first: bool,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:  # fmt: skip
        self.config, self.folder, self.record, self.state = config, folder, record, state
        self.labels, self.score_first, self.callbacks = labels, score_first, callbacks
        self.paradigm = paradigms.get(config.paradigm)
        began = time.perf_counter()
        self.model, self.tokenizer = base or self._from_scratch()
        self.tokens = token_ids(self.tokenizer, self.model.config)
        is_new = not is_prepared(folder.data)
        self._on_main(is_new, self._prepare)
        self.data = PreparedData(folder.data, str(config.order), config.seed, config.restart)
        self.summary = self.data.summary
        self.mu = config.mu or self.summary.mu
        self.dev = DevSet(config.dev, self.mu, config.dev_items, config) if config.dev else None
        if self.dev and is_new and state.is_main_process:
            warn_of_overlap(self.dev, str(config.train), config)
        self.plan = self._plan()
        steps = len(self.plan) // (config.accumulation * state.num_processes)
        self.max_steps = config.max_steps or math.ceil(config.epochs * steps)
        self.record["summary"] = dataclasses.asdict(self.summary)
        self.record["parameters"] = sum(parameter.numel() for parameter in self.model.parameters())
        self.record["max_steps"] = self.max_steps
        self.record["timings"]["prepare"] += time.perf_counter() - began
        self.spent = dict(self.record["timings"])

    def run(self) -> TrainResult:
        """Trains to the end, or until a signal."""
        checkpoint = self.folder.last_checkpoint() if self.state.is_main_process else None
        if checkpoint:
            check_complete(checkpoint)
        self.state.wait_for_everyone()
        checkpoint = checkpoint or self.folder.last_checkpoint()
        with StopSignal() as stop, cuda_settings("tf32"):
            self.trainer = self._trainer(stop, score_first=self.score_first and checkpoint is None)
            done = self._done(checkpoint)
            if not done:
                began = time.perf_counter()
                try:
                    self.trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
                except (RuntimeError, MemoryError) as error:
                    _advise_on_memory(error, self.config)
                    raise
                finally:
                    self.progress.close()
                self.trainer.seconds["train"] = time.perf_counter() - began - self.trainer.seconds["dev"]
                done = not stop.requested or self.trainer.state.global_step >= self.max_steps
        self._finish(done)
        return TrainResult(self.folder.path, done, self.record["steps"], self.record["best"], self.record)

    def _from_scratch(self) -> tuple[Any, Any]:
        config = self.config
        self._on_main(not self.folder.tokenizer.is_dir(), self._learn_vocabulary)
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.folder.tokenizer)
        dropout = 0.1 if config.dropout is None else config.dropout
        return scratch_model(config.shape, tokenizer, dropout=dropout, seed=config.seed), tokenizer

    def _learn_vocabulary(self) -> None:
        texts = _all_texts(self.config)
        tokenizer = train_tokenizer(texts, self.config.vocab_size or 0)
        with folder_atomic(self.folder.tokenizer) as staging:
            tokenizer.save_pretrained(staging)

    def _prepare(self) -> None:
        config = self.config
        examples = tqdm(read_examples(str(config.train), columns=config), "read", unit=" items", disable=None)
        summary = prepare(
            examples, self.tokenizer, self.tokens, self.folder.data,
            max_source_length=config.max_source_length, max_phrase_tokens=config.max_phrase_tokens,
            min_keyphrases=config.min_keyphrases, name=str(config.train),
        )  # fmt: skip
        if summary.dropped_phrases:
            log.warning(f"keyphrases left out, blank or longer than --max-phrase-tokens: {summary.dropped_phrases:,}")
        if config.min_keyphrases > 1:
            log.warning(f"{summary.trained} of {summary.items} items have at least {config.min_keyphrases} keyphrases")
        if summary.cut_texts > 0.2 * summary.trained:
            log.warning(
                f"{summary.cut_texts} of {summary.trained} texts are longer than --max-source-length and were cut"
            )

    def _plan(self) -> BatchPlan:
        config = self.config
        tokens, phrases = self.data.phrase_lengths()
        targets = target_lengths(tokens, phrases, self.paradigm, config.max_target_length)
        assert config.batch_size
        micro = config.accumulation * self.state.num_processes
        return BatchPlan(
            self.data.source_lengths(), targets, config.batch_size / micro, tokens=config.tokens_per_batch,
            multiple=micro, seed=config.seed,
        )  # fmt: skip

    def _trainer(self, stop: StopSignal, score_first: bool) -> KeyphraseTrainer:
        config = self.config
        if self.state.is_main_process and config.bf16 and not has_fast_bf16(self.state.device.type):
            log.warning("--bf16: this device only emulates bfloat16; float32 is usually faster here")
        if self.state.is_main_process and self._would_gain_from_bf16():
            log.warning(
                "this processor multiplies bfloat16: --bf16 trains this model about 1.6 times faster (other rounding)"
            )
        every = config.eval_every or max(1, math.ceil(self.max_steps / EVALUATIONS))
        collator = Collator(
            self.paradigm, self.tokens, config.max_target_length, config.order_free, config.pad_multiple,
            learn_bok=config.learn_bok,
        )  # fmt: skip
        trainer = KeyphraseTrainer(
            plan=self.plan, score=self._score if self.dev else None, keep=self._keep, metric=config.metric,
            patience=config.patience, seed=config.seed, workers=config.workers, muon=config.optimizer == "muon",
            model=with_loss(self.model, self._sampled_softmax()),
            args=_arguments(config, self.folder, self.max_steps, every, score_first, self.state.device.type),
            data_collator=collator,
            train_dataset=self.data, eval_dataset=self.dev.items if self.dev else None,
        )  # fmt: skip
        if config.optimizer == "muon" and (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):
            raise InputError("--optimizer muon needs whole matrices on each process: use adamw with FSDP or DeepSpeed")
        if config.sampled_softmax and _is_sharded(trainer):
            raise InputError("--sampled-softmax needs the whole head on each process: omit it with FSDP or ZeRO-3")
        if self.dev and _is_sharded(trainer):
            raise InputError("dev scores need whole weights on each process: omit --dev with FSDP or ZeRO-3")
        trainer.remove_callback(PrinterCallback)
        for tracker in trainer.callback_handler.callbacks:  # its own choice of a folder goes with the checkpoints
            if isinstance(tracker, TensorBoardCallback) and tracker.logging_dir is None:
                tracker.logging_dir = str(self.folder.tensorboard)
        self.progress = Progress(trainer)
        trainer.add_callback(self.progress)
        trainer.add_callback(Checkpoints(stop, self._saved))
        for callback in self.callbacks:
            trainer.add_callback(callback)
        return trainer

    def _sampled_softmax(self) -> SampledSoftmax | None:
        count, head = self.config.sampled_softmax, self.model.lm_head.weight
        return SampledSoftmax.of_keyphrases(self.data.keyphrase_tokens(), self.tokens, head, count) if count else None

    def _would_gain_from_bf16(self) -> bool:
        """Whether --bf16 would pay: on a CPU that has it, and for pretrained sizes, where products take the time."""
        on_cpu = self.state.device.type == "cpu"
        return not self.config.bf16 and not self.config.shape and on_cpu and has_fast_bf16("cpu")

    def _score(self) -> dict[str, float]:
        assert self.dev
        checkpoint = Checkpoint(self.trainer.model, self.tokenizer, self.paradigm, self.tokens, self._meta())
        rank, world = self.state.process_index, self.state.num_processes
        mine = self.dev.predict(checkpoint, rank, world)
        shares = gather_object([mine]) if world > 1 else [mine]
        together: list[list[str]] = [[]] * len(self.dev.items)
        for number, share in enumerate(shares):
            together[number::world] = share
        return self.dev.scores(together)

    def _meta(self, **more: Any) -> dict[str, Any]:
        config, longest = self.config, self.summary.longest_phrase
        return metadata(config.paradigm, self.mu, config.max_source_length, longest, loss=config.loss,
                        order=config.order, restart=config.restart, learn_bok=config.learn_bok,
                        base_model=config.model, **more)  # fmt: skip

    def _keep(self, scores: dict[str, float] | None, weights: dict[str, Any] | None = None) -> None:
        """The current model becomes the run's model."""
        if self.labels is None:
            shutil.copy2(self.folder.data / LABELS_FILE, self.folder.path / LABELS_FILE)
        else:
            save_labels(self.folder.path, self.labels)
        model = without_loss(self.trainer.model)
        save_checkpoint(self.folder.path, model, self.tokenizer, self._meta(dev=scores), weights)
        self.record["best"] = scores

    def _saved(self, state: Any) -> None:
        """Updates run.json after a checkpoint."""
        self.record["steps"] = state.global_step
        self.record["history"] = curve_points(state.log_history)
        self.folder.write(self.record)

    def _done(self, checkpoint: Path | None) -> bool:
        """Whether the checkpoint is the last one of the run (killed between its last step and its end)."""
        if checkpoint is None:
            return False
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        stale = is_stale(state.log_history, self.config.metric, self.config.patience)
        if state.global_step >= self.max_steps or stale:
            self.trainer._load_from_checkpoint(str(checkpoint))
            self.trainer.state = state
            return True
        return False

    def _finish(self, done: bool) -> None:
        sharded = done and _is_sharded(self.trainer)
        # Collecting a sharded model takes all processes.
        weights = self.trainer.accelerator.get_state_dict(self.trainer.model_wrapped) if sharded else None
        if not self.state.is_main_process:
            return
        state, config = self.trainer.state, self.config
        if done and self.dev is None:
            self._keep(None, weights)
        self.record["status"] = "running" if done else "stopped"
        self.record["stopped_early"] = done and state.global_step < self.max_steps
        for name, seconds in self.trainer.seconds.items():
            self.record["timings"][name] = round(self.spent[name] + seconds, 3)
        self._saved(state)
        draw_curve(self.folder.path / CURVE_FILE, self.record)
        if not done:
            return
        # The run is finished when everything else is done, so that --resume completes what a kill left out.
        write_card(self.folder.path, self.record)
        failure = _push(self.folder.path, config) if config.push_to_hub else None
        self.record["status"] = "finished"
        self.folder.write(self.record)
        self.folder.tidy(config.keep_checkpoints)
        if failure is not None:
            place = f"{self.folder.path} {config.push_to_hub}"
            raise TrainingError(f"the model is finished, but was not uploaded. {failure}\nLater: pusl push {place}")

    def _on_main(self, needed: bool, action: Callable[[], None]) -> None:
        """The main process acts if needed; the others wait for it."""
        if needed and self.state.is_main_process:
            action()
        self.state.wait_for_everyone()


def _arguments(
    config: TrainConfig, folder: RunFolder, max_steps: int, every: int, score_first: bool, device: str
) -> TrainingArguments:
    # transformers 5.23 renamed this option and warns about the old name
    names = {field.name for field in dataclasses.fields(TrainingArguments)}
    new, old = "activation_checkpointing", "gradient_checkpointing"
    checkpointing: dict[str, Any] = {new if new in names else old: config.gradient_checkpointing}
    return TrainingArguments(
        output_dir=str(folder.work), max_steps=max_steps, per_device_train_batch_size=1,
        gradient_accumulation_steps=config.accumulation, learning_rate=config.lr or 0.0, lr_scheduler_type="linear",
        warmup_steps=math.ceil(config.warmup * max_steps), weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm, seed=config.seed, bf16=bool(config.bf16),
        torch_compile=config.compile,
        logging_steps=config.log_every,
        logging_nan_inf_filter=False, save_strategy="steps", save_steps=config.save_every or every, save_total_limit=2,
        eval_strategy="steps" if config.dev else "no", eval_steps=every,
        eval_on_start=score_first and config.dev is not None, remove_unused_columns=False, disable_tqdm=True,
        report_to=config.report_to, run_name=folder.path.absolute().name, ddp_find_unused_parameters=False,
        use_cpu=device == "cpu", **checkpointing,
    )  # fmt: skip


def _is_sharded(trainer: KeyphraseTrainer) -> bool:
    """Whether each process holds only a part of the weights."""
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    return bool(trainer.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3))


def is_main_process() -> bool:
    """Whether this process writes files and messages."""
    return bool(PartialState(cpu=resolve_device() == "cpu").is_main_process)


def _all_texts(config: TrainConfig) -> Iterator[str]:
    for example in tqdm(
        read_examples(str(config.train), columns=config), "learn vocabulary", unit=" items", disable=None
    ):
        yield example.text
        yield from example.keyphrases


def with_precision(config: TrainConfig, device: str) -> TrainConfig:
    """The config with its precision decided: bfloat16 unless told otherwise on GPUs that have it, else float32."""
    if config.bf16 is not None:
        return config
    return dataclasses.replace(config, bf16=device == "cuda" and has_fast_bf16(device))


def _advise_on_memory(error: BaseException, config: TrainConfig) -> None:
    """Turns an out-of-memory error into advice; does nothing for other errors."""
    text = str(error).lower()
    memory = ("out of memory", "not enough memory", "can't allocate memory", "bad_alloc")
    if not isinstance(error, MemoryError) and not any(sign in text for sign in memory):
        return
    ideas = [f"--accumulation {config.accumulation * 2} (half the memory per micro-batch)"]
    if not config.gradient_checkpointing:
        ideas.append("--gradient-checkpointing (recomputes activations)")
    ideas.append(f"a smaller --batch-size (now {config.batch_size})")
    ideas.append(
        f"shorter --max-source-length ({config.max_source_length}) or --max-target-length ({config.max_target_length})"
    )
    raise TrainingError(
        "out of memory. Try, in this order: " + "; ".join(ideas) + ". Then pass --resume if the settings allow it."
    ) from error


def _push(folder: Path, config: TrainConfig) -> str | None:
    """Uploads the finished model; returns why it could not."""
    try:
        url = push(folder, str(config.push_to_hub), public=config.push_public, labels=config.push_labels)
        log.info("uploaded: %s", url)
    except InputError as error:
        return str(error)
    return None
