"""What every paradigm answers: keyphrases -> target ids, generated ids -> keyphrases, and its rules.

A paradigm is declared by the marks it writes and a few facts; the methods here follow from them.
Subclasses change what differs. Nobody else in the project asks for a paradigm's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

from pusl.paradigms.prefixes import allowed_ids
from pusl.tokenizer import TokenIds, decode_each
from pusl_eval.files import InputError

LOSSES = ("sequence", "order-free")
ORDERS = ("given", "shuffle", "frequency")  # of keyphrases in a target; shuffle is new every epoch
STRATEGIES = ("sequence", "beam")  # of decoding

Phrases = Sequence[Sequence[int]]  # the token ids of several keyphrases


class TrainingOptions(Protocol):
    """The settings of a training run that a paradigm checks."""

    @property
    def loss(self) -> str | None: ...
    @property
    def order(self) -> str | None: ...
    @property
    def restart(self) -> float: ...
    @property
    def learn_bok(self) -> bool: ...


class Paradigm:
    """How a model is taught keyphrases and how it is asked for them."""

    name: ClassVar[str]  # --paradigm NAME
    title: ClassVar[str]  # as tables and reports print it
    summary: ClassVar[str]  # its line in the model card

    # Marks, by their names in TokenIds: opening phrase closing opening phrase ... final
    opening: ClassVar[str | None] = None
    closing: ClassVar[str]
    final: ClassVar[str]  # closes the last keyphrase; "eos" lets the model end the sequence itself

    # Training; the first of each is the default
    losses: ClassVar[tuple[str, ...]] = LOSSES
    orders: ClassVar[tuple[str, ...]] = ("shuffle", "given", "frequency")
    options: ClassVar[tuple[str, ...]] = ()  # of `restart` and `learn_bok`, those it understands
    packs_rows: ClassVar[bool] = False  # an item's sequences share one decoder row
    unlearned: ClassVar[tuple[str, ...]] = ()  # marks that the decoder writes, so that the loss leaves them out

    # Decoding; the first strategy is the default
    strategies: ClassVar[tuple[str, ...]]
    reads_known: ClassVar[bool] = False  # continues after keyphrases that an item already has

    def __str__(self) -> str:
        return self.name

    @property
    def endless(self) -> bool:
        """Stopping rule: no EOS ever, the caller's k decides."""
        return self.final != "eos"

    @property
    def ends_itself(self) -> bool:
        """Stopping rule: the model decides how many keyphrases it gives. If neither, EOS ends one keyphrase."""
        return self.final == "eos" and self.closing != "eos"

    @property
    def marks(self) -> frozenset[str]:
        """The added tokens that targets contain: of `bok`, `eok` and `sep`."""
        written = (self.opening, self.closing, self.final)
        return frozenset(mark for mark in written if mark is not None and mark != "eos")

    @property
    def marks_per_phrase(self) -> int:
        """How many ids a keyphrase costs beside its own."""
        return 1 if self.opening is None else 2

    def target(self, phrases: Phrases, tokens: TokenIds, max_length: int | None = None) -> tuple[list[int], int]:
        """Phrases in order -> (target ids, number of whole phrases that fitted)."""
        opening, target, fitted = self._opening(tokens), list[int](), 0
        for phrase in phrases:
            closing = self.final if fitted == len(phrases) - 1 else self.closing
            part = [*opening, *phrase, getattr(tokens, closing)]
            if max_length is not None and len(target) + len(part) > max_length:
                break
            target += part
            fitted += 1
        return target, fitted

    def allowed_sets(self, phrases: Phrases, tokens: TokenIds, fitted: int | None = None) -> list[list[int]]:
        """For every position of `target(phrases)`: the ids that would be right there (order-free loss).

        R = phrases not yet completed, p = ids since the last mark: the next ids of all phrases in R that p
        begins, and the closing id if p itself is in R. Opening marks have no choice. Only the first `fitted`
        phrases are in the target, but phrases that were cut off stay right answers.
        """
        opening = [[mark] for mark in self._opening(tokens)]
        closings = [getattr(tokens, self.closing)] * (len(phrases) - 1) + [getattr(tokens, self.final)]
        parts = allowed_ids(phrases, closings, len(phrases) if fitted is None else fitted)
        return [ids for part in parts for ids in (*opening, *part)]

    def sequences(
        self, phrases: Phrases, tokens: TokenIds, max_length: int, *, order_free: bool = False,
        restarts: Sequence[bool] | None = None,
    ) -> Iterator[tuple[list[int], list[list[int]]]]:  # fmt: skip
        """An item's phrases -> (target ids, allowed sets if `order_free`) of each of its sequences: here, one."""
        target, fitted = self.target(phrases, tokens, max_length)
        yield target, self.allowed_sets(phrases, tokens, fitted) if order_free else []

    def prefix(self, tokens: TokenIds, known: Phrases = ()) -> list[int]:
        """What the decoder has read before the next keyphrase, after those that an item already has."""
        opening, closing = self._opening(tokens), getattr(tokens, self.closing)
        return [tokens.start, *(token for phrase in known for token in (*opening, *phrase, closing)), *opening]

    def ends(self, tokens: TokenIds) -> list[int]:
        """The ids that may close a keyphrase."""
        return list(dict.fromkeys((getattr(tokens, self.closing), getattr(tokens, self.final))))

    def split(self, ids: Iterable[int], tokens: TokenIds) -> list[list[int]]:
        """Generated ids -> the ids of each keyphrase; blanks are kept as []."""
        found: list[list[int]] = [[]]
        for position, token in enumerate(ids):
            if token == tokens.eos or (token == tokens.pad and position > 0):
                break
            if token == tokens.sep:
                found.append([])
            elif token not in (tokens.start, tokens.pad, tokens.bok, tokens.eok):
                found[-1].append(token)
        return found if found != [[]] else []

    def decode(self, tokenizer: Any, ids: Iterable[int], tokens: TokenIds) -> list[str]:
        """Generated ids -> keyphrases, in order, repeats kept (they cost budget and must stay visible).

        The split is on ids: decoding first with `skip_special_tokens=True` would erase the boundaries.
        """
        return [text.strip() for text in decode_each(tokenizer, self.split(ids, tokens))]

    def check(self, options: TrainingOptions) -> None:
        """Raises an InputError if a training option does not fit this paradigm."""
        for name, allowed in (("loss", self.losses), ("order", self.orders)):
            value = getattr(options, name)
            if value is not None and value not in allowed:
                raise InputError(f"'{name}' is {value}; the paradigm {self.name} allows: {', '.join(allowed)}")
        for name in ("restart", "learn_bok"):
            if getattr(options, name) and name not in self.options:
                raise InputError(f"'{name}' is for the paradigm {_having(name)}, not for {self.name}")

    def choose_strategy(self, asked: str | None) -> str:
        """The decoding strategy to use: the one asked for, or the default if this paradigm has only that."""
        return asked if asked in self.strategies else self.strategies[0]

    def _opening(self, tokens: TokenIds) -> list[int]:
        return [] if self.opening is None else [getattr(tokens, self.opening)]


def _having(option: str) -> str:
    """Names of the built-in and registered paradigms that understand a training option."""
    from pusl.paradigms import registered

    return " or ".join(paradigm.name for paradigm in registered() if option in paradigm.options)
