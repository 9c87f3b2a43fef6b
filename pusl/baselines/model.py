"""A baseline's name -> its class; a fitted baseline -> a folder, and back.

Every baseline ranks a closed vocabulary: `fit` takes texts and a label matrix, `rank` returns label
numbers and scores. Folders hold JSON, npy and npz files and no pickles, so loading a model runs no code.
"""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from pusl.baselines.label_matrix import TrainingData
from pusl.config import check
from pusl_eval.errors import damage_refused, needs_extra
from pusl_eval.files import InputError, check_folder, folder_atomic, read_json, write_json

BASELINES = {
    "frequency": ("pusl.baselines.simple:Frequency", "the most frequent training labels, the same for every item"),
    "knn": ("pusl.baselines.simple:Neighbors", "labels of the most similar training texts (TF-IDF cosine)"),
    "svm": ("pusl.baselines.svm:Svm", "one linear SVM per label on TF-IDF words (DiSMEC)"),
    "plt": ("pusl.baselines.plt:Plt", "a probabilistic label tree (napkinXC); --propensity jpv makes it PS-PLT"),
    "logistic": ("pusl.baselines.logistic:Logistic", "one logistic model per label: plain, unbiased or PEJL loss"),
    "fastxml": ("pusl.baselines.fastxml:FastXml", "a forest whose splits optimize nDCG (FastXML)"),
    "word-label": ("pusl.baselines.attention:WordLabel", "shallow Transformer with word-label attention"),
    "attention-xml": ("pusl.baselines.attention:AttentionXml", "BiLSTM with word-label attention (AttentionXML)"),
    "doc-vec": ("pusl.baselines.attention:DocVec", "the Transformer of word-label, with one vector per text"),
}
FORMAT = 1

Ranking = tuple[np.ndarray, np.ndarray]  # label numbers (n, k), -1 for none; scores (n, k)


class Baseline(ABC):
    """One closed-vocabulary system. `Config` is a dataclass of options, each one a command-line flag."""

    Config: ClassVar[type]
    requires: ClassVar[tuple[str, str] | None] = None  # an optional package: its module and its name
    labels: list[str]

    def __init__(self, config: Any = None) -> None:
        self.config = self.Config() if config is None else config
        self.labels = []

    @classmethod
    def check_installed(cls) -> None:
        """An InputError if an optional package that the baseline needs is missing."""
        if cls.requires:
            need_extra(*cls.requires)

    def fit(self, data: TrainingData) -> None:
        """Learns from texts and labels."""
        self.labels = data.labels
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what it leads to is looked at below
            self._fit(data)
        if not _is_finite(vars(self)):
            raise InputError("the baseline's weights are not finite numbers; its settings are too large or too small")

    @abstractmethod
    def _fit(self, data: TrainingData) -> None: ...

    @abstractmethod
    def rank(self, texts: Sequence[str], k: int) -> Ranking:
        """The best k labels of each text, best first."""

    @abstractmethod
    def _save(self, folder: Path) -> None: ...

    @abstractmethod
    def _load(self, folder: Path) -> None: ...


def _is_finite(value: Any) -> bool:
    """Whether all arrays in a value are finite, wherever they are in it."""
    if sparse.issparse(value):
        value = value.data
    if isinstance(value, np.ndarray):
        return value.dtype.kind != "f" or bool(np.isfinite(value).all())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)) or (value and isinstance(value[0], str)):  # labels are many
        return True
    return all(map(_is_finite, value))


def baseline_class(name: str) -> type[Baseline]:
    """The class of a baseline; imports only its own module."""
    if name not in BASELINES:
        raise InputError(f"unknown baseline {name!r}; known: {', '.join(BASELINES)}")
    module, _, attribute = BASELINES[name][0].partition(":")
    found: type[Baseline] = getattr(import_module(module), attribute)
    return found


def save_baseline(folder: str | Path, name: str, model: Baseline, force: bool = False) -> None:
    """Writes the model to a folder that appears only when it is complete."""
    with new_folder(folder, force) as partial:
        write_json(
            partial / "baseline.json",
            {"format": FORMAT, "name": name, "config": dataclasses.asdict(model.config), "labels": model.labels},
        )
        model._save(partial)


