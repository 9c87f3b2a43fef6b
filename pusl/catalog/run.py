"""A catalog file -> a predictions file: streamed, sharded, resumable, on one process or many.

The input is cut into shards of a fixed number of records. `ShardJob` turns one shard into the bytes
of one part file and depends on nothing else, so it may run in this process, in several, or on a
cluster. Batches are formed inside a shard; who computed it, in which order, and how often the run
was killed leaves no trace in the output.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pusl.catalog.parts import InputChanged, WorkFolder, id_hash, pack_part, repeated
from pusl.catalog.processes import run_tasks
from pusl.catalog.recipes import GeneratorSpec, ModelRecipe, Predictor, check_predictions
from pusl.catalog.shards import CatalogFile, CatalogItem, Chunk
from pusl.devices import gpu_count, resolve_device
from pusl.examples import STANDARD, Columns
from pusl.hub import model_folder
from pusl.process import torch_threads
from pusl_eval.files import InputError, Row, check_apart, kind_of, storage

NOTHING_USABLE = 1000  # bad lines from the start, and not one good: stop early
EDGE = 1 << 20  # bytes at both ends of the input that stand for it until each shard's own digest is seen
Reports = Generator[tuple[Chunk, Row], None, None]  # shards as they are finished


@dataclass(frozen=True)
class Options:
    """What is asked of the generator for every item."""

    k: int
    decoding: Row = field(default_factory=dict)  # passed on to `generate` as keyword arguments
    explain: bool = False
    complete: bool = False  # the keyphrases that items have already are known; give further ones


@dataclass(frozen=True)
class ShardJob:
    """Everything needed to compute any shard of one catalog, anywhere."""

    input: str
    columns: Columns
    spec: GeneratorSpec
    options: Options

    @property
    def threads(self) -> int | None:
        """Threads of torch that the generator computes with; None where the generator does not need torch."""
        return self.spec.threads if isinstance(self.spec, ModelRecipe) else None

    def start(self) -> Callable[[Chunk], bytes]:
        """Loads the model and returns the function shard -> part file."""
        generator, source = self.spec.load(), CatalogFile(self.input, self.columns, self.options.complete)

        def work(chunk: Chunk) -> bytes:
            if not chunk.payload:
                read = source.read(chunk)
                if read.digest != chunk.digest:
                    raise InputError(f"{self.input}: changed while it was read (from line {chunk.line} on)")
                chunk = read
            items, rejects = source.parse(chunk)
            rows, counts = self.answer(generator, items)
            return pack_part(chunk, items, rows, rejects, counts)

        return work

    def answer(self, generator: Predictor, items: Sequence[CatalogItem]) -> tuple[list[Row], Row]:
        """The rows of one shard's items, in order, and counts."""
        return generate_shard(generator, items, self.options)


@dataclass
class Summary:
    """What a finished run did."""

    items: int = 0  # predictions written
    rejects: int = 0
    exhausted: int = 0  # items that got fewer than k keyphrases
    truncated: int = 0  # items whose text is longer than the model reads
    no_usable_text: int = 0  # items without any usable text
    unscored: int = 0  # items whose keyphrases have no scores
    repeats: int = 0  # items whose text (and known keyphrases) stood in the same shard before
    without_known: int = 0  # with `complete`: items without a keyphrase of their own
    resumed: int = 0  # records that an earlier run had done
    seconds: float = 0.0


def generate_shard(generator: Predictor, items: Sequence[CatalogItem], options: Options) -> tuple[list[Row], Row]:
    """The prediction rows of one shard, in order, and counts. Equal items are computed once."""
    by_id = bool(getattr(generator, "needs_ids", False))  # a fused model with predictions made elsewhere
    keys = [(item.text, item.known, item.id if by_id else "") for item in items]
    unusable = {key: reason for key in keys if (reason := why_unusable(key[0]))}
    tasks = list(dict.fromkeys(key for key in keys if key not in unusable))
    texts = [text for text, _, _ in tasks]
    more: Row = {"known": [known for _, known, _ in tasks]} if options.complete else {}
    if by_id:
        more["ids"] = [name for _, _, name in tasks]
    found = generator.generate(texts, options.k, **options.decoding, **more) if texts else []
    if len(found) != len(texts):
        raise RuntimeError(f"the generator gave {len(found)} predictions for {len(texts)} texts")
    answers = {key: _answer(prediction) for key, prediction in zip(tasks, found, strict=True)}
    if options.explain:
        explain_all(generator, answers)
    for key, reason in unusable.items():
        answers[key] = {"keyphrases": [], "scores": [], "exhausted": True, "reason": reason}
    rows = [{"id": item.id, **answers[key]} for item, key in zip(items, keys, strict=True)]
    counts = {
        "items": len(rows), "exhausted": sum("exhausted" in row for row in rows),
        "truncated": sum("truncated" in row for row in rows),
        "no_usable_text": sum(key in unusable for key in keys), "repeats": len(rows) - len(answers),
        "unscored": sum("scores" not in row for row in rows),
        "without_known": sum(not item.known for item in items) if options.complete else 0,
    }  # fmt: skip
    return rows, counts


