"""One2Seq: all keyphrases in one target. `red shoe SEP boot EOS`"""

from __future__ import annotations

from pusl.paradigms.base import Paradigm


class One2Seq(Paradigm):
    """The model decides when to stop. A cut target ends with SEP, since there was more to say.

    >>> from pusl.tokenizer import TokenIds
    >>> ids = TokenIds(pad=0, eos=1, bok=7, eok=8, sep=9, start=0)
    >>> One2Seq().target([[4, 5], [6]], ids)
    ([4, 5, 9, 6, 1], 2)
    >>> One2Seq().target([[4, 5], [6]], ids, max_length=4)
    ([4, 5, 9], 1)
    >>> One2Seq().split([0, 4, 5, 9, 6, 1, 0, 0], ids)
    [[4, 5], [6]]
    """

    name = "one2seq"
    title = "One2Seq"
    summary = "all keyphrases in one target that the model ends itself"

    closing, final = "sep", "eos"

    strategies = ("sequence", "beam")  # its own greedy sequence; GROOV's sum over beams
