"""One2One: one target per keyphrase. `red shoe EOS | boot EOS`"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pusl.paradigms.base import Paradigm, Phrases, TrainingOptions
from pusl.tokenizer import TokenIds
from pusl_eval.files import InputError


class One2One(Paradigm):
    """Each keyphrase is a target of its own; a beam search ranks whole keyphrases.

    >>> from pusl.tokenizer import TokenIds
    >>> ids = TokenIds(pad=0, eos=1, bok=7, eok=8, sep=9, start=0)
    >>> [target for target, _ in One2One().sequences([[4, 5], [6]], ids, 10)]
    [[4, 5, 1], [6, 1]]
    """

    name = "one2one"
    title = "One2One"
    summary = "one keyphrase per target; beam search ranks keyphrases"

    closing = final = "eos"

    losses = ("sequence",)  # a target with one keyphrase has one order
    packs_rows = True
    strategies = ("beam",)

    def check(self, options: TrainingOptions) -> None:
        """The order-free loss is about several keyphrases in a target."""
        if options.loss not in (None, *self.losses):
            raise InputError(f"'loss' is {options.loss}, but one2one has one keyphrase per target and no order")
        super().check(options)

    def sequences(
        self, phrases: Phrases, tokens: TokenIds, max_length: int, *, order_free: bool = False,
        restarts: Sequence[bool] | None = None,
    ) -> Iterator[tuple[list[int], list[list[int]]]]:  # fmt: skip
        """One sequence per phrase; phrases that do not fit alone are left out."""
        for phrase in phrases:
            if len(phrase) < max_length:
                yield from super().sequences([phrase], tokens, max_length)
