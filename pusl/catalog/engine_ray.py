"""Shards -> part files, computed by the actors of a Ray cluster (`pusl generate --engine ray`).

The driver reads the input once to find where each shard starts; a Ray Data pipeline carries these
notes to actors that load the model once, read their shard from the input themselves, and write its
part into the work folder. Input, output and model must therefore be visible from every node: a shared
disk, or for input and output any fsspec URL. The same function as on one machine computes a shard, so
the result is the same to the byte. A lost actor or node is replaced by Ray and its shard done again;
after a lost driver the same command resumes with the parts that exist.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import traceback
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pusl.catalog.parts import WorkFolder
from pusl.catalog.processes import WorkerDied, WorkerFailed
from pusl.catalog.run import Reports, ShardJob
from pusl.catalog.shards import CatalogFile, Chunk
from pusl.messages import show_messages
from pusl.process import prepare_process
from pusl_eval.columns import Columns
from pusl_eval.errors import needs_extra
from pusl_eval.files import InputError, Row, open_atomic, storage, write_bytes
from pusl_eval.files.lines import reading

WINDOW = 20_000  # shards in one Ray dataset: bounds the driver's memory for any catalog
ATTEMPTS = 4  # actors that may be lost on one shard; Ray itself would try forever


class ShardActor:
    """Loads the model once; each call computes one shard and writes its part."""

    def __init__(self, job: ShardJob, output: str, run: str) -> None:
        prepare_process(job.threads, keep_memory=True)
        show_messages()
        self.folder, self.run = WorkFolder(output), run
        self.failure: Row | None = None
        try:
            self.work = job.start()
        except Exception as error:
            # An exception here would make Ray start the actor again and again; as data it ends the run.
            self.failure = _failure(error)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """A batch of one note -> a batch of one report."""
        note = Chunk(
            index=int(batch["index"][0]), line=int(batch["line"][0]), start=int(batch["start"][0]),
            records=int(batch["records"][0]), digest=str(batch["digest"][0]),
        )  # fmt: skip
        report = self.failure
        if report is None:
            try:
                self.count_attempt(note)
                header = self.folder.write_part(note.index, self.work(note))
                report = {"counts": header["counts"], "rejects": header["rejects"][:1] * len(header["rejects"])}
            except Exception as error:
                report = _failure(error)
        return {"index": [note.index], "report": [json.dumps(report)]}

    def count_attempt(self, note: Chunk) -> None:
        """Leaves a mark before the work starts; too many marks mean that the shard kills its actors."""
        for attempt in range(ATTEMPTS):
            mark = f"{self.folder.path}/try-{self.run}-{note.index:08d}-{attempt}"
            if not storage.exists(mark):
                return write_bytes(mark, b"")
        raise WorkerDied(f"{ATTEMPTS} actors ended while they worked on {note}")


def _failure(error: Exception) -> Row:
    if isinstance(error, WorkerDied):
        return {"died": str(error)}
    if isinstance(error, InputError):
        return {"input": str(error)}
    return {"failed": "".join(traceback.format_exception(error))}


def run_on_ray(
    job: ShardJob,
    chunks: Iterable[Chunk],
    folder: WorkFolder,
    *,
    address: str | None = None,
    workers: int | None = None,
    cpus: float = 1.0,
    gpus: float | None = None,
) -> Reports:
    """Yields (chunk, report) as shards are finished. Connects to `address`, or starts Ray on this machine.

    `gpus` per worker: by default one where the cluster has GPUs, unless the job runs on the CPU.
    """
    ray = _connect(address)
    available = ray.cluster_resources()
    gpus = gpus_per_worker(gpus, available.get("GPU", 0), getattr(job.spec, "device", "cpu"))
    if not CatalogFile(job.input, job.columns).seekable:
        unpacked = replace(job.columns, encoding="utf-8")
        job = replace(job, input=unpack_beside(job.input, job.columns, folder), columns=unpacked)
    fit = available.get("GPU", 0) / gpus if gpus else available.get("CPU", 1) / cpus
    size = max(1, workers or int(fit))
    run = uuid.uuid4().hex[:8]
    notes = (chunk.note() for chunk in chunks)
    while window := list(itertools.islice(notes, WINDOW)):
        yield from _run_window(ray, job, window, folder, run, min(size, len(window)), cpus, gpus)


def gpus_per_worker(asked: float | None, there: float, device: str) -> float:
    """GPUs of each actor; asking for more than the cluster has would wait for ever, so it is an InputError.

    >>> gpus_per_worker(None, 8.0, "auto"), gpus_per_worker(None, 0.0, "auto"), gpus_per_worker(0.5, 1.0, "cuda")
    (1.0, 0.0, 0.5)
    """
    if asked is None:
        return 1.0 if there and device != "cpu" else 0.0
    if asked > there:
        raise InputError(f"--gpus-per-worker {asked:g}: the Ray cluster has {there:g} GPUs")
    return asked


def _run_window(
    ray: Any, job: ShardJob, window: list[Chunk], folder: WorkFolder, run: str, size: int, cpus: float, gpus: float
) -> Reports:
    by_index = {chunk.index: chunk for chunk in window}
    names = ("index", "line", "start", "records", "digest")
    rows = [{name: getattr(chunk, name) for name in names} for chunk in window]
    # One shard is one block is one task: what a lost actor costs is one shard.
    reports = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        ShardActor, fn_constructor_args=(job, folder.output, run), batch_size=1, zero_copy_batch=False,
        compute=ray.data.ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=2),
        num_cpus=cpus, num_gpus=gpus,
    )  # fmt: skip
    try:
        for row in reports.iter_rows():
            report = json.loads(row["report"])
            if "input" in report:
                raise InputError(report["input"])
            if "died" in report:
                raise WorkerDied(report["died"])
            if "failed" in report:
                raise WorkerFailed(report["failed"])
            yield by_index[row["index"]], report
    except ray.exceptions.RayError as error:
        raise WorkerDied(f"Ray gave up: {str(error).splitlines()[0]}") from None


def _connect(address: str | None) -> Any:
    try:
        import ray
        import ray.data
        import ray.exceptions
    except ImportError:
        raise needs_extra("--engine ray", "Ray", "ray") from None
    if not ray.is_initialized():
        try:
            dashboard = None if address else False
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=dashboard)
        except (ConnectionError, ValueError) as error:
            raise InputError(f"--address {address}: {str(error).splitlines()[0]}") from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False  # `pusl generate` has its own
    context.print_on_execution_start = False
    return ray


def unpack_beside(path: str, columns: Columns, folder: WorkFolder) -> str:
    """A plain UTF-8 copy of the input in the work folder, because gzip cannot be read from the middle."""
    target = f"{folder.path}/input-{os.path.basename(path).removesuffix('.gz')}"
    if not storage.exists(target):
        with reading(path, columns.dialect) as file, open_atomic(target, force=True, mode="wb") as plain:
            shutil.copyfileobj(file.content, plain, 1 << 20)
    return target
