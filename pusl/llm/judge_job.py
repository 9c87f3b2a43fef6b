"""Reference, prediction and gold files -> the questions that a judge is asked.

Chooses the items (all, or a sample that does not depend on the order of the file), truncates the
predictions, and looks up which keyphrases are in the universe.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pusl.llm.prompts import item_block
from pusl_eval.budgets import K_WORDS, resolve_k
from pusl_eval.files import InputError, hash_rank
from pusl_eval.judge import first_distinct, read_gold
from pusl_eval.normalize import normalize
from pusl_eval.records import ReferenceRecord, read_label_file, read_predictions, read_references


@dataclass(frozen=True)
class JudgeOptions:
    """What to judge, and how to ask."""

    k: tuple[int | str, ...] = ()  # depths to score at: numbers, mu, 2mu; empty: the whole list
    sample: int | None = None  # number of items, drawn by `seed`; a larger sample contains a smaller one
    sample_per_group: bool = False  # `sample` items of every group
    needs_text: bool = True  # people's verdicts can be scored without texts
    seed: int = 0
    per_request: int = 10  # keyphrases in one request
    max_chars: int = 8000  # of each field of an item
    fields: tuple[str, ...] | None = None  # None: title and description where they exist, else text
    consistency: int = 20  # items that are judged again, in the same and in reversed order
    retry_unanswered: bool = False
    skip_failed: bool = False  # finish even if requests failed; their keyphrases are unanswered


@dataclass
class Subject:
    """One item to judge."""

    id: str
    block: str
    group: str | None
    references: int  # different reference keyphrases
    truncated: bool  # the text is longer than max_chars
    predicted: list[str] = field(default_factory=list)  # different keyphrases among the first max(k), as generated
    ranks: list[int] = field(default_factory=list)  # their ranks in the generated list
    missing: bool = True  # no prediction line
    gold: list[str] = field(default_factory=list)  # normalized keyphrases that a person has judged

    def asked(self) -> list[str]:
        """Every keyphrase to judge: the predicted ones, then those that only people have judged."""
        seen = {normalize(phrase) for phrase in self.predicted}
        return [*self.predicted, *(phrase for phrase in self.gold if phrase not in seen)]


@dataclass(frozen=True)
class Question:
    """All keyphrases of one item, in the order of the question. `turn` distinguishes repeated questions."""

    subject: Subject
    keyphrases: tuple[str, ...]
    turn: str = ""


@dataclass
class Job:
    """What a run of the judge needs from the files."""

    subjects: list[Subject]
    questions: list[Question]
    gold: dict[tuple[str, str], bool]  # (id, normalized keyphrase) -> the person's verdict
    universe: set[str] | None  # the predicted phrases that it holds, normalized
    k: list[int | None]  # the depths as numbers; None is the whole list
    mu: float | None  # keyphrases per training item


def prepare(
    references: str | Path, predictions: str | Path | None, options: JudgeOptions, universe: str | Path | None = None,
    train: str | Path | None = None, gold: str | Path | None = None,
) -> Job:  # fmt: skip
    """Reads and checks every file. An InputError names what is wrong, before any request."""
    if predictions is None and gold is None:
        raise InputError("nothing to judge; give --predictions FILE, or --gold FILE to check the judge alone")
    mu = _mu(train) if train is not None else None
    if mu is None and any(cut in K_WORDS for cut in options.k):
        raise InputError("k is 'mu' or '2mu', but μ is defined by training items; pass --train FILE")
    cuts = resolve_k(options.k, mu) if options.k else []
    verdicts = read_gold(str(gold)) if gold is not None else {}
    people: dict[str, list[str]] = {}
    for name, phrase in verdicts:
        people.setdefault(name, []).append(phrase)
    subjects, extra, known = _choose(references, options, predictions is not None, people)
    for name in people:
        if name not in known:
            raise InputError(f"{gold}: id {name!r} has no reference in {references}; the judge needs its text")
    if predictions is not None:
        _add_predictions(predictions, references, subjects, known, max(cuts, default=None))
    both = {**subjects, **extra}
    for name, phrases in people.items():
        both[name].gold = phrases
        if predictions is None:
            subject = subjects[name] = both[name]
            subject.predicted, subject.ranks = first_distinct(phrases)
            subject.missing = False
    questions = [Question(subject, asked) for subject in both.values() if (asked := tuple(subject.asked()))]
    questions += _consistency(questions, options)
    inside = None
    if universe is not None:
        forms = {normalize(phrase) for subject in subjects.values() for phrase in subject.predicted}
        inside = {form for phrase in read_label_file(universe) if (form := normalize(phrase)) in forms}
    return Job(list(subjects.values()), questions, verdicts, inside, [*cuts] or [None], mu)


def _choose(
    references: str | Path, options: JudgeOptions, all_items: bool, people: dict[str, list[str]]
) -> tuple[dict[str, Subject], dict[str, Subject], set[str]]:
    """The items to judge, further ones that only have gold verdicts, and all ids. Keeps only chosen texts in memory."""
    chosen: dict[str, Subject] = {}
    extra: dict[str, Subject] = {}
    heaps: dict[str | None, list[tuple[int, str]]] = {}  # of each group: the item to drop next is at its top
    known: set[str] = set()
    for reference in read_references(references):
        known.add(reference.id)
        if all_items:
            enters, leaves = True, None
            if options.sample is not None:
                ranked = heaps.setdefault(reference.group if options.sample_per_group else None, [])
                entry = (-_draw(reference.id, options.seed), reference.id)
                leaves = entry[1]
                if len(ranked) < options.sample:
                    heapq.heappush(ranked, entry)
                    leaves = None
                elif options.sample:
                    leaves = heapq.heappushpop(ranked, entry)[1]
                enters = leaves != reference.id
            if enters:
                chosen[reference.id] = _subject(reference, references, options)
            if leaves is not None and leaves in chosen:
                evicted = chosen.pop(leaves)
                if leaves in people:
                    extra[leaves] = evicted
        if reference.id in people and reference.id not in chosen:
            extra[reference.id] = _subject(reference, references, options)
    return chosen, extra, known


def _draw(name: str, seed: int) -> int:
    """A random number for sorting items. It depends on id and seed only, not on the position."""
    return int.from_bytes(hash_rank(f"{seed}\0{name}"), "big")


def _subject(reference: ReferenceRecord, path: str | Path, options: JudgeOptions) -> Subject:
    values = {"text": reference.text, **reference.extra}
    names = options.fields
    if names is None:
        names = ("title", "description") if _is_text(values.get("description")) else ("title", "text")
    fields = {name: str(values[name]) for name in names if _is_text(values.get(name))}
    if len(fields) == 2 and len(set(fields.values())) == 1:
        fields.popitem()  # the title is the whole text
    if not fields and options.needs_text:
        raise InputError(
            f"{path}:{reference.line}: id {reference.id!r} has no text to judge by (looked for: {', '.join(names)}); "
            "name its fields with --fields"
        )
    truncated = any(len(text) > options.max_chars for text in fields.values())
    count = len(first_distinct(reference.keyphrases)[0])
    return Subject(reference.id, item_block(fields, options.max_chars), reference.group, count, truncated)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _add_predictions(
    path: str | Path, references: str | Path, subjects: dict[str, Subject], known: set[str], longest: int | None
) -> None:
    for prediction in read_predictions(path, known, str(references)):
        if prediction.id in subjects:
            subject = subjects[prediction.id]
            subject.predicted, subject.ranks = first_distinct(prediction.keyphrases, longest)
            subject.missing = False


def _consistency(questions: list[Question], options: JudgeOptions) -> Iterator[Question]:
    """The questions of a few items again, in the same and in reversed order of the keyphrases."""
    several = [question for question in questions if len(question.keyphrases) > 1]
    drawn = heapq.nsmallest(options.consistency, several, key=lambda q: _draw(q.subject.id, options.seed + 1))
    for question in drawn:
        yield Question(question.subject, question.keyphrases, "repeat")
        yield Question(question.subject, question.keyphrases[::-1], "swap")


def _mu(train: str | Path) -> float:
    sizes = [len(first_distinct(example.keyphrases)[0]) for example in read_references(train)]
    if not sizes:
        raise InputError(f"{train}: holds no item; expected training examples")
    return sum(sizes) / len(sizes)
