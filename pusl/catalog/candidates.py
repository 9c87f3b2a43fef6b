"""A catalog file + candidate phrases -> a file of their scores: what `pusl score` does.

Streamed, sharded and resumable like `generate`, with the same work folder. Candidates come per item (records
with `id` and `candidates` or `keyphrases`), or as one list for all items (one phrase a line).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pusl.catalog.parts import id_hash
from pusl.catalog.recipes import ModelRecipe, Predictor
from pusl.catalog.run import (
    Options,
    ShardJob,
    Summary,
    input_fingerprint,
    run_catalog,
    versions,
    with_calibration,
)  # fmt: skip
from pusl.catalog.shards import CatalogFile, CatalogItem
from pusl.examples import STANDARD, Columns
from pusl.fusion.folder import is_fused
from pusl.hub import model_folder
from pusl_eval.files import (
    InputError,
    Row,
    check_apart,
    check_input,
    file_digest,
    kind_of,
    read_rows,
    split_list,
    storage,
)
from pusl_eval.files.jsonl import parse_row
from pusl_eval.files.lines import decode_line, is_gzip, raw_lines
from pusl_eval.normalize import distinct
from pusl_eval.records import read_label_file

CALIBRATION_K = 20  # keyphrases per item that a calibration is learned from: poor ones have to be among them


class CandidateLists:
    """The candidates of each item, by id; plain JSONL is read again line by line, the rest is kept in memory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.shared: list[str] | None = None
        self._kept: dict[str, list[str]] = {}
        self._hashes, self._starts = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        try:
            kind = kind_of(check_input(path))
        except InputError:
            check_input(path)
            self.shared = distinct(read_label_file(path))
            if not self.shared:
                raise InputError(f"{path}: is empty; expected one phrase a line") from None
            return
        if kind == "jsonl" and not is_gzip(path):
            self._index()
        else:
            for line, row in read_rows(path):
                self._kept[_identifier(row, path, line)] = _phrases(row, path, line)

    def _index(self) -> None:
        """Where each id's line starts: sixteen bytes an item."""
        hashes, starts, start = [], [], 0
        with open(self.path, "rb") as stream:
            for number, content in enumerate(raw_lines(stream), 1):
                if content.strip():
                    row = _row(content, self.path, number)
                    _phrases(row, self.path, number)
                    hashes.append(id_hash(_identifier(row, self.path, number)))
                    starts.append(start)
                start += len(content)
        order = np.argsort(np.array(hashes, np.uint64), kind="stable")
        self._hashes, self._starts = np.array(hashes, np.uint64)[order], np.array(starts, np.int64)[order]

    def of(self, items: Sequence[str]) -> list[list[str]]:
        """The candidates of each id, blanks and repeats left out; empty where the file has none."""
        if self.shared is not None:
            return [self.shared] * len(items)
        if self._kept or not len(self._hashes):
            return [self._kept.get(item, []) for item in items]
        with open(self.path, "rb") as stream:
            return [self._find(stream, item) for item in items]

    def _find(self, stream: Any, item: str) -> list[str]:
        code = np.uint64(id_hash(item))
        low, high = np.searchsorted(self._hashes, code, "left"), np.searchsorted(self._hashes, code, "right")
        for start in self._starts[low:high].tolist():
            stream.seek(start)
            row = _row(stream.readline(), self.path, 0)
            if str(row["id"]) == item:
                return _phrases(row, self.path, 0)
        return []


def _row(content: bytes, path: str, line: int) -> Row:
    text, problem = decode_line(content, 1)
    row = problem or parse_row(text)
    if isinstance(row, str):
        raise InputError(f"{path}:{line}: {row}")
    return row


def _identifier(row: Row, path: str, line: int) -> str:
    value = row.get("id")
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        found = ", ".join(row) or "none"
        raise InputError(f"{path}:{line}: no 'id' (found: {found}). One list for all items is a .txt file")
    return str(value)


