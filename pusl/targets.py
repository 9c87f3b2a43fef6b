"""Keyphrases -> target ids for each paradigm, and generated ids -> keyphrases.

The whole PUSL idea on one screen. One item with the keyphrases `red shoe` and `boot`:

    one2one   red shoe EOS | boot EOS             one target per keyphrase
    one2seq   red shoe SEP boot EOS               the model decides when to stop
    groov     as one2seq, order reshuffled every epoch, every valid next token is right
    pusl      BOK red shoe EOK BOK boot EOK       no EOS ever: the decoder's k decides

Every keyphrase is tokenized ALONE and the ids are joined, because T5 tokenizers split a phrase
differently after an added token. Targets are cut between keyphrases, never inside one; a cut
One2Seq or GROOV target ends with SEP instead of EOS, since there was more to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

PARADIGMS = ("one2one", "one2seq", "groov", "pusl")
ORDERS = ("given", "shuffle", "frequency")  # of keyphrases in a target; shuffle is new every epoch
BOK, EOK, SEP = "<bok>", "<eok>", "<sep>"


@dataclass(frozen=True)
class TokenIds:
    """The ids that structure a target; `start` is the decoder's first input."""

    pad: int
    eos: int
    bok: int
    eok: int
    sep: int
    start: int

    @property
    def control(self) -> frozenset[int]:
        """Ids that never stand inside a keyphrase."""
        return frozenset((self.pad, self.eos, self.bok, self.eok, self.sep))


def encode_keyphrases(tokenizer: Any, keyphrases: Sequence[str], tokens: TokenIds) -> list[list[int]]:
    """Each keyphrase alone -> its ids, without EOS. A mark written out in the text (`<eok>`) is text."""
    if not keyphrases:
        return []
    rows = tokenizer(
        list(keyphrases),
        add_special_tokens=False,
        return_attention_mask=False,
        split_special_tokens=True,
        verbose=False,
    )["input_ids"]
    control = tokens.control
    return [[token for token in row if token not in control] for row in rows]


def build_target(
    phrases: Sequence[Sequence[int]], paradigm: str, tokens: TokenIds, max_length: int | None = None
) -> tuple[list[int], int]:
    """Phrases in order -> (target ids, number of whole phrases that fitted). Not for one2one.

    >>> ids = TokenIds(pad=0, eos=1, bok=7, eok=8, sep=9, start=0)
    >>> build_target([[4, 5], [6]], "pusl", ids)
    ([7, 4, 5, 8, 7, 6, 8], 2)
    >>> build_target([[4, 5], [6]], "one2seq", ids)
    ([4, 5, 9, 6, 1], 2)
    >>> build_target([[4, 5], [6]], "one2seq", ids, max_length=4)
    ([4, 5, 9], 1)
    """
    target: list[int] = []
    fitted = 0
    for phrase in phrases:
        opening, closing = ([tokens.bok], tokens.eok) if paradigm == "pusl" else ([], tokens.sep)
        if max_length is not None and len(target) + len(opening) + len(phrase) + 1 > max_length:
            break
        target += [*opening, *phrase, closing]
        fitted += 1
    if paradigm != "pusl" and fitted == len(phrases) and target:
        target[-1] = tokens.eos
    return target, fitted


def build_rows(phrases: Sequence[Sequence[int]], tokens: TokenIds, max_length: int | None = None) -> list[list[int]]:
    """One2One targets: one row `kp EOS` per phrase; phrases that do not fit a row are left out.

    >>> build_rows([[4, 5], [6]], TokenIds(pad=0, eos=1, bok=7, eok=8, sep=9, start=0))
    [[4, 5, 1], [6, 1]]
    """
    return [[*phrase, tokens.eos] for phrase in phrases if max_length is None or len(phrase) < max_length]


