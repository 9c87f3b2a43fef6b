"""A trained model + texts -> k different, scored keyphrases per text.

from pusl import KeyphraseGenerator
generator = KeyphraseGenerator.from_pretrained("models/pusl")
generator.generate(["Zeto X2 drone with 4k camera"], k=10)
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

from pusl.checkpoint import Checkpoint, load_checkpoint, load_labels
from pusl.decoding import arguments
from pusl.decoding.calibration import Calibration
from pusl.decoding.deadline import check_time
from pusl.decoding.device.token_steps import Finish
from pusl.decoding.engines import decode, find, make_engine, refreshed, token_ids, token_rows
from pusl.decoding.explanation import Explanation, explain
from pusl.decoding.logits_processor import DEFAULT_PHRASE_TOKENS
from pusl.decoding.plans import Form, Plan, Ranked, Search, Sequential, sum_over_beams
from pusl.decoding.results import Prediction, PredictionList, Streaming, in_parts
from pusl.decoding.rules import Phrase, Rules, Sampling, check_numbers, whole_letters
from pusl.decoding.scoring import PhraseScores, score_candidates
from pusl.decoding.universe import Universe, UniverseRule
from pusl.decoding.windows import LONG, join_windows, text_windows
from pusl.devices import cuda_settings, resolve_device, resolve_precision, weight_type
from pusl.fusion.folder import is_fused
from pusl.hub import model_folder
from pusl.paradigms import STRATEGIES
from pusl.tokenizer import banned_ids, decode_each, encode_keyphrases
from pusl_eval.files import InputError
from pusl_eval.normalize import distinct, normalize

VOCABULARIES = ("open", "prefer", "closed")
DEFAULT_SOURCE_LENGTH = 256
SEQUENCE_BEAMS = 4
MOST_BEAMS = 64  # an item that has fewer than k phrases with this many beams is exhausted
FLOOR = 12.0  # a phrase 160,000 times less probable than the item's best is junk
LONGEST_SEQUENCE = 64  # tokens of a One2Seq or GROOV sequence in a beam search
PROGRESS_BATCHES = 8  # batches between two steps of a progress bar
SPELLINGS = 1_000_000  # phrases whose text is cached
KNOWN_TOKENS = 256  # of known keyphrases that a search continues after
KNOWN_PHRASES = 64  # of known keyphrases that a One2Seq or GROOV sequence may hold besides the k wanted
PREFER_BONUS = 3.0  # log units that leaving the universe costs under `prefer`


class KeyphraseGenerator(Streaming):
    """Decodes a checkpoint of any paradigm. It prepares its own weights and leaves the checkpoint as it is.

    Args:
        checkpoint: model, tokenizer and paradigm.
        precision: `fp32`, `tf32` (CUDA), `bf16`, or `int8` (CPU). The last two are faster and give nearly the same
            keyphrases. None takes the device's default: bf16 on GPUs that have it, else fp32.
        universe: phrases for `closed`, `prefer` and `explain`: a `Universe` or the name of a file.
        calibration: turns scores into probabilities of being labeled.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        precision: str | None = None,
        universe: Universe | str | Path | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.checkpoint, self.calibration = checkpoint, calibration
        self.precision = resolve_precision(precision, str(checkpoint.model.device))
        self.tokenizer, self.paradigm, self.tokens = checkpoint.tokenizer, checkpoint.paradigm, checkpoint.tokens
        defaults = checkpoint.meta.get("defaults", {})
        self.max_source_length = int(defaults.get("max_source_length") or DEFAULT_SOURCE_LENGTH)
        self.max_phrase_tokens = int(defaults.get("max_phrase_tokens") or DEFAULT_PHRASE_TOKENS)
        self.engine = make_engine(checkpoint.model, self.precision)
        self.universe = self._universe(universe)
        self.banned = tuple(banned_ids(self.tokenizer, self.engine.vocab_size))
        self._texts: dict[tuple[int, ...], tuple[str, str]] = {}

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        device: str | None = None,
        precision: str | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        **options: Any,
    ) -> KeyphraseGenerator:
        """Loads a model made by `pusl train`, or by `pusl fuse` (a `FusedGenerator`, which is used in the same way).

        Args:
            model: a folder, or `user/model` on the Hub.
            device: `cpu`, `cuda`, `cuda:1`, `mps` or `auto` (the default: a GPU if there is one).
            precision: what the weights are loaded and used in.
            revision: a branch, tag or commit on the Hub.
            token: for a private model on the Hub.
            cache_dir: where downloads are kept.
            local_files_only: use only what is downloaded already.
            options: `universe` and `calibration`, as in the constructor.
        """
        folder = model_folder(
            model, revision=revision, token=token, cache_dir=cache_dir, local_files_only=local_files_only
        )
        device = resolve_device(device)
        precision = resolve_precision(precision, device)
        if is_fused(folder):
            from pusl.fusion.fused import FusedGenerator

            return FusedGenerator.load(folder, device=device, precision=precision, **options)  # type: ignore[return-value]
        return cls(load_checkpoint(folder, device, weight_type(precision)), precision=precision, **options)

    def generate(
        self,
        texts: str | Iterable[str],
        k: int,
        *,
        known: Iterable[Iterable[str]] | None = None,
        strategy: str | None = None,
        allow_repeats: bool = False,
        vocabulary: str = "open",
        universe: Universe | str | Path | None = None,
        min_score: float | None = None,
        batch_size: int = 64,
        seed: int = 0,
        temperature: float = 0.0,
        top_p: float = 1.0,
        num_beams: int | None = None,
        floor: float = FLOOR,
        bonus: float = PREFER_BONUS,
        calibration: Calibration | None = None,
        long: str = "cut",
        progress: bool = False,
    ) -> PredictionList:
        """k keyphrases for each text, in the order of the texts.

        Args:
            texts: one string, or a list, iterator, array or column (pandas, polars, pyarrow, datasets) of strings.
            k: keyphrases per text.
            known: keyphrases that each text has already. None of them is given again; a PUSL model continues after
                them, so that they tell it what else belongs to the item.
            strategy: `sequence` or `beam`; None takes the paradigm's default. For One2Seq
                and GROOV, `sequence` is the model's own greedy sequence, `beam` GROOV's sum over beams.
            allow_repeats: the paper's Algorithm 1: greedy, the same phrase may come again.
            vocabulary: `closed` gives only phrases of the universe; `prefer` makes leaving it cost `bonus`.
            universe: overrides the generator's own.
            min_score: keyphrases scored lower are left out.
            batch_size: items decoded at once; changes speed, never results.
            seed: for sampling; each text has its own random numbers.
            temperature: above 0 samples.
            top_p: sample from the most probable tokens that together have this probability.
            num_beams: width of the phrase search.
            floor: a phrase this much (in log-probability) below the item's best is junk (12); nothing is given
                instead.
            bonus: what leaving the universe costs under `prefer`, in log-probability (3).
            calibration: overrides the generator's own.
            long: texts longer than the model reads are `cut` (and marked `truncated`), or searched by overlapping
                windows (`window`); then a score is the log-probability that any window has the phrase.
            progress: show a bar.
        """
        calibration = calibration or self.calibration
        arguments.check_choice("long", long, LONG)
        if strategy is not None:
            arguments.check_choice("strategy", strategy, STRATEGIES)
        strategy = self.paradigm.choose_strategy(strategy)
        arguments.check_choice("vocabulary", vocabulary, VOCABULARIES)
        texts = arguments.text_list(texts)
        k = arguments.whole_number("k", k, 1, arguments.MOST_KEYPHRASES)
        batch_size, seed = arguments.whole_number("batch_size", batch_size, 1), arguments.whole_number("seed", seed)
        if num_beams is not None:
            num_beams = arguments.whole_number("num_beams", num_beams, 1, arguments.MOST_BEAMS_ASKED)
        temperature, top_p = arguments.check_sampling(temperature, top_p)
        min_score = arguments.threshold(min_score, "log-probability" if calibration is None else "probability")
        floor, bonus = arguments.real_number("floor", floor, finite=False), arguments.real_number("bonus", bonus)
        phrases = self._universe(universe) or self.universe
        if vocabulary != "open" and phrases is None:
            raise InputError(f"vocabulary {vocabulary!r} needs a universe: a file of phrases")
        if known is not None:
            known = arguments.known_lists(known, len(texts))
            if temperature > 0 or allow_repeats:
                raise InputError("known keyphrases need a search: keep temperature at 0 and allow_repeats off")
        if long == "window" and allow_repeats:
            raise InputError("long texts by windows: a phrase of several windows is given once; omit allow_repeats")
        readable = [i for i, text in enumerate(texts) if text.strip()]
        own = self.paradigm.ends_itself
        room = KNOWN_PHRASES if own and known is not None else 0
        search = Search(k + room, strategy, allow_repeats, batch_size, num_beams, floor)
        size = self.max_source_length - 1  # EOS needs a place
        cut: set[str] = set()

        def encode(chosen: Sequence[str]) -> list[list[int]]:
            rows = token_ids(self.tokenizer, chosen)
            cut.update(text for text, row in zip(chosen, rows, strict=True) if len(row) > size)
            return [[*row[:size], self.tokens.eos] for row in rows]

        def work(part: Sequence[int]) -> list[list[Phrase]]:
            """The phrases of some texts, or of their windows joined."""
            chosen, owner = [texts[i] for i in part], [(i, 0) for i in part]
            opened: Any = token_rows(self.engine, chosen, encode)
            if long == "window":
                pieces = [text_windows(row, size) for row in token_ids(self.tokenizer, chosen)]
                owner = [(i, number) for i, piece in zip(part, pieces, strict=True) for number in range(len(piece))]
                opened = nullcontext([[*window, self.tokens.eos] for piece in pieces for window in piece])
            before = [known[i] for i, _ in owner] if known is not None else None
            with opened as source:
                if own and strategy != "sequence" and temperature == 0:
                    found = [self._filtered(given, vocabulary, phrases) for given in self._beams_summed(source, search)]
                elif temperature > 0 or own:
                    keys = [zlib.crc32(texts[i].encode(), number) for i, number in owner]
                    drawn = self._sequences(source, search, Sampling(temperature, top_p, seed), keys)
                    drawn = whole_letters(drawn, self._form, temperature)
                    found = [self._filtered(given, vocabulary, phrases) for given in drawn]
                elif allow_repeats and self.paradigm.endless and vocabulary == "open":
                    found = self._sequences(source, search, Sampling(), [0] * len(source))
                else:
                    found = self._search(source, search, self._rule(vocabulary, phrases, bonus), before)
            if own and before is not None:
                outside = [self._form_outside(phrases) for phrases in before]
                found = [[one for one in given if form(one.ids)] for given, form in zip(found, outside, strict=True)]
            check_numbers(one.logprob for given in found for one in given)
            return found if long == "cut" else join_windows(found, [number for _, number in owner], self._form)

        with cuda_settings(self.precision):
            found = in_parts(work, readable, PROGRESS_BATCHES * batch_size) if progress else work(readable)
        answers = PredictionList((Prediction(exhausted=True) for _ in texts), texts)
        for i, given in zip(readable, found, strict=True):
            scored = [(one, one.logprob if calibration is None else calibration(one.logprob)) for one in given[:k]]
            kept = [(one, score) for one, score in scored if min_score is None or score >= min_score]
            answers[i] = Prediction(
                [self._spell(one.ids)[0] for one, _ in kept],
                [score for _, score in kept],
                len(kept) < k,
                [one.logprob / (len(one.ids) + 1) for one, _ in kept],
                texts[i] in cut,
            )
        return answers

    def refresh(self, checkpoint: Checkpoint) -> None:
        """Takes over the weights of a checkpoint of the same shape: the same model after some more training."""
        self.checkpoint = checkpoint
        self.engine = refreshed(self.engine, checkpoint.model, self.precision)

    def score(
        self,
        texts: str | Iterable[str],
        candidates: Iterable[str] | Iterable[Iterable[str]],
        *,
        known: Iterable[Iterable[str]] | None = None,
        batch_size: int = 64,
        calibration: Calibration | None = None,
    ) -> list[PhraseScores]:
        """The log-probability of every candidate, whether the model would write it or not.

        Args:
            candidates: one list of phrases for all texts, or one list per text.
            known: keyphrases that each text has already; a PUSL model scores what comes after them.
            batch_size: items scored at once; changes speed, never results.
            calibration: adds probabilities; overrides the generator's own.
        """
        with cuda_settings(self.precision):
            return score_candidates(
                self, texts, candidates, known=known, batch_size=batch_size, calibration=calibration
            )

    def explain(self, text: str, keyphrases: Sequence[str]) -> list[Explanation]:
        """Marks each keyphrase: where it occurs in the text, seen in training or new, in the universe or not."""
        return explain(text, keyphrases, self.labels, self.universe.contains if self.universe is not None else None)

    @cached_property
    def labels(self) -> frozenset[str] | None:
        """Normalized training labels of the model folder; None if there are none."""
        path = self.checkpoint.path
        return frozenset(normalize(label) for label in load_labels(path)) or None if path is not None else None

    def _universe(self, universe: Universe | str | Path | None) -> Universe | None:
        if universe is None or isinstance(universe, Universe):
            return universe
        return Universe.open(universe, self.tokenizer)

    def _rule(self, vocabulary: str, universe: Universe | None, bonus: float) -> UniverseRule | None:
        if vocabulary == "open" or universe is None:
            return None
        end = getattr(self.tokens, self.paradigm.final)
        cost = None if vocabulary == "closed" else bonus
        return UniverseRule(universe, end, self.engine.vocab_size, cost, self.engine.device)

    def _rules(self, k: int) -> Rules:
        return Rules(self.tokens, self.paradigm.endless, k, self.max_phrase_tokens, self.banned)

    def _sequences(self, source: Any, search: Search, sampling: Sampling, keys: list[int]) -> list[list[Phrase]]:
        """One decoded sequence per text; without repeats an endless model gets twice as many slots to fill."""
        if not source:
            return []
        slots = 2 * search.k if self.paradigm.endless and not search.allow_repeats else search.k
        finish: Finish = list if search.allow_repeats else self._distinct
        return decode(
            self.engine, source, self._rules(slots), finish, slots=search.batch_size, sampling=sampling, keys=keys
        )

    def _beams_summed(self, source: Any, search: Search) -> list[list[Phrase]]:
        """GROOV's ranking: whole sequences by beam search, each label scored by the beams that contain it."""
        if not source:
            return []
        beams = search.num_beams or SEQUENCE_BEAMS
        longest = min(LONGEST_SEQUENCE, search.k * (self.max_phrase_tokens + 1))
        rules = Rules(self.tokens, False, beams, longest, self.banned, whole=True)
        plans: list[Any] = find(
            self.engine, source, rules, lambda _: Ranked(beams, str), beams=beams, slots=search.batch_size
        )
        found = []
        for plan in plans:
            sequences = [
                (one.logprob, [Phrase(tuple(ids), 0.0) for ids in self.paradigm.split(one.ids, self.tokens) if ids])
                for one in plan.phrases()
            ]
            found.append(sum_over_beams(sequences, self._form))
        return found

    def _distinct(self, phrases: Sequence[Phrase]) -> list[Phrase]:
        first: dict[str, Phrase] = {}
        for phrase in phrases:
            first.setdefault(self._form(phrase.ids), phrase)
        return [phrase for form, phrase in first.items() if form]

    def _filtered(self, phrases: list[Phrase], vocabulary: str, universe: Universe | None) -> list[Phrase]:
        """A sequence is the model's own, so a universe can only drop from it (closed) or reorder it (prefer)."""
        if vocabulary == "open" or universe is None:
            return phrases
        inside = [universe.contains(self._spell(phrase.ids)[0]) for phrase in phrases]
        kept = [phrase for phrase, known in zip(phrases, inside, strict=True) if known]
        if vocabulary == "prefer":
            kept += [phrase for phrase, known in zip(phrases, inside, strict=True) if not known]
        return kept

    def _known_ids(self, known: Sequence[str]) -> list[list[int]]:
        """Known keyphrases as a PUSL model reads them, as many as there is room for."""
        rows, room = [], KNOWN_TOKENS
        phrases = distinct(known)
        for start in range(0, len(phrases), KNOWN_TOKENS):
            check_time()
            for ids in encode_keyphrases(self.tokenizer, phrases[start : start + KNOWN_TOKENS], self.tokens):
                if ids and len(ids) <= self.max_phrase_tokens and len(ids) + 2 <= room:
                    rows.append(ids)
                    room -= len(ids) + 2
            if room < 3:  # not even a phrase of one token
                break
        return rows

    def _search(
        self,
        source: Any,
        search: Search,
        rule: UniverseRule | None,
        known: Sequence[Sequence[str]] | None = None,
    ) -> list[list[Phrase]]:
        """Phrase searches, grouped by width: known phrases may fill as many beams as there are of them."""
        if search.strategy == "sequence":
            beams = search.num_beams or SEQUENCE_BEAMS
        else:
            beams = max(search.num_beams or 0, search.k + max(2, search.k // 4))
        if known is None:
            return self._search_at(beams, source, search, rule, None)
        most = max(beams, MOST_BEAMS)
        groups: dict[int, list[int]] = {}
        for i, phrases in enumerate(known):
            check_time()
            # an item's width must not depend on the rest of its batch
            more = -(-len(distinct(phrases)) // 8) * 8
            groups.setdefault(min(beams + more, most), []).append(i)
        found: list[list[Phrase]] = [[] for _ in range(len(source))]
        for width, items in groups.items():
            part = self._search_at(width, [source[i] for i in items], search, rule, [known[i] for i in items])
            for i, phrases_found in zip(items, part, strict=True):
                found[i] = phrases_found
        return found

    def _search_at(
        self,
        beams: int,
        source: Any,
        search: Search,
        rule: UniverseRule | None,
        known: Sequence[Sequence[str]] | None,
    ) -> list[list[Phrase]]:
        """Phrase searches; items that fall short of k are searched again with more beams before they give up."""
        k, strategy = search.k, search.strategy
        before = [self._known_ids(phrases) for phrases in known] if known and self.paradigm.reads_known else None
        forms = [self._form_outside(phrases) for phrases in known or ()]
        pending = list(range(len(source)))

        def plan(number: int) -> Plan:
            form = forms[pending[number]] if forms else self._form
            if strategy == "sequence":
                return Sequential(k, form, search.floor, search.allow_repeats)
            return Ranked(k, form, search.floor)

        def enough(i: int) -> int:
            """What a closed universe can give at most."""
            if rule is None or rule.bonus is not None:
                return k
            taken = sum(rule.universe.contains(phrase) for phrase in distinct(known[i])) if known else 0
            return min(k, len(rule.universe) - taken)

        found: list[list[Phrase]] = [[] for _ in range(len(source))]
        last = max(beams, MOST_BEAMS)
        while pending:
            rows = source if len(pending) == len(source) else [source[i] for i in pending]
            plans: list[Any] = find(
                self.engine, rows, self._rules(k), plan,
                beams=beams, slots=search.batch_size, constraint=rule,
                known=None if before is None else [before[i] for i in pending],
            )  # fmt: skip
            for i, one in zip(pending, plans, strict=True):
                found[i] = one.phrases()
            pending = [
                i for i, one in zip(pending, plans, strict=True) if len(found[i]) < enough(i) and not one.floored
            ]
            if beams >= last:
                break
            beams = min(4 * beams, last)
        return found

    def _form(self, ids: tuple[int, ...]) -> str:
        return self._spell(ids)[1]

    def _form_outside(self, known: Sequence[str]) -> Form:
        """The normalized phrase, or "" (not a phrase) for one that the item has already."""
        check_time()
        forms = frozenset(map(normalize, known))

        def form(ids: tuple[int, ...]) -> str:
            found = self._form(ids)
            return "" if found in forms else found

        return form

    def _spell(self, ids: tuple[int, ...]) -> tuple[str, str]:
        """The text of a phrase and its normalized form."""
        known = self._texts.get(ids)
        if known is None:
            if len(self._texts) >= SPELLINGS:
                self._texts.clear()
            text = decode_each(self.tokenizer, [ids])[0].strip()
            known = self._texts[ids] = (text, normalize(text))
        return known