def load_baseline(folder: str | Path, name: str | None = None) -> Baseline:
    """The model that `save_baseline` wrote; an InputError if the folder holds something else."""
    folder = Path(folder)
    if not (folder / "baseline.json").is_file():
        raise InputError(
            f"{folder}: is not a saved baseline (no baseline.json); copy the folder again, or save one with --save"
        )
    stored = read_json(folder / "baseline.json", "train the baseline again")
    if stored.get("format") != FORMAT:
        raise InputError(
            f"{folder}: saved in format {stored.get('format')}, this version reads {FORMAT}; train it again"
        )
    found = stored.get("name")
    if not isinstance(found, str) or found not in BASELINES:
        raise InputError(f"{folder}: holds the unknown baseline {found!r}; train it again")
    if name is not None and found != name:
        raise InputError(f"{folder}: holds a '{found}' baseline, not '{name}'")
    kind = baseline_class(found)
    with damage_refused(folder, "the saved baseline", "train it again"):
        model = kind(check(kind.Config(**stored["config"])))
        labels = stored["labels"]
        if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
            raise ValueError("its labels are not a list of texts")
        model.labels = labels
        model._load(folder)
        model.rank(["a"], 1)  # files that each load but do not fit together fail here, not in the middle of a catalog
    return model


@contextlib.contextmanager
def new_folder(folder: str | Path, force: bool = False) -> Iterator[Path]:
    """A temporary folder next to `folder` to write into. It is renamed at the end; an error leaves nothing."""
    folder = Path(folder)
    check_new_folder(folder, force)
    with folder_atomic(folder) as partial:
        yield partial


def check_new_folder(folder: str | Path, force: bool = False) -> None:
    """An InputError unless the folder may be made (a saved baseline there may be replaced with --force)."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; expected a folder to save the model in")
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / "baseline.json").exists():
            raise InputError(f"{folder}: holds other files; name a new folder")
        if not force:
            raise InputError(f"{folder}: exists already; pass --force to overwrite it")
    check_folder(folder)


def need_extra(module: str, package: str) -> None:
    """Raises an InputError that says what to install if an optional package is missing."""
    try:
        import_module(module)
    except ImportError:
        raise needs_extra("this baseline", package, "baselines") from None


def top_k(scores: np.ndarray, k: int) -> Ranking:
    """Dense scores (n, m) -> the k best labels per row; ties go to the lower label number.

    >>> ids, best = top_k(np.array([[0.1, 0.9, 0.9]]), 2)
    >>> ids.tolist(), best.tolist()
    ([[1, 2]], [[0.9, 0.9]])
    """
    k = min(k, scores.shape[1])
    if k < scores.shape[1]:
        threshold = np.partition(scores, scores.shape[1] - k, axis=1)[:, -k]  # (n,)
        chosen = np.empty((len(scores), k), np.int64)
        for row, (values, least) in enumerate(zip(scores, threshold, strict=True)):
            above = np.flatnonzero(values > least)
            chosen[row] = np.concatenate([above, np.flatnonzero(values == least)[: k - len(above)]])
        chosen.sort(axis=1)
    else:
        chosen = np.broadcast_to(np.arange(k), (len(scores), k))
    picked = np.take_along_axis(scores, chosen, axis=1)
    order = np.argsort(-picked, axis=1, kind="stable")
    return np.take_along_axis(chosen, order, axis=1), np.take_along_axis(picked, order, axis=1)


def top_sparse(scores: sparse.csr_matrix, k: int) -> Ranking:
    """Sparse scores (n, m) -> the k best stored labels per row; equal scores go to the lower (more frequent) label."""
    scores = scores.tocsr()
    ids = np.full((scores.shape[0], k), -1, np.int64)
    best = np.zeros((scores.shape[0], k))
    for row in range(scores.shape[0]):
        span = slice(scores.indptr[row], scores.indptr[row + 1])
        index, data = scores.indices[span], scores.data[span]
        order = np.lexsort((index, -data))[:k]
        ids[row, : len(order)] = index[order]
        best[row, : len(order)] = np.minimum(data[order], 1.0)
    return ids, best