def allowed_sets(
    phrases: Sequence[Sequence[int]], paradigm: str, tokens: TokenIds, fitted: int | None = None
) -> list[list[int]]:
    """For every position of `build_target(phrases)`: the ids that would be right there (multi-softmax).

    R = phrases not yet completed, p = ids since the last separator: the next ids of all phrases in R
    that p begins, and the closing id if p itself is in R. Closing is SEP, EOS for the last of One2Seq
    and GROOV, and always EOK for PUSL, whose BOK positions have no choice. Only the first `fitted`
    phrases are in the target, but phrases that were cut off stay right answers.

    >>> ids = TokenIds(pad=0, eos=1, bok=7, eok=8, sep=9, start=0)
    >>> allowed_sets([[4, 5], [4]], "groov", ids)
    [[4], [5, 9], [9], [4], [1]]
    >>> allowed_sets([[4, 5], [4]], "pusl", ids)
    [[7], [4], [5, 8], [8], [7], [4], [8]]
    """
    root = _Node()
    for phrase in phrases:
        root.add(phrase, 1)
    remaining, sets = len(phrases), []
    for phrase in phrases[: len(phrases) if fitted is None else fitted]:
        closing = tokens.eok if paradigm == "pusl" else tokens.sep if remaining > 1 else tokens.eos
        if paradigm == "pusl":
            sets.append([tokens.bok])
        node = root
        sets.append(node.next_ids(closing))
        for token in phrase:
            node = node.children[token]
            sets.append(node.next_ids(closing))
        root.add(phrase, -1)
        remaining -= 1
    return sets


class _Node:
    """A prefix shared by phrases: how many remaining phrases pass through it and end in it."""

    __slots__ = ("children", "ends", "passing")

    def __init__(self) -> None:
        self.children: dict[int, _Node] = {}
        self.passing = self.ends = 0

    def add(self, phrase: Sequence[int], count: int) -> None:
        node = self
        for token in phrase:
            node = node.children.setdefault(token, _Node())
            node.passing += count
        node.ends += count

    def next_ids(self, closing: int) -> list[int]:
        ids = [token for token, child in self.children.items() if child.passing > 0]
        return [*ids, closing] if self.ends > 0 else ids


def split_ids(ids: Iterable[int], paradigm: str, tokens: TokenIds) -> list[list[int]]:
    """Generated ids -> the ids of each keyphrase (PUSL: closed spans only; blanks are kept as []).

    >>> ids = TokenIds(pad=0, eos=1, bok=7, eok=8, sep=9, start=0)
    >>> split_ids([0, 7, 4, 5, 8, 7, 6, 8, 7, 4], "pusl", ids)
    [[4, 5], [6]]
    >>> split_ids([0, 4, 5, 9, 6, 1, 0, 0], "one2seq", ids)
    [[4, 5], [6]]
    """
    if paradigm == "pusl":
        return _closed_spans(ids, tokens)
    found: list[list[int]] = [[]]
    for position, token in enumerate(ids):
        if token == tokens.eos or (token == tokens.pad and position > 0):
            break
        if token == tokens.sep:
            found.append([])
        elif token not in (tokens.start, tokens.pad, tokens.bok, tokens.eok):
            found[-1].append(token)
    return found if found != [[]] else []


def _closed_spans(ids: Iterable[int], tokens: TokenIds) -> list[list[int]]:
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


def decode_keyphrases(tokenizer: Any, ids: Iterable[int], paradigm: str, tokens: TokenIds) -> list[str]:
    """Generated ids -> keyphrases, in order, repeats kept (they cost budget and must stay visible).

    The split is on ids: decoding first with `skip_special_tokens=True` would erase the boundaries.
    """
    return [text.strip() for text in decode_each(tokenizer, split_ids(ids, paradigm, tokens))]


def decode_each(tokenizer: Any, phrases: Sequence[Sequence[int]]) -> list[str]:
    """Ids of several phrases -> their texts."""
    return [str(text) for text in tokenizer.batch_decode([list(phrase) for phrase in phrases])] if phrases else []
