"""Example files -> texts and a sparse label matrix over one closed vocabulary.

Every baseline ranks the labels of the training file. Labels that differ only in case, width or white
space are one label (the `basic` normalization); its most frequent spelling is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from pusl.examples import Columns, read_examples
from pusl_eval.files import InputError
from pusl_eval.normalize import distinct_forms, normalize


@dataclass
class TrainingData:
    """Texts and their labels: `matrix[i, l]` is 1 if item i has label l."""

    texts: list[str]
    labels: list[str]
    matrix: sparse.csr_matrix  # (n, m)

    @property
    def frequencies(self) -> np.ndarray:
        """Training items per label."""
        return np.asarray(self.matrix.sum(axis=0)).ravel()  # (m,)


def label_matrix(lists: Iterable[Sequence[str]]) -> tuple[list[str], sparse.csr_matrix]:
    """Keyphrase lists -> label names, most frequent first, and the 0/1 matrix.

    >>> labels, matrix = label_matrix([["Cat", "dog"], ["cat"], ["cat", "cat"]])
    >>> labels, matrix.toarray().tolist()
    (['cat', 'dog'], [[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    """
    spellings: dict[str, Counter[str]] = {}
    rows: list[list[str]] = []
    for keyphrases in lists:
        for phrase in keyphrases:
            spellings.setdefault(normalize(phrase), Counter())[phrase] += 1
        rows.append(list(distinct_forms(keyphrases)))
    frequencies = Counter(key for row in rows for key in row)
    order = sorted(frequencies, key=lambda key: (-frequencies[key], key))
    index = {key: number for number, key in enumerate(order)}
    lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    columns = np.fromiter((index[key] for row in rows for key in row), np.int32, int(lengths.sum()))
    pointers = np.concatenate([[0], np.cumsum(lengths)])
    values = np.ones(len(columns), np.float32)
    matrix = sparse.csr_matrix((values, columns, pointers), shape=(len(rows), len(order)))
    matrix.sort_indices()
    return [spellings[key].most_common(1)[0][0] for key in order], matrix


def read_training(path: str | Path, columns: Columns | None = None) -> TrainingData:
    """The labeled items of an example file; items without keyphrases are skipped."""
    texts, lists = [], []
    for example in read_examples(path, columns=columns):
        if any(phrase.strip() for phrase in example.keyphrases):
            texts.append(example.text)
            lists.append(example.keyphrases)
    if not texts:
        raise InputError(f"{path}: no item with keyphrases; a baseline needs labeled training items")
    labels, matrix = label_matrix(lists)
    return TrainingData(texts, labels, matrix)
