"""A model folder -> whether a run may start or resume there, and what is known about it (run.json).

DIR/                 the best model so far, pusl.json, labels.txt.gz, README.md, curve.svg
DIR/run.json         status, config, versions, git hash, data fingerprints, timings, history
DIR/training/        token ids and checkpoints; removed when the run is finished
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict, cast

from pusl.checkpoint import META_FILE
from pusl.environment import git_hash, hardware, versions
from pusl.training.train_config import TrainConfig
from pusl_eval.files import InputError, check_folder, file_digest, locked_folder, read_json, same_path, write_json

RESUME_COMMAND = "PUSL_RESUME_COMMAND"  # set by a command that trains in processes of its own, for their hints
RUN_FILE, WORK_FOLDER, COMPLETE = "run.json", "training", "complete"
WRITTEN = (
    RUN_FILE, "config.json", "generation_config.json", "model.safetensors", "labels.txt.gz", "curve.svg", "curve.png",
    "README.md", "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip
SELECTION_FOLDER = "selection"  # of post-training: the items it chose
SELECTION_FILES = ("sparse-*.jsonl", "generated-*", "selected.jsonl", "selection.json", "dev.jsonl", ".*")

# These may differ in a resumed run: they do not change what is learned. Files are compared by content.
MAY_CHANGE = (
    "out", "train", "dev", "device", "workers", "report_to", "keep_checkpoints", "push_to_hub", "push_public",
    "push_labels", "license", "language", "dataset",
)  # fmt: skip


RECORD_KINDS = {"status": str, "config": dict, "data": dict, "timings": dict, "history": list, "steps": int}


class RunRecord(TypedDict, total=False):
    """The content of run.json."""

    status: str  # running, stopped (Ctrl-C), finished
    config: dict[str, Any]  # the resolved TrainConfig
    versions: dict[str, str]
    hardware: dict[str, str]
    git: str | None
    processes: int
    device: str  # cpu, cuda or mps
    precision: str  # of the products: fp32, tf32 or bf16
    data: dict[str, Any]  # per file: path, bytes, sha256
    summary: dict[str, Any]  # items, labels, μ, ... of the training file
    parameters: int
    steps: int  # optimizer steps done
    max_steps: int
    stopped_early: bool
    best: dict[str, float] | None  # dev scores of the model in the folder
    timings: dict[str, float]  # seconds, summed over resumed sessions
    history: list[dict[str, float]]  # points of the loss curve and dev scores
    started: str
    updated: str


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.work = self.path / WORK_FOLDER
        self._created = False  # whether this run made the folder

    @property
    def data(self) -> Path:
        """Prepared token ids."""
        return self.work / "data"

    @property
    def tensorboard(self) -> Path:
        """Curves for TensorBoard; they stay when the run is finished, and a resumed run adds to them."""
        return self.path / "tensorboard"

    @property
    def tokenizer(self) -> Path:
        """The vocabulary of a scratch model, kept for resumed runs."""
        return self.work / "tokenizer"

    def record(self) -> RunRecord | None:
        """run.json, or None if no run was started here."""
        path = self.path / RUN_FILE
        if not path.is_file():
            return None
        record = read_json(path, "pass --force to start again")
        wrong = [name for name, kind in RECORD_KINDS.items() if not isinstance(record.get(name), kind)]
        if wrong or not {"prepare", "train", "dev"} <= set(record["timings"]):
            raise InputError(f"{path}: '{(wrong or ['timings'])[0]}' is damaged; pass --force to start again")
        return cast(RunRecord, record)

    def write(self, record: RunRecord) -> None:
        """Replaces run.json."""
        record["updated"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_json(self.path / RUN_FILE, record, force=True)

    def admit(self, resume: bool, force: bool) -> RunRecord | None:
        """The record of the run to resume, None for a new one, or an InputError. Changes nothing."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: is a file; --out needs a folder")
        if foreign := self._foreign():
            raise InputError(f"{self.path}: holds other files ({foreign}); name a new folder")
        try:
            record = self.record()
        except InputError:
            if not force:
                raise
            record = None
        if force:
            return None
        if record is None:
            if (self.path / META_FILE).exists():
                raise InputError(f"{self.path}: holds a model already; pass --force to replace it")
            return None
        if record.get("status") == "finished" and not resume:
            raise InputError(f"{self.path}: holds a finished run; choose another --out, or pass --force to replace it")
        if not resume:
            raise InputError(
                f"{self.path}: holds an unfinished run; pass --resume to continue, or --force to start again"
            )
        return record

    def _foreign(self) -> str:
        """A file that a run would replace in a folder that no run made; "" if there is none."""
        if not self.path.is_dir() or (self.path / META_FILE).exists() or self._is_run():
            return ""
        names = (*WRITTEN, WORK_FOLDER, SELECTION_FOLDER)
        found = [name for name in sorted(names) if os.path.lexists(self.path / name)]
        found = [name for name in found if name != SELECTION_FOLDER or not self._is_left_behind()]
        return found[0] if found else ""

    def _is_run(self) -> bool:
        """Whether run.json is that of a run: as it should be, or damaged and with the files of a run beside it."""
        try:
            return self.record() is not None
        except InputError:
            return self.data.is_dir() or self.tokenizer.is_dir()

    def _is_left_behind(self) -> bool:
        """Whether a post-training that was killed before its first record left the folder of chosen items."""
        folder = self.path / SELECTION_FOLDER
        return folder.is_dir() and all(any(path.match(kind) for kind in SELECTION_FILES) for path in folder.iterdir())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder for this run; a second one is refused. A folder made for it goes if it stays empty."""
        check_folder(self.path)
        self._created = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with locked_folder(
                self.path, f"{self.path}: another run is training there; wait for it or name another --out"
            ):
                yield
        finally:
            if self._created and not any(self.path.iterdir()):
                self.path.rmdir()

    def begin(self, record: RunRecord, force: bool) -> None:
        """Writes the first record of a new run; with `force` what an earlier run wrote is removed before."""
        if force:
            self.clear()
        self.write(record)  # first: a folder without it would not be known as a run's
        self.work.mkdir(parents=True, exist_ok=True)

    def discard(self) -> None:
        """Undoes `begin`: removes the record and the token ids."""
        shutil.rmtree(self.work, ignore_errors=True)
        (self.path / RUN_FILE).unlink(missing_ok=True)

    def tidy(self, keep_checkpoints: bool) -> None:
        """Removes token ids and checkpoints of a finished run."""
        if not keep_checkpoints:
            shutil.rmtree(self.work, ignore_errors=True)

    def clear(self) -> None:
        """Removes what an earlier run wrote here, and nothing else."""
        shutil.rmtree(self.work, ignore_errors=True)
        for name in (*WRITTEN, META_FILE):  # META_FILE last: after a kill the folder is still known as ours
            (self.path / name).unlink(missing_ok=True)
        for curves in self.tensorboard.glob("events.out.tfevents.*"):
            curves.unlink()

    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint that was written to its end; half-written ones are removed."""
        found = sorted(self.work.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        for path in list(found):
            if not (path / COMPLETE).is_file():
                shutil.rmtree(path, ignore_errors=True)
                found.remove(path)
        return found[-1] if found else None


def mark_complete(checkpoint: Path) -> None:
    """The mark of a checkpoint that was written to its end: the digests of its files.

    Other processes may still be writing random states of theirs, `rng_state_N.pth`; these are left out.
    """
    files = [path for path in sorted(checkpoint.iterdir()) if path.is_file() and not path.match("rng_state_*")]
    write_json(checkpoint / COMPLETE, {path.name: file_digest(path) for path in files}, force=True)


def check_complete(checkpoint: Path) -> None:
    """An InputError if a file of a complete checkpoint is not as it was written."""
    if not (checkpoint / COMPLETE).stat().st_size:
        return  # of an earlier version, which made an empty mark
    for name, digest in read_json(checkpoint / COMPLETE, f"remove {checkpoint.name} to resume before it").items():
        path = checkpoint / Path(name).name
        if not path.is_file() or file_digest(path) != digest:
            raise InputError(
                f"{path}: is missing or damaged; remove the folder {checkpoint.name} to resume from the one before it, "
                "or pass --force to start again"
            )


def new_record(config: TrainConfig, processes: int, device: str = "cpu") -> RunRecord:
    """The record before the first step."""
    return RunRecord(
        status="running", config=dataclasses.asdict(config), versions=versions(), hardware=hardware(), git=git_hash(),
        processes=processes, device=device,
        precision="bf16" if config.bf16 else "tf32" if device == "cuda" else "fp32",
        data=fingerprints(config), steps=0, best=None, history=[],
        timings={"prepare": 0.0, "train": 0.0, "dev": 0.0}, stopped_early=False,
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )  # fmt: skip


def fingerprints(config: TrainConfig) -> dict[str, Any]:
    """Path, size and SHA-256 of the data files."""
    return {name: _fingerprint(Path(path)) for name in ("train", "dev") if (path := getattr(config, name))}


def _fingerprint(path: Path) -> dict[str, Any]:
    return {"path": str(path), "bytes": path.stat().st_size, "sha256": file_digest(path)}


def check_base(model: str | Path, out: str | Path) -> None:
    """An InputError if a run would replace the model that it starts from: a kill would lose both."""
    if os.path.isdir(model) and same_path(model, out):
        raise InputError(f"{out}: is the --model folder; name another --out")


def check_same(config: TrainConfig, record: RunRecord, out: Path) -> None:
    """A run resumes only with the settings and data it began with."""
    for field in dataclasses.fields(config):
        now, began = getattr(config, field.name), record["config"].get(field.name, field.default)
        if field.name not in MAY_CHANGE and now != began:
            raise InputError(
                f"--{field.name.replace('_', '-')} is {now}, but the run in {out} began with {began}; "
                "omit the flag to resume, or pass --force to start again"
            )
    for name, now in fingerprints(config).items():
        began = record["data"].get(name)
        if began is None or began["sha256"] != now["sha256"]:
            raise InputError(
                f"{now['path']}: not the --{name} file that the run in {out} began with; pass --force to start again"
            )