def why_unusable(text: str) -> str | None:
    """Why no keyphrase can come from a text, or None if it is worth a try.

    >>> why_unusable("  "), why_unusable("?!"), why_unusable("drone")
    ('empty text', 'no letter or digit in the text', None)
    """
    if not text.strip():
        return "empty text"
    if not any(char.isalnum() for char in text):
        return "no letter or digit in the text"
    return None


def _answer(prediction: Any) -> Row:
    answer: Row = {"keyphrases": list(prediction.keyphrases)}
    if prediction.scores is not None:
        answer["scores"] = [round(float(score), 6) for score in prediction.scores]
    if prediction.exhausted:
        answer["exhausted"] = True
    if getattr(prediction, "truncated", False):
        answer["truncated"] = True
    if getattr(prediction, "reason", None):
        answer["reason"] = prediction.reason
    return answer


def explain_all(generator: Any, answers: dict[tuple[str, tuple[str, ...], str], Row]) -> None:
    """Adds `explain` to every answer: where a keyphrase is in the text, whether training knew it."""
    for (text, _, _), answer in answers.items():
        answer["explain"] = generator.explain(text, answer["keyphrases"])


def generate_catalog(
    model: str | os.PathLike[str] | GeneratorSpec,
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
    k: int,
    *,
    complete: bool = False,
    explain: bool = False,
    universe: str | os.PathLike[str] | None = None,
    calibrate: str | os.PathLike[str] | None = None,
    predictions: Mapping[str, str] | None = None,
    precision: str | None = None,
    device: str = "auto",
    threads: int = 1,
    columns: Columns = STANDARD,
    shard_size: int | None = None,
    workers: int | None = None,
    engine: str = "local",
    engine_options: Row | None = None,
    strict: bool = False,
    force: bool = False,
    progress: bool = True,
    **decoding: Any,
) -> Summary:
    """Predictions for every item of `input`, in its order, into `output`; resumes where a killed run stopped.

    `model` is a trained folder, a Hub id (loaded once, here), or a recipe for any other generator. What is left goes to
    `KeyphraseGenerator.generate` (strategy, allow_repeats, vocabulary, min_score, batch_size, seed, ...);
    None means its default; for `workers`, as many as fit. With `complete`, each item's own keyphrases are
    known: k further ones are given, and a PUSL model continues after them. With `calibrate`, a file with references,
    scores (and `min_score`) are probabilities of being labeled, learned from the model's predictions for that file.
    `predictions`: for a fused model, the files of sources that were made elsewhere.
    """
    if isinstance(model, (str, os.PathLike)):
        phrases = os.path.abspath(universe) if universe else None
        files = tuple(sorted((name, os.path.abspath(path)) for name, path in (predictions or {}).items()))
        model = ModelRecipe(
            os.path.abspath(model_folder(model)), precision, threads, phrases, explain, predictions=files, device=device
        )
    input, output = storage.plain_path(input), storage.plain_path(output)
    if complete and not isinstance(model, ModelRecipe):
        raise InputError("--complete needs a trained model: an LLM is not told what an item has already")
    if complete and calibrate is not None:
        raise InputError("--complete and --calibrate: the curve is learned for items of which nothing is known")
    if complete and (decoding.get("allow_repeats") or decoding.get("temperature")):
        raise InputError("--complete searches for different keyphrases: omit --temperature and --allow-repeats")
    if calibrate is not None:
        if not isinstance(model, ModelRecipe):
            raise InputError("--calibrate needs a trained model: an LLM's keyphrases have no scores")
        if storage.is_url(output):
            raise InputError(f"--calibrate keeps its curve beside the output, which must be a local file, not {output}")
        model = with_calibration(model, calibrate, output, columns, k, decoding, workers, progress)
    options = Options(k, {name: value for name, value in decoding.items() if value is not None}, explain, complete)
    kind = kind_of(output)
    check_apart([output], {"--input": input})
    source = CatalogFile(input, columns, complete)
    shard_size = shard_size or source.usual_shard_size
    if complete:
        source.check_known()
    columns_read = ["id_column", "text_column", "text_template", *["keyphrases_column", "separator"] * complete]
    fingerprint = {
        "input": input_fingerprint(source), "model": model.fingerprint(),
        "options": {
            "k": k, **options.decoding, "explain": explain, "complete": complete, "shard_size": shard_size,
            "kind": kind,
        },
        "columns": {name: getattr(columns, name) for name in columns_read},
        "versions": versions(),
    }  # fmt: skip
    check_predictions(dict(predictions or {}), source)
    job = ShardJob(input, columns, model, options)
    return run_catalog(
        job, source, output, fingerprint, shard_size=shard_size, workers=workers, engine=engine,
        engine_options=engine_options, strict=strict, force=force, progress=progress,
        fields=["explain"] * explain,
    )  # fmt: skip


