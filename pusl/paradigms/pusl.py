"""PUSL: an endless sequence of marked keyphrases. `BOK red shoe EOK BOK boot EOK`, and no EOS ever.

Labels are incomplete, so an item's list never says "that is all". One2Seq learns to stop where the
labels stop. PUSL never learns to stop: each keyphrase stands between its own marks, and at decoding
time the caller's k says how many are written. The whole idea is in three lines below:

    opening = "bok"
    closing = "eok"
    final = "eok"      # not "eos"
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pusl.paradigms.base import Paradigm, Phrases, TrainingOptions
from pusl.tokenizer import TokenIds
from pusl_eval.files import InputError


class Pusl(Paradigm):
    """Positive-unlabeled sequence learning.

    >>> from pusl.tokenizer import TokenIds
    >>> ids = TokenIds(pad=0, eos=1, bok=7, eok=8, sep=9, start=0)
    >>> Pusl().target([[4, 5], [6]], ids)
    ([7, 4, 5, 8, 7, 6, 8], 2)
    >>> Pusl().allowed_sets([[4, 5], [4]], ids)
    [[7], [4], [5, 8], [8], [7], [4], [8]]
    >>> Pusl().split([0, 7, 4, 5, 8, 7, 6, 8, 7, 4], ids)
    [[4, 5], [6]]
    """

    name = "pusl"
    title = "PUSL"
    summary = "an endless sequence of marked keyphrases; the caller decides how many"

    opening = "bok"
    closing = "eok"
    final = "eok"

    options = ("restart", "learn_bok")
    unlearned = ("bok",)
    strategies = ("beam", "sequence")
    reads_known = True

    def sequences(
        self, phrases: Phrases, tokens: TokenIds, max_length: int, *, order_free: bool = False,
        restarts: Sequence[bool] | None = None,
    ) -> Iterator[tuple[list[int], list[list[int]]]]:  # fmt: skip
        """One sequence, or one from each phrase that restarts: such a phrase sees none before it."""
        for first, last in segments(restarts or [False] * len(phrases)):
            inside = phrases[first:last]
            target, fitted = self.target(inside, tokens, max_length)
            # Phrases of the other sequences are right answers here too: nothing in this one rules them out.
            order = [*inside, *phrases[:first], *phrases[last:]]
            yield target, self.allowed_sets(order, tokens, fitted) if order_free else []

    def split(self, ids: Iterable[int], tokens: TokenIds) -> list[list[int]]:
        """Generated ids -> the ids of each keyphrase that was closed; blanks are kept as []."""
        found: list[list[int]] = []
        span: list[int] | None = None
        for token in ids:
            if token == tokens.eos:
                break
            if token == tokens.bok:
                span = []
            elif token == tokens.eok:
                if span is not None:
                    found.append(span)
                span = None
            elif span is not None and token != tokens.pad:
                span.append(token)
        return found

    def check(self, options: TrainingOptions) -> None:
        """`restart` is a chance."""
        super().check(options)
        if options.restart > 1:
            raise InputError(f"'restart' is {options.restart}; it is a chance from 0 to 1")


def segments(restarts: Sequence[bool]) -> list[tuple[int, int]]:
    """Where sequences begin and end, given which phrases open one; the first always does.

    >>> segments([False, False, True, False])
    [(0, 2), (2, 4)]
    """
    starts = [0, *(i for i, opens in enumerate(restarts) if opens and i)]
    return list(zip(starts, [*starts[1:], len(restarts)], strict=True))
