"""Texts + options -> the work of a request, and whether that is too much.

The unit is one beam of one phrase. `beam` searches once with as many beams as there are keyphrases and a few more,
`sequence` searches k times. The price list is simple so that a client can compute it:

    beam       max(num_beams, k + max(2, k // 4))    per text
    sequence   k * num_beams (4 if not given)        per text
    sampling   2 * k                                 per text
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pusl.serve.gateway import Problem

SEQUENCE_BEAMS = 4  # of `sequence`, if the request names none
KNOWN_STEP = 8  # known keyphrases widen the search in steps of this many
MOST_BEAMS = 64
READ_CHARS = 1024  # a longer text is cut before the model reads it
CHARS_PER_UNIT = 64  # of what the model reads
SCANNED_PER_UNIT = 1000  # of what is only split into tokens, or searched for the keyphrases


def units_per_text(options: dict[str, Any], known: int = 0) -> int:
    """The price of one text.

    >>> units_per_text({"k": 10, "strategy": "beam"}), units_per_text({"k": 10, "strategy": "sequence"})
    (12, 40)
    """
    k, asked = options["k"], options.get("num_beams")
    more = -(-known // KNOWN_STEP) * KNOWN_STEP
    if options.get("temperature"):
        return 2 * k
    if options["strategy"] == "sequence":
        beams = asked or SEQUENCE_BEAMS
        return k * (min(beams + more, max(beams, MOST_BEAMS)))
    beams = max(asked or 0, k + max(2, k // 4))
    return min(beams + more, max(beams, MOST_BEAMS))


def check_work(texts: int, unit: int, most: int) -> None:
    """A Problem if the request is more work than --max-work allows; it says what to lower."""
    if texts * unit <= most:
        return
    work = f"the work is {texts * unit} (texts x beams, times k under `sequence`); at most {most} per request"
    fits = most // unit
    advice = f"send at most {fits} texts at once" if fits else "lower num_beams or k"
    raise Problem(413, "too_costly", f"{work}: {advice}{', or lower num_beams or k' if fits else ''}")


def text_costs(texts: Sequence[str], unit: int) -> list[float]:
    """The price of every text, reading included: what the batcher plans with."""
    return [unit + min(len(text), READ_CHARS) / CHARS_PER_UNIT + len(text) / SCANNED_PER_UNIT for text in texts]