def run_catalog(
    job: ShardJob,
    source: CatalogFile,
    output: str,
    fingerprint: Row,
    *,
    shard_size: int,
    workers: int | None = None,
    engine: str = "local",
    engine_options: Row | None = None,
    strict: bool = False,
    force: bool = False,
    progress: bool = True,
    fields: Sequence[str] = (),
    accept: Callable[[Summary], str] | None = None,
) -> Summary:
    """Every shard of `source` through `job`, then the output. `fields`: more columns; `accept`: why not to write it."""
    model, folder = job.spec, WorkFolder(output)
    if workers is None:
        # Any other generator (an LLM client) is not made faster by processes.
        shards, workers = source.estimate(shard_size), 1
        if isinstance(model, ModelRecipe):
            workers = fitting_workers(model.weight(), shards, resolve_device(model.device))
    began = time.monotonic()
    if strict:
        check_all(source, shard_size)
    with folder.locked():
        run = _CatalogRun(source, folder, shard_size, folder.begin(fingerprint, force), progress)
        try:
            if isinstance(model, ModelRecipe):
                model.prepare()
            run.finish_all(job, engine, workers, engine_options or {})
        except InputChanged:
            if not force:
                raise
            folder.wipe()
            run = _CatalogRun(source, folder, shard_size, folder.begin(fingerprint, force), progress)
            run.finish_all(job, engine, workers, engine_options or {})
        except InputError:
            if not folder.finished():
                folder.wipe()  # wrong from the start: nothing to resume
            raise
        if accept is not None and (problem := accept(run.summary)):
            folder.wipe()
            raise InputError(problem)
        run.summary.items, run.summary.rejects = folder.assemble(run.shards, fields)
        folder.wipe()
    run.summary.seconds = time.monotonic() - began
    return run.summary


def with_calibration(
    recipe: ModelRecipe,
    references: str | os.PathLike[str],
    output: str,
    columns: Columns,
    k: int,
    decoding: Row,
    workers: int | None,
    progress: bool,
) -> ModelRecipe:
    """The recipe with its curve, learned with the settings of this run."""
    from pusl.catalog.calibrate import learned_curve

    decoding = {name: value for name, value in decoding.items() if name != "min_score" and value is not None}

    def generate(source: str, target: str) -> Summary:
        return generate_catalog(
            recipe, source, target, k, columns=columns, workers=workers, progress=progress, **decoding
        )

    curve = learned_curve(recipe, os.fspath(references), output, columns, {"k": k, **decoding}, generate)
    return replace(recipe, calibration=curve)


