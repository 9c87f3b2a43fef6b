"""GROOV: One2Seq whose order is shuffled every epoch and whose every valid next token is right."""

from __future__ import annotations

from pusl.paradigms.base import TrainingOptions
from pusl.paradigms.one2seq import One2Seq
from pusl_eval.files import InputError


class Groov(One2Seq):
    """Simig et al. 2022: keyphrases are a set, so the loss forgives every order.

    >>> from pusl.tokenizer import TokenIds
    >>> Groov().allowed_sets([[4, 5], [4]], TokenIds(pad=0, eos=1, bok=7, eok=8, sep=9, start=0))
    [[4], [5, 9], [9], [4], [1]]
    """

    name = "groov"
    title = "GROOV"
    summary = "all keyphrases in one target, in any order (order-free loss)"

    losses = ("order-free",)
    orders = ("shuffle",)

    def check(self, options: TrainingOptions) -> None:
        """The loss and the order are what GROOV is."""
        if options.loss not in (None, *self.losses) or options.order not in (None, *self.orders):
            raise InputError("groov means --order shuffle and --loss order-free; for another mixture use one2seq")
        super().check(options)
