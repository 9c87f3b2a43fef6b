"""Texts + keyphrases -> which keyphrases are present: their words stand next to each other in the text.

Words are compared in the normalized (or stemmed) form; punctuation separates them. The texts are kept as
bytes in a temporary file (in memory while they are few), in the order of the items, and are read through
once per list of keyphrases: memory does not grow with the length of the texts.
"""

from __future__ import annotations

import re
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat

import numpy as np

from pusl_eval.matching import BLANK, Flags, Ragged, Vocabulary
from pusl_eval.normalize import STEMMERS, normalize

IN_MEMORY = 64 << 20  # bytes of text that are kept without a file
_BREAKS = re.compile(r"[\W_]+")
_ASCII_BREAKS = {code: " " for code in range(128) if not chr(code).isalnum()}
_NEVER = b"\0"  # stands in no text


def spaced_words(text: str, how: str = "basic") -> str:
    """The compared words of a text with one space before and after each; empty if it has none.

    >>> spaced_words("Wide-angle LENSES, 2 pcs.")
    ' wide angle lenses 2 pcs '
    >>> spaced_words("Wide-angle LENSES, 2 pcs.", "stem")
    ' wide angl lens 2 pc '
    """
    form = normalize(text, "none" if how == "none" else "basic")
    form = form.translate(_ASCII_BREAKS) if form.isascii() else _BREAKS.sub(" ", form)
    words = form.split()
    if how in STEMMERS:
        words = [STEMMERS[how](word) for word in words]
    return f" {' '.join(words)} " if words else ""


def is_present(keyphrase: str, text: str, how: str = "basic") -> bool:
    """Whether the keyphrase's words stand next to each other in the text.

    >>> is_present("Red shoe", "A red shoe, size 9"), is_present("shoe red", "A red shoe, size 9")
    (True, False)
    """
    wanted = spaced_words(keyphrase, how)
    return bool(wanted) and wanted in spaced_words(text, how)


class Texts:
    """One text per item, in the items' order; None where an item has none."""

    def __init__(self, how: str = "basic") -> None:
        self.how = how
        self.lengths = array("q")  # bytes; -1: no text
        self.file = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115
        weakref.finalize(self, self.file.close)

    def extend(self, texts: Iterable[str | None]) -> None:
        """Adds the texts of the next items."""
        for text in texts:
            words = b"" if text is None else spaced_words(text, self.how).encode(errors="surrogatepass")
            self.lengths.append(-1 if text is None else len(words))
            self.file.write(words)

    def __bool__(self) -> bool:
        """Whether any item has a text."""
        return any(length >= 0 for length in self.lengths)

    def __iter__(self) -> Iterator[bytes]:
        self.file.seek(0)
        for length in self.lengths:
            yield self.file.read(length) if length > 0 else b""

    def phrases(self, vocabulary: Vocabulary) -> list[bytes]:
        """Each phrase of the vocabulary as it is looked for; a last entry stands for BLANK.

        >>> vocabulary = Vocabulary("stem")
        >>> vocabulary["Node.js"], Texts("stem").phrases(vocabulary)
        (0, [b' node js ', b'\\x00'])
        """
        spellings = vocabulary.phrases()
        if self.how in STEMMERS:  # a stemmed phrase is "node.j", the text has "node js": start from the writing
            written = dict[int, str]()
            for raw, found in vocabulary.items():
                written[found] = min(raw, written.get(found, raw))
            spellings = [written[found] for found in range(vocabulary.size)]
        words = (spaced_words(spelling, self.how).encode(errors="surrogatepass") for spelling in spellings)
        return [*(word or _NEVER for word in words), _NEVER]

    def present(self, rows: Ragged, phrases: Sequence[bytes]) -> Flags:
        """For each entry of `rows` (ids, one row per text), whether it is present in its item's text."""
        texts = chain.from_iterable(map(repeat, self, rows.lengths.tolist()))
        wanted = map(phrases.__getitem__, rows.ids.tolist())
        return np.fromiter(map(bytes.__contains__, texts, wanted), np.bool_, len(rows.ids))


def kinds_of(texts: Texts, rows: Ragged, phrases: Sequence[bytes]) -> dict[str, Ragged]:
    """`present` and `absent`: the rows with only the keyphrases of that kind; blanks and items without text are in
    neither.
    """
    present = texts.present(rows, phrases)
    known = np.frombuffer(texts.lengths, np.int64)[rows.rows] >= 0 if len(texts.lengths) else present
    real = known & (rows.ids != BLANK)
    return {"present": rows.keep(real & present), "absent": rows.keep(real & ~present)}
