"""A trained model + texts -> k different, scored keyphrases per text.

from pusl import KeyphraseGenerator
generator = KeyphraseGenerator.from_pretrained("models/pusl")
generator.generate(["Zeto X2 drone with 4k camera"], k=10)
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from eval.files import InputError
from eval.normalize import normalize
from pusl.checkpoint import Checkpoint, load_checkpoint
from pusl.decoding.engine import Engine
from pusl.decoding.phrases import search_phrases
from pusl.decoding.plans import NOTHING, Merged, Ranked, Sequential
from pusl.decoding.processor import DEFAULT_PHRASE_TOKENS
from pusl.decoding.sequences import Phrase, Rules, Sampling, decode_sequences
from pusl.targets import decode_each
from pusl.tokenizer import encode_texts

STRATEGIES = ("sequence", "beam", "merge")
VOCABULARIES = ("open", "prefer", "closed")
DEFAULT_STRATEGY = {"pusl": "beam", "one2one": "beam", "one2seq": "sequence", "groov": "sequence"}
DEFAULT_SOURCE_LENGTH = 256
SEQUENCE_BEAMS = 4


@dataclass
class Prediction:
    """Keyphrases of one text, best first; `exhausted`: the model had fewer than k to give.

    `scores` are log-probabilities of whole keyphrases, `normalized` the same per token.
    """

    keyphrases: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    exhausted: bool = False
    normalized: list[float] = field(default_factory=list)


class KeyphraseGenerator:
    """Decodes a checkpoint of any paradigm. Making one is cheap; it keeps the prepared weights."""

    def __init__(self, checkpoint: Checkpoint, *, precision: str = "fp32", threads: int | None = None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.checkpoint, self.precision = checkpoint, precision
        self.tokenizer, self.paradigm, self.tokens = checkpoint.tokenizer, checkpoint.paradigm, checkpoint.tokens
        defaults = checkpoint.meta.get("defaults", {})
        self.max_source_length = int(defaults.get("max_source_length") or DEFAULT_SOURCE_LENGTH)
        self.max_phrase_tokens = int(defaults.get("max_phrase_tokens") or DEFAULT_PHRASE_TOKENS)
        self.engine = Engine(checkpoint.model, precision)
        # Rows that no token has were never trained and cannot be spelled.
        self.banned = tuple(range(len(self.tokenizer), self.engine.vocab_size))
        self._texts: dict[tuple[int, ...], tuple[str, str]] = {}

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str | None = None, **options: Any) -> KeyphraseGenerator:
        """Loads a folder written by `pusl train`."""
        return cls(load_checkpoint(folder, device), **options)

    def generate(
        self,
        texts: Sequence[str],
        k: int,
        *,
        strategy: str | None = None,
        allow_repeats: bool = False,
        vocabulary: str = "open",
        universe: Any = None,
        min_score: float | None = None,
        batch_size: int = 32,
        seed: int = 0,
        temperature: float = 0.0,
        top_p: float = 1.0,
        num_beams: int | None = None,
    ) -> list[Prediction]:
        """k keyphrases for each text, in the order of the texts.

        Args:
            strategy: `sequence`, `beam` or `merge` (see `plans.py`); None takes the paradigm's default.
            allow_repeats: the paper's Algorithm 1: greedy, the same phrase may come again.
            vocabulary: `closed` gives only phrases of the universe, `prefer` favors them.
            universe: a `Universe`, needed for `closed` and `prefer`.
            min_score: phrases with a lower log-probability are left out.
            batch_size: items decoded at once; changes speed, never results.
            temperature, top_p, seed: a temperature above 0 samples; each text has its own random numbers.
            num_beams: width of the phrase search.
        """
        if k < 1:
            raise InputError(f"k is {k}; it must be at least 1")
        strategy = strategy or DEFAULT_STRATEGY[self.paradigm]
        _check("strategy", strategy, STRATEGIES)
        _check("vocabulary", vocabulary, VOCABULARIES)
        if vocabulary != "open":
            raise InputError(f"vocabulary {vocabulary!r} is not available yet")
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; it must be at least 1")
        ids = encode_texts(self.tokenizer, texts, self.max_source_length)
        known = [i for i, text in enumerate(texts) if text.strip()]
        sampling = Sampling(temperature, top_p, seed) if temperature > 0 else None
        source = [ids[i] for i in known]
        keys = [zlib.crc32(texts[i].encode()) for i in known]
        if not source:
            found: list[list[Phrase]] = []
        elif sampling or self.paradigm in ("one2seq", "groov") or (allow_repeats and self.paradigm == "pusl"):
            found = self._sequences(source, k, allow_repeats, batch_size, sampling, keys)
        else:
            found = self._search(source, k, strategy, allow_repeats, batch_size, num_beams)
        answers = [Prediction(exhausted=True) for _ in texts]
        for i, phrases in zip(known, found, strict=True):
            kept = [phrase for phrase in phrases if min_score is None or phrase.logprob >= min_score]
            answers[i] = Prediction(
                [self._spell(phrase.ids)[0] for phrase in kept],
                [phrase.logprob for phrase in kept],
                len(phrases) < k,
                [phrase.logprob / (len(phrase.ids) + 1) for phrase in kept],
            )
        return answers

    def _rules(self, k: int) -> Rules:
        return Rules(self.tokens, self.paradigm == "pusl", k, self.max_phrase_tokens, self.banned)

    def _sequences(
        self,
        source: list[list[int]],
        k: int,
        allow_repeats: bool,
        batch_size: int,
        sampling: Sampling | None,
        keys: list[int],
    ) -> list[list[Phrase]]:
        slots = k if allow_repeats or self.paradigm != "pusl" else 2 * k
        found = decode_sequences(
            self.engine, source, self._rules(slots), slots=batch_size, sampling=sampling, keys=keys
        )
        if allow_repeats:
            return [phrases[:k] for phrases in found]
        return [self._distinct(phrases)[:k] for phrases in found]

    def _distinct(self, phrases: Sequence[Phrase]) -> list[Phrase]:
        first: dict[str, Phrase] = {}
        for phrase in phrases:
            first.setdefault(self._form(phrase.ids), phrase)
        first.pop("", None)
        return list(first.values())

    def _search(
        self,
        source: list[list[int]],
        k: int,
        strategy: str,
        allow_repeats: bool,
        batch_size: int,
        num_beams: int | None,
    ) -> list[list[Phrase]]:
        if strategy == "sequence" and self.paradigm == "pusl":
            beams = num_beams or SEQUENCE_BEAMS
            plans: Any = search_phrases(
                self.engine, source, self._rules(k), lambda _: Sequential(k, self._form, NOTHING, allow_repeats),
                beams=beams, slots=batch_size,
            )  # fmt: skip
        else:
            beams = max(num_beams or 0, k)
            kind = Merged if strategy == "merge" and self.paradigm == "pusl" else Ranked
            plans = search_phrases(
                self.engine,
                source,
                self._rules(k),
                lambda _: kind(k, self._form, NOTHING),
                beams=beams,
                slots=batch_size,
            )
        return [plan.phrases() for plan in plans]

    def _form(self, ids: tuple[int, ...]) -> str:
        return self._spell(ids)[1]

    def _spell(self, ids: tuple[int, ...]) -> tuple[str, str]:
        """The text of a phrase and its compared form."""
        known = self._texts.get(ids)
        if known is None:
            if len(self._texts) > 1_000_000:
                self._texts.clear()
            text = decode_each(self.tokenizer, [ids])[0].strip()
            known = self._texts[ids] = (text, normalize(text))
        return known


def _check(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InputError(f"{name} {value!r} is unknown; allowed: {', '.join(allowed)}")