def _phrases(row: Row, path: str, line: int) -> list[str]:
    name = "candidates" if "candidates" in row else "keyphrases"
    phrases = row.get(name)
    if isinstance(phrases, str):  # a cell of a CSV file
        try:
            phrases = split_list(phrases)
        except ValueError:
            phrases = None
    if not isinstance(phrases, list) or not all(isinstance(phrase, str) for phrase in phrases):
        raise InputError(f"{path}:{line}: expected a list of strings in 'candidates' or 'keyphrases'")
    return distinct(phrases)


@dataclass(frozen=True)
class ScoreJob(ShardJob):
    """Shards of items -> their candidates, best first, with scores."""

    candidates: str = ""

    def start(self) -> Callable[[Any], bytes]:
        """Reads where the candidates stand, then loads the model."""
        object.__setattr__(self, "_lists", CandidateLists(self.candidates))
        return super().start()

    def answer(self, generator: Predictor, items: Sequence[CatalogItem]) -> tuple[list[Row], Row]:
        """One row per item: candidates by falling score; equal scores stay in the given order."""
        scorer: Any = generator
        lists: list[list[str]] = getattr(self, "_lists").of([item.id for item in items])  # noqa: B009
        found = scorer.score([item.text for item in items], lists, **self.options.decoding)
        rows: list[Row] = []
        for item, phrases, scored in zip(items, lists, found, strict=True):
            possible = [i for i in range(len(phrases)) if scored.scores[i] > -np.inf]
            order = sorted(possible, key=lambda i: -scored.scores[i])
            row: Row = {"id": item.id, "keyphrases": [phrases[i] for i in order]}
            row["scores"] = [round(scored.scores[i], 6) for i in order]
            if scored.probabilities is not None:
                row["probabilities"] = [round(scored.probabilities[i], 6) for i in order]
            if not phrases:
                row["reason"] = "no candidates"
            rows.append(row)
        names = ("exhausted", "truncated", "no_usable_text", "repeats", "unscored", "without_known")
        counts = dict.fromkeys(names, 0)
        return rows, {"items": len(rows), **counts, "exhausted": sum(not row["keyphrases"] for row in rows)}


def score_catalog(
    model: str | os.PathLike[str],
    input: str | os.PathLike[str],
    candidates: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    calibrate: str | os.PathLike[str] | None = None,
    precision: str | None = None,
    device: str = "auto",
    threads: int = 1,
    columns: Columns = STANDARD,
    shard_size: int | None = None,
    workers: int | None = None,
    batch_size: int = 64,
    strict: bool = False,
    force: bool = False,
    progress: bool = True,
) -> Summary:
    """Scores of every item's candidates into `output`; resumes where a killed run stopped.

    With `calibrate`, a file with references, each row also has the probabilities that its phrases are labeled.
    """
    recipe = ModelRecipe(os.path.abspath(model_folder(model)), precision, threads, device=device)
    input, output, candidates = (storage.plain_path(path) for path in (input, output, candidates))
    check_apart([output], {"--input": input, "--candidates": candidates})
    CandidateLists(candidates)  # what is wrong with the file is said before the model is loaded
    recipe.fingerprint()
    if calibrate is not None:
        recipe = with_calibration(recipe, calibrate, output, columns, CALIBRATION_K, {}, workers, progress)
    source = CatalogFile(input, columns)
    shard_size = shard_size or source.usual_shard_size
    fingerprint = {
        "input": input_fingerprint(source), "model": recipe.fingerprint(), "candidates": file_digest(candidates),
        "options": {"score": True, "shard_size": shard_size, "kind": kind_of(output)},
        "columns": {name: getattr(columns, name) for name in ("id_column", "text_column", "text_template")},
        "versions": versions(),
    }  # fmt: skip
    job = ScoreJob(input, columns, recipe, Options(0, {"batch_size": batch_size}), candidates)

    def accept(summary: Summary) -> str:
        useless = summary.items and summary.exhausted == summary.items
        return f"--candidates {candidates}: none of its ids is in {input}" if useless else ""

    return run_catalog(
        job, source, output, fingerprint, shard_size=shard_size, workers=workers, strict=strict, force=force,
        progress=progress, accept=accept, fields=["probabilities"] * (calibrate is not None or is_fused(recipe.model)),
    )  # fmt: skip
