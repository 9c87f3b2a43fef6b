"""A fused model folder + texts -> k keyphrases with probabilities, and which sources proposed each.

from pusl import KeyphraseGenerator
fused = KeyphraseGenerator.from_pretrained("models/fused")
fused.generate(["Zeto X2 drone with 4k camera"], k=10)
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pusl.baselines.model import load_baseline
from pusl.decoding import arguments
from pusl.decoding.calibration import Calibration
from pusl.decoding.explanation import Explanation, explain
from pusl.decoding.generator import PREFER_BONUS, VOCABULARIES, KeyphraseGenerator
from pusl.decoding.results import Prediction, PredictionList, Streaming
from pusl.decoding.scoring import PhraseScores, candidate_lists
from pusl.decoding.universe import Universe
from pusl.decoding.windows import LONG
from pusl.fusion.features import CandidatePool, Pooler
from pusl.fusion.folder import GENERATOR, PREDICTIONS, read_fused
from pusl.fusion.memory import Memory
from pusl.fusion.ranker import Ranker
from pusl.fusion.sources import (
    BaselineSource,
    FileSource,
    GeneratorSource,
    NeighborSource,
    Query,
    Ranked,
    Source,
    TextSource,
)  # fmt: skip
from pusl.words import unspaced
from pusl_eval.files import InputError, check_input
from pusl_eval.normalize import normalize
from pusl_eval.records import read_label_file, read_predictions

log = logging.getLogger(__name__)
CHUNK = 256  # texts pooled at once: bounds memory
LEAST = 0.05  # probability that a phrase needs if it is neither in the text nor a known label
BROKEN_LEAST = 0.5  # the same with a word that no item, no label and not the text has
MOST_SPELLED = 1_000_000  # universe entries that are read again for their spelling; it takes a second and 200 MB
REMEMBERED = 4096  # texts whose pools are kept for `explain`


class PhraseSet:
    """A universe without a tokenizer, for models that generate nothing themselves."""

    def __init__(self, path: str | Path) -> None:
        self.forms = frozenset(map(normalize, read_label_file(check_input(path))))

    def __len__(self) -> int:
        return len(self.forms)

    def contains(self, phrase: str) -> bool:
        """Whether the phrase is in the file, in normalized form."""
        return normalize(phrase) in self.forms


class FusedGenerator(Streaming):
    """What `KeyphraseGenerator.from_pretrained` gives for a folder made by `pusl fuse`: the same `generate`."""

    paradigm = "fused"

    def __init__(
        self,
        memory: Memory,
        sources: Sequence[Source],
        ranker: Ranker,
        told: Ranker | None = None,
        *,
        depth: int = 20,
        defaults: Mapping[str, Any] | None = None,
        universe: Universe | PhraseSet | str | Path | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.memory, self.sources, self.ranker, self.told = memory, list(sources), ranker, told
        self.pooler = Pooler(memory, self.sources, depth)
        self.depth, self.defaults, self.calibration = depth, dict(defaults or {}), calibration
        self._opened: dict[str, Universe | PhraseSet] = {}
        self._spelled: dict[int, dict[str, Any]] = {}  # of an opened universe, by source
        self._written: dict[str, dict[str, str]] = {}  # of a universe's file: normalized -> as written
        self.universe = self._universe(universe)
        self._pools: OrderedDict[str, CandidatePool] = OrderedDict()
        if self.pooler.names != ranker.names:
            raise InputError("the ranker was made for other sources; run `pusl fuse` again")

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | None = None,
        precision: str | None = None,
        universe: Universe | str | Path | None = None,
        calibration: Calibration | None = None,
        predictions: Mapping[str, str | Path] | None = None,
    ) -> FusedGenerator:
        """Loads a folder made by `pusl fuse`; `predictions` replaces the files of sources made elsewhere."""
        folder, meta = Path(folder), read_fused(folder)
        memory = Memory.load(folder / meta["memory"])
        sources: list[Source] = []
        files = dict(predictions or {})
        for source in meta["sources"]:
            name, kind, place = source["name"], source["kind"], folder / "sources" / source["name"]
            if kind == GENERATOR:
                model = KeyphraseGenerator.from_pretrained(place, device=device, precision=precision)
                sources.append(GeneratorSource(name, model))
            elif kind == PREDICTIONS:
                path = files.pop(name, None)
                if path is None:
                    log.warning(f"no predictions of {name} for these items; pass --source {name}=FILE")
                sources.append(FileSource(name, {} if path is None else read_source(path)))
            elif kind == "text":
                sources.append(TextSource(memory))
            elif kind == "knn":
                sources.append(NeighborSource(memory))
            else:
                sources.append(BaselineSource(name, load_baseline(place, kind)))
        if files:
            known = ", ".join(source["name"] for source in meta["sources"] if source["kind"] == PREDICTIONS)
            raise InputError(f"no source is called {next(iter(files))!r}; sources from files: {known or 'none'}")
        told = Ranker.load(folder / "told.npz") if (folder / "told.npz").is_file() else None
        return cls(
            memory, sources, Ranker.load(folder / "ranker.npz"), told, depth=meta["depth"],
            defaults=meta["defaults"], universe=universe, calibration=calibration,
        )  # fmt: skip

    @property
    def needs_ids(self) -> bool:
        """Whether a source is looked up by the items' ids."""
        return any(isinstance(source, FileSource) for source in self.sources)

    def generate(
        self,
        texts: str | Iterable[str],
        k: int,
        *,
        known: Iterable[Iterable[str]] | None = None,
        ids: Sequence[str] | None = None,
        vocabulary: str = "open",
        universe: Universe | PhraseSet | str | Path | None = None,
        min_score: float | None = None,
        batch_size: int = 64,
        bonus: float = PREFER_BONUS,
        calibration: Calibration | None = None,
        long: str = "cut",
        progress: bool = False,
        **others: Any,
    ) -> PredictionList:
        """k keyphrases for each text, in the order of the texts; scores are probabilities of being labeled.

        Args:
            known: keyphrases that each text has already; none is given again, all of them are used.
            ids: the items' ids, for sources that are predictions files.
            vocabulary: `closed` gives only phrases of the universe; `prefer` adds `bonus` to their log-odds.
            min_score: keyphrases scored lower are left out.
            batch_size: items at once; changes speed, never results.
            long: generators among the sources `cut` long texts or search them by `window`; the others read them whole.
            progress: show a bar.
        """
        arguments.check_choice("long", long, LONG)
        arguments.check_choice("vocabulary", vocabulary, VOCABULARIES)
        texts = arguments.text_list(texts)
        known = None if known is None else arguments.known_lists(known, len(texts))
        k = arguments.whole_number("k", k, 1, arguments.MOST_KEYPHRASES)
        batch_size = arguments.whole_number("batch_size", batch_size, 1)
        chances = self.ranker.learned or calibration or self.calibration
        min_score = arguments.threshold(min_score, "probability" if chances else "reciprocal ranks")
        for name in ("strategy", "num_beams", "temperature", "allow_repeats"):
            if others.get(name) and others[name] != self.paradigm:
                raise InputError(f"a fused model ranks what its sources propose; it has no {name}")
        if ids is not None and len(ids) != len(texts):
            raise InputError(f"ids has {len(ids)} entries for {len(texts)} texts")
        members = self._universe(universe) or self.universe
        if vocabulary != "open" and members is None:
            raise InputError(f"vocabulary {vocabulary!r} needs a universe: a file of phrases")
        answers = PredictionList((Prediction(exhausted=True) for _ in texts), texts)
        readable = [i for i, text in enumerate(texts) if text.strip()]
        starts: Iterable[int] = range(0, len(readable), CHUNK)
        if progress:
            from tqdm.auto import tqdm

            starts = tqdm(starts, unit="chunk")
        for start in starts:
            part = readable[start : start + CHUNK]
            query = Query(
                [texts[i] for i in part],
                [known[i] for i in part] if known is not None else None,
                [ids[i] for i in part] if ids is not None else None,
                vocabulary, members, batch_size, long, spelled=self._spelled.get(id(members), {}),
            )  # fmt: skip
            for number, (i, pool) in enumerate(zip(part, self._pool(query, k), strict=True)):
                ranker = self._ranker(None if known is None else known[i])
                inside = members.contains if vocabulary != "open" and members is not None else None
                curve = calibration or self.calibration
                answers[i] = self.choose(pool, k, ranker, inside, bonus * (vocabulary == "prefer"), min_score, curve)
                answers[i].truncated = number in query.truncated
                if members is not None and vocabulary != "open":
                    answers[i].keyphrases = self._as_written(members, answers[i].keyphrases)
        return answers

    def _pool(self, query: Query, k: int) -> list[CandidatePool]:
        """Pools of the usual depth, or deeper where more keyphrases are asked for."""
        pools = Pooler(self.memory, self.sources, k).pool(query) if k > self.depth else self.pooler.pool(query)
        for text, pool in zip(query.texts, pools, strict=True):
            self._pools[text] = pool
            while len(self._pools) > REMEMBERED:
                self._pools.popitem(last=False)
        return pools

    def choose(
        self, pool: CandidatePool, k: int, ranker: Ranker | None = None, inside: Callable[[str], bool] | None = None,
        bonus: float = PREFER_BONUS, min_score: float | None = None, calibration: Calibration | None = None,
    ) -> Prediction:  # fmt: skip
        """The k best candidates of one text; phrases that are `inside` a universe get a bonus and are never junk."""
        ranker = ranker or self.ranker
        log_odds = ranker.log_odds(pool.features)
        scores = ranker.probabilities(log_odds)
        allowed = np.flatnonzero(self._worthy(pool, scores, ranker, inside or (lambda _: False)))
        preferred = np.array([bonus * inside(phrase) if inside else 0.0 for phrase in pool.phrases])
        # Equal scores (reciprocal ranks often are) go to the candidate that stands nearer to the top somewhere.
        nearest = pool.features[:, ranker.names.index("best_rank")]
        order = allowed[np.lexsort((allowed, -nearest[allowed], -(log_odds + preferred)[allowed]))]
        shown = [float(scores[i]) if calibration is None else calibration(float(scores[i])) for i in order]
        kept = [(i, score) for i, score in zip(order, shown, strict=True) if min_score is None or score >= min_score][
            :k
        ]
        return Prediction(
            [pool.phrases[i] for i, _ in kept], [score for _, score in kept], len(kept) < k,
            [score for _, score in kept],
        )  # fmt: skip

    def _worthy(
        self, pool: CandidatePool, scores: np.ndarray, ranker: Ranker, trusted: Callable[[str], bool]
    ) -> np.ndarray:
        """Which candidates may be given. New phrases that are not in the text need probability, and are no numbers.

        Without a learned ranker there is no probability: such phrases need two sources, and whole words.
        """
        column = {name: pool.features[:, place] for place, name in enumerate(ranker.names)}
        whole = column["known_words"] > 0
        if ranker.learned:  # noqa: SIM108
            earned = scores >= np.where(whole, LEAST, BROKEN_LEAST)
        else:
            earned = whole & (column["agreement"] > 1)
        clean = np.array([trusted(form) or not is_junk(form) for form in pool.forms], bool)
        earned &= np.array([trusted(form) or any(map(str.isalpha, form)) for form in pool.forms], bool)  # no number
        worthy: np.ndarray = (column["known_label"] > 0) | (clean & (earned | (column["stem_in_text"] > 0)))
        return worthy

    def score(
        self,
        texts: str | Iterable[str],
        candidates: Iterable[str] | Iterable[Iterable[str]],
        *,
        known: Iterable[Iterable[str]] | None = None,
        batch_size: int = 64,
    ) -> list[PhraseScores]:
        """The probability that each candidate is labeled, as `probabilities`, and its logarithm, as `scores`.

        A candidate that no source proposes is judged by the generators' scores, its words and its frequency.
        """
        if not self.ranker.learned:
            raise InputError("this fused model has no learned ranker, so its scores are no probabilities; give --dev")
        texts = arguments.text_list(texts)
        known = None if known is None else arguments.known_lists(known, len(texts))
        lists = candidate_lists(candidates, len(texts))
        found = []
        for start in range(0, len(texts), CHUNK):
            part = slice(start, start + CHUNK)
            query = Query(texts[part], known[part] if known is not None else None, batch_size=batch_size)
            pools = self.pooler.pool(query, lists[part])
            for number, (pool, phrases) in enumerate(zip(pools, lists[part], strict=True)):
                ranker = self._ranker(None if query.known is None else query.known[number])
                chances = dict(zip(pool.forms, ranker.probabilities(ranker.log_odds(pool.features)), strict=True))
                own = [float(chances.get(normalize(phrase), 0.0)) for phrase in phrases]
                logs = [math.log(chance) if chance > 0 else -math.inf for chance in own]
                shown = own if self.calibration is None else [self.calibration(chance) for chance in own]
                found.append(PhraseScores(logs, logs, shown))
        return found

    def _ranker(self, known: Sequence[str] | None) -> Ranker:
        """The ranker for an item with these keyphrases: told items have one of their own."""
        return self.told if self.told is not None and known else self.ranker

    def explain(self, text: str, keyphrases: Sequence[str]) -> list[Explanation]:
        """Marks each keyphrase as a trained model does, and adds the sources that proposed it, with their ranks."""
        marks = explain(text, keyphrases, self.labels, self.universe.contains if self.universe is not None else None)
        pool = self._pools.get(text) or self._pool(Query([text], universe=self.universe), 1)[0]
        ranks = dict(zip(pool.forms, pool.ranks, strict=True))
        for mark, phrase in zip(marks, keyphrases, strict=True):
            mark["sources"] = dict(ranks.get(normalize(phrase), {}))
        return marks

    def info(self) -> dict[str, Any]:
        """What a service tells about the model."""
        names = ", ".join(source.name for source in self.sources)
        return {
            "paradigm": self.paradigm,
            "strategies": {self.paradigm: f"One ranking of what all sources propose: {names}."},
            "vocabularies": list(VOCABULARIES) if self.universe is not None else ["open"],
            "scores": "probability" if self.ranker.learned else "reciprocal ranks",
            "defaults": {"k": int(self.defaults.get("k") or 10), "strategy": self.paradigm},
        }

    @property
    def labels(self) -> frozenset[str]:
        """Normalized labels of the memory."""
        return frozenset(self.memory.forms)

    def _universe(self, universe: Universe | PhraseSet | str | Path | None) -> Universe | PhraseSet | None:
        """Opened once; a generator among the sources reads it with its own tokenizer."""
        if universe is None or isinstance(universe, (Universe, PhraseSet)):
            return universe
        key = str(universe)
        if key not in self._opened:
            generators = [source for source in self.sources if isinstance(source, GeneratorSource)]
            spelled = {source.name: source.generator._universe(universe) for source in generators}
            members = spelled[generators[0].name] if generators else PhraseSet(universe)
            self._opened[key], self._spelled[id(members)] = members, spelled
        return self._opened[key]

    def _as_written(self, members: Universe | PhraseSet, phrases: Sequence[str]) -> list[str]:
        """Phrases of a universe as its file spells them; only spellings that are not the normalized form are kept."""
        path = next((path for path, opened in self._opened.items() if opened is members), None)
        if path is None or len(members) > MOST_SPELLED:
            return list(phrases)
        if path not in self._written:
            self._written[path] = {}
            for entry in map(str.strip, read_label_file(check_input(path))):
                if (form := normalize(entry)) != entry:
                    self._written[path].setdefault(form, entry)
        written = self._written[path]
        forms = map(normalize, phrases)
        return [
            written.get(form, form) if members.contains(phrase) else phrase
            for form, phrase in zip(forms, phrases, strict=True)
        ]


def is_junk(form: str) -> bool:
    """Single letters and stammering: no keyphrase unless it is a known label, or in a universe that was asked for.

    >>> [is_junk(form) for form in ("x", "red red shoe", "!!", "red shoe", "4k", "猫")]
    [True, True, True, False, False, False]
    """
    words = form.split()
    signs = [sign for sign in form if sign.isalnum()]
    word = len(signs) > 1 or (signs and unspaced(signs[0]))
    return not word or any(one == other for one, other in itertools.pairwise(words))


def read_source(path: str | Path) -> dict[str, Ranked]:
    """A predictions file as a source; phrases without scores get their reciprocal ranks."""
    return {
        one.id: [
            (phrase, one.scores[rank] if one.scores is not None else 1 / (rank + 1))
            for rank, phrase in enumerate(one.keyphrases)
        ]
        for one in read_predictions(check_input(path))
    }