class _CatalogRun:
    """One pass over the input: what is done is counted, what is not is computed."""

    def __init__(self, source: CatalogFile, folder: WorkFolder, shard_size: int, resumed: bool, progress: bool) -> None:
        self.source, self.folder, self.shard_size = source, folder, shard_size
        self.finished = folder.finished() if resumed else set()
        self.progress = progress
        self.summary = Summary()
        self.shards = 0
        self.first_reject = ""
        self.bar: Any = None
        self._read = 0  # records in the chunks read so far

    def finish_all(self, job: ShardJob, engine: str, workers: int, engine_options: Row) -> None:
        """Computes every shard that is not there yet."""
        from tqdm.auto import tqdm

        with tqdm(unit="item", disable=not self.progress, dynamic_ncols=True, smoothing=0.1) as self.bar:
            if engine == "ray":
                from pusl.catalog.engine_ray import run_on_ray

                done = run_on_ray(job, self.todo(), self.folder, **engine_options)
            else:
                done = run_here(job, self.todo(), self.folder, workers)
            with contextlib.closing(done):  # workers end with the run, not when the garbage is collected
                for chunk, report in done:
                    self.count(chunk, report)
        if not self.shards:
            raise InputError(f"{self.source.path}: is empty; expected at least one item")
        self.refuse_if_nothing_usable()

    def todo(self) -> Iterator[Chunk]:
        """The chunks that have to be computed; those with a sound part are only counted."""
        for chunk in self.source.chunks(self.shard_size):
            self.shards += 1
            self._read += chunk.records
            if chunk.done:
                self.bar.total = max(self._read, round(self._read / chunk.done))
            report = self.folder.check_part(chunk) if chunk.index in self.finished else None
            if report is None:
                yield chunk
            else:
                self.summary.resumed += chunk.records
                if self.progress:
                    self.bar.initial += chunk.records  # keeps the rate that of this run
                self.count(chunk, report)

    def count(self, chunk: Chunk, report: Row) -> None:
        """Adds a finished shard to the summary and the bar."""
        for name, value in report["counts"].items():
            setattr(self.summary, name, getattr(self.summary, name) + value)
        if report["rejects"]:
            self.summary.rejects += len(report["rejects"])
            line, reason = report["rejects"][0][:2]
            self.first_reject = self.first_reject or f"line {line}: {reason}"
            if self.summary.rejects >= NOTHING_USABLE:
                self.refuse_if_nothing_usable()
        self.bar.update(chunk.records)

    def refuse_if_nothing_usable(self) -> None:
        """Stops a run in which every line is bad: the flags are wrong, not the lines."""
        if self.summary.items == 0 and self.summary.rejects:
            self.folder.wipe()
            raise InputError(
                f"{self.source.path}: none of {self.summary.rejects:,} lines can be used; {self.first_reject}"
            )


def run_here(job: ShardJob, chunks: Iterable[Chunk], folder: WorkFolder, workers: int) -> Reports:
    """Shards on this machine: in this process, or in `workers` others. Parts are written by this one."""
    computed: Iterator[tuple[Chunk, bytes]]
    if workers > 1:
        gpus = gpu_count(resolve_device(job.spec.device)) if isinstance(job.spec, ModelRecipe) else 0
        computed = run_tasks(job.start, chunks, workers, job.threads, gpus)
    else:
        computed = _in_process(job, chunks)
    for chunk, content in computed:
        yield chunk, folder.write_part(chunk.index, content)


def fitting_workers(model_bytes: int, shards: float, device: str = "cpu") -> int:
    """Processes that fill the cores, as far as memory and the number of shards allow; one for each GPU."""
    if device != "cpu":
        return max(1, min(gpu_count(device), int(shards)))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        free = 8 << 30
    # Weights, a prepared copy, the caches of a batch and freed memory; and what torch itself takes.
    fit = int(free // (3 * model_bytes + (1200 << 20)))
    return max(1, min(cores, fit, int(shards)))


def _in_process(job: ShardJob, chunks: Iterable[Chunk]) -> Iterator[tuple[Chunk, bytes]]:
    """Computes with the job's threads and gives the caller's back between shards: a user's process stays as it is."""
    work = None
    for chunk in chunks:
        with torch_threads(job.threads) if job.threads else contextlib.nullcontext():
            work = work or job.start()  # only when there is something to compute
            content = work(chunk)
        yield chunk, content


def check_all(source: CatalogFile, shard_size: int) -> None:
    """Reads the whole input and raises at its first bad line or repeated id (`--strict`)."""

    def hashes() -> Iterator[np.ndarray]:
        for chunk in source.chunks(shard_size):
            items, rejects = source.parse(chunk)
            if rejects:
                raise InputError(f"{source.path}:{rejects[0].line}: {rejects[0].reason}")
            yield np.asarray([id_hash(item.id) for item in items], dtype=np.uint64)

    if not (suspects := repeated(hashes())):
        return
    first: dict[str, int] = {}
    for chunk in source.chunks(shard_size):
        for item in source.parse(chunk)[0]:
            if id_hash(item.id) in suspects and first.setdefault(item.id, item.line) != item.line:
                raise InputError(f"{source.path}:{item.line}: id {item.id!r} is already in line {first[item.id]}")


def input_fingerprint(source: CatalogFile) -> Row:
    """The input's size and a digest of both ends; the middle is checked shard by shard."""
    code = hashlib.blake2b(digest_size=16)
    with storage.open_stored(source.path) as stream:
        code.update(stream.read(EDGE))
        stream.seek(max(0, source.size - EDGE))
        code.update(stream.read(EDGE))
    return {"size": source.size, "ends": code.hexdigest()}


def versions() -> Row:
    """Programs whose change may move a score's last digit."""
    from importlib import metadata

    from pusl import __version__

    return {"pusl": __version__, "torch": metadata.version("torch"), "transformers": metadata.version("transformers")}
