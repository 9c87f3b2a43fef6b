"""Items + predicted keyphrases -> verdicts of a language model -> a verdicts file and a summary.

Runs `pusl judge`; the scores come from `pusl_eval.judge`. Verdicts come from the store, and only missing
ones are asked for. So a second run makes no request, and a killed run continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pusl import __version__
from pusl.llm.answers import AnswerStore, Verdict, key_of
from pusl.llm.client import LLMClient
from pusl.llm.endpoint import EndpointError, LLMSettings, RequestFailed, estimate_tokens
from pusl.llm.judge_job import Job, JudgeOptions, Question, prepare
from pusl.llm.prompts import JUDGE_VERSIONS, Prompt, judge_prompt, one_line, parse_verdicts
from pusl.llm.threads import run_all
from pusl_eval.files import InputError, Row, check_apart, check_outputs, write_json, write_rows, written_together
from pusl_eval.inputs import fingerprint
from pusl_eval.judge import JudgedItem, agreement, judge_scores
from pusl_eval.normalize import normalize

ASKED_AT_MOST = 2  # once, and once more if the answer was incomplete
Verdicts = dict[tuple[str, str], dict[str, bool | None]]  # (item id, turn) -> keyphrase -> verdict
WORDS = {True: "yes", False: "no", None: "unanswered"}


class Judge:
    """Verdicts from the store, or from the model."""

    def __init__(self, client: LLMClient, store: AnswerStore, per_request: int = 10, forget: bool = False) -> None:
        """`forget`: ask again for keyphrases that an earlier run left unanswered."""
        self.client, self.store, self.per_request, self.forget = client, store, per_request, forget

    def decide(self, question: Question) -> dict[str, bool | None]:
        """One verdict per keyphrase. A missing one is asked for at most twice; then it is None."""
        keys, known = self._known(question)
        for _ in range(ASKED_AT_MOST):
            for chunk, prompt in self._prompts(question, keys, known):
                answer = self.client.ask(prompt)
                values = parse_verdicts(answer.text, len(chunk))
                # A second try cannot help if the endpoint rejects the request.
                tries = 1 if answer.finish else ASKED_AT_MOST
                new = {
                    keys[phrase]: Verdict(value, (known[keys[phrase]].asked if keys[phrase] in known else 0) + tries)
                    for phrase, value in zip(chunk, values, strict=True)
                }
                if self.client.trusted(answer):
                    settings = self.client.settings
                    key = key_of(settings.model, prompt.version, settings.temperature, prompt.messages, question.turn)
                    self.store.save(key, prompt, answer, settings.model, settings.endpoint, new)
                known.update(new)
        return {phrase: known[key].value if key in known else None for phrase, key in keys.items()}

    def plan(self, question: Question, planned: set[str]) -> list[Prompt]:
        """The requests that a question still needs, if every answer is complete. `planned` collects their keys."""
        keys, known = self._known(question)
        prompts = list(self._prompts(question, {p: key for p, key in keys.items() if key not in planned}, known))
        planned.update(keys[phrase] for chunk, _ in prompts for phrase in chunk)
        return [prompt for _, prompt in prompts]

    def _known(self, question: Question) -> tuple[dict[str, str], dict[str, Verdict]]:
        settings, block = self.client.settings, question.subject.block
        version = JUDGE_VERSIONS[settings.prompt]
        keys = {
            phrase: key_of(settings.model, version, settings.temperature, block, one_line(phrase), question.turn)
            for phrase in question.keyphrases
        }
        known = self.store.verdicts(list(keys.values()))
        if self.forget:
            known = {key: verdict for key, verdict in known.items() if verdict.value is not None}
        return keys, known

    def _prompts(
        self, question: Question, keys: dict[str, str], known: dict[str, Verdict]
    ) -> Iterator[tuple[list[str], Prompt]]:
        none_yet = Verdict(None, 0)
        verdicts = {phrase: known.get(key, none_yet) for phrase, key in keys.items()}
        open_ = [phrase for phrase, v in verdicts.items() if v.value is None and v.asked < ASKED_AT_MOST]
        for start in range(0, len(open_), self.per_request):
            chunk = open_[start : start + self.per_request]
            yield chunk, judge_prompt(question.subject.block, chunk, self.client.settings.prompt)


def judge(
    references: str | Path, predictions: str | Path | None, output: str | Path, settings: LLMSettings, *,
    options: JudgeOptions | None = None, universe: str | Path | None = None, train: str | Path | None = None,
    gold: str | Path | None = None, cache: str | Path | None = None, summary: str | Path | None = None,
    force: bool = False, progress: bool = False,
) -> Row:  # fmt: skip
    """Judges a predictions file, writes verdicts and summary, and returns the summary.

    `cache` is the SQLite file of answers (default: llm_answers.sqlite next to the output), `summary` the summary's file
    (default: OUTPUT with the suffix .summary.json). Raises EndpointError if the endpoint fails or the budget is used
    up; then nothing is written, and the same call continues later.
    """
    targets = (Path(output), summary_path(output, summary))
    cache = cache_path(output, cache)
    files = {"references": references, "predictions": predictions, "universe": universe, "train": train, "gold": gold}
    check_apart((*targets, cache), {f"--{name}": path for name, path in files.items()})
    check_outputs(targets, force)
    result, rows = judged(files, settings, cache, options=options, progress=progress)
    with written_together(targets, force) as (verdicts, scores):
        write_rows(verdicts, rows)
        write_json(scores, result)
    return result


def judged(
    files: Mapping[str, Any], settings: LLMSettings, cache: Path, *, options: JudgeOptions | None = None,
    progress: bool = False,
) -> tuple[Row, list[Row]]:  # fmt: skip
    """The summary and the rows that `judge` writes; only answers are stored yet. `files`: arguments of `prepare`."""
    options = options or JudgeOptions()
    job = prepare(options=options, **files)
    # With --skip-failed several bad items in a row must not look like an endpoint that is down.
    patience = 25 if options.skip_failed else 3
    with LLMClient(settings, patience) as client, AnswerStore(cache) as store:
        judge_ = Judge(client, store, options.per_request, options.retry_unanswered)
        verdicts, failures = _ask_all(job, judge_, progress)
    client.check_rejections()
    if failures and (not options.skip_failed or len(failures) == len(job.questions)):
        done = len(job.questions) - len(failures)
        raise EndpointError(
            f"{failures[0]}\n{_how_to_continue(done, job, cache)}, or pass --skip-failed to count the failed "
            "keyphrases as unanswered."
        )
    result = summarize(job, verdicts, client, options)
    result["counts"]["n_failed_requests"] = len(failures)
    given = {name: path for name, path in files.items() if path is not None}
    result["provenance"]["files"] = {name: fingerprint(path) for name, path in given.items()}
    return result, list(_output_rows(job, verdicts))


def plan(
    references: str | Path, predictions: str | Path | None, output: str | Path, settings: LLMSettings, *,
    options: JudgeOptions | None = None, universe: str | Path | None = None, train: str | Path | None = None,
    gold: str | Path | None = None, cache: str | Path | None = None, planned: set[str] | None = None,
) -> Row:  # fmt: skip
    """What `judge` would do: requests, estimated tokens and USD. Makes no request and writes nothing.

    `planned` collects what is asked, for the plan of the next system.
    """
    options = options or JudgeOptions()
    job = prepare(references, predictions, options, universe, train, gold)
    requests = extra = tokens_in = tokens_out = phrases = 0
    planned = set() if planned is None else planned  # two items with the same text share their verdicts
    with AnswerStore(cache_path(output, cache), read_only=True) as store:
        judge_ = Judge(LLMClient(settings), store, options.per_request, options.retry_unanswered)
        for question in job.questions:
            prompts = judge_.plan(question, planned)
            phrases += len(question.keyphrases)
            requests += len(prompts)
            extra += len(prompts) if question.turn else 0
            tokens_in += sum(map(estimate_tokens, prompts))
            tokens_out += sum(prompt.answer_tokens for prompt in prompts)
    return {
        "items": len(job.subjects), "verdicts": phrases, "requests": requests, "consistency_requests": extra,
        "tokens_in": tokens_in, "tokens_out": tokens_out, "cost_usd": settings.cost(tokens_in, tokens_out),
    }  # fmt: skip


def summary_path(output: str | Path, summary: str | Path | None = None) -> Path:
    """The path of the summary.

    >>> str(summary_path("out/verdicts.jsonl.gz"))
    'out/verdicts.summary.json'
    """
    output = Path(output)
    stem = output.name.removesuffix(".gz").rpartition(".")[0] or output.name
    return Path(summary) if summary is not None else beside(output, f"{stem}.summary.json")


def cache_path(output: str | Path, cache: str | Path | None = None) -> Path:
    """The path of the stored answers: one file per folder, so that all systems in it share verdicts."""
    return Path(cache) if cache is not None else beside(output, "llm_answers.sqlite")


def beside(output: str | Path, name: str) -> Path:
    """A file in the folder of the output."""
    if not Path(output).name:
        raise InputError(f"{output}: is a directory; expected a file name to write")
    return Path(output).with_name(name)


def _ask_all(job: Job, judge_: Judge, progress: bool) -> tuple[Verdicts, list[str]]:
    """The verdicts of every question, and the messages of questions that failed after all retries."""
    from tqdm.auto import tqdm

    verdicts: Verdicts = {}
    failures: list[str] = []

    def decide(question: Question) -> dict[str, bool | None] | str:
        try:
            return judge_.decide(question)
        except RequestFailed as error:
            return str(error)

    usage = judge_.client.usage
    try:
        with tqdm(total=len(job.questions), desc="judge", unit="item", disable=not progress) as bar:
            for question, found in run_all(decide, job.questions, judge_.client.settings.concurrency):
                if isinstance(found, str):
                    failures.append(found)
                    found = dict.fromkeys(question.keyphrases)
                verdicts[question.subject.id, question.turn] = found
                bar.set_postfix(requests=usage.requests, retries=usage.retries, refresh=False)
                bar.update()
    except EndpointError as error:
        done = len(verdicts) - len(failures)
        raise EndpointError(f"{error}\n{_how_to_continue(done, job, judge_.store.path)}.") from None
    return verdicts, failures


def _how_to_continue(done: int, job: Job, cache: Path) -> str:
    return (
        f"{done:,} of {len(job.questions):,} questions are answered and stored in {cache}; nothing else was written. "
        "Run the same command again to continue"
    )


def summarize(job: Job, verdicts: Verdicts, client: LLMClient, options: JudgeOptions) -> Row:
    """The content of the summary file. What metrics.json has too is in the same place.

    counts: n_items, n_without_references, n_missing_predictions, n_keyphrases = n_yes + n_no + n_unanswered (at the
    largest k), n_texts_cut, n_failed_requests. scores, groups, intervals: G@k, Uni@k, Rel@k (and `_max`, see
    `judge_scores`) per part. sizes: items, keyphrases, yes and unanswered per part and k. agreement: with people
    (--gold), else null. human: `people_scores`, else null. consistency: first verdicts against those of a repeated and
    of a reversed question. usage: what this run sent and was billed; a replay has zeros. provenance: model, endpoint,
    prompt version, files with SHA-256.
    """
    items = _judged(job, verdicts)
    found = judge_scores(items, job.k, seed=options.seed)
    groups = sorted(part for part in found["scores"] if part.startswith("group:"))
    flat = [verdict for item in items for verdict in item.verdicts]
    settings, usage = client.settings, client.usage

    def by_part(kind: str) -> Row:
        nothing = dict.fromkeys(found[kind]["all"])
        return {part: found[kind].get(part, nothing) for part in ("all", "narrow", "diverse")}

    def by_group(kind: str) -> Row:
        return {part.removeprefix("group:"): found[kind][part] for part in groups}

    return {
        "counts": {
            "n_items": len(items), "n_without_references": sum(not subject.references for subject in job.subjects),
            "n_missing_predictions": sum(subject.missing for subject in job.subjects),
            "n_keyphrases": len(flat), "n_yes": flat.count(True), "n_no": flat.count(False),
            "n_unanswered": flat.count(None), "n_texts_cut": sum(subject.truncated for subject in job.subjects),
        },
        "k": ["all" if cut is None else cut for cut in job.k],
        "mu": job.mu,
        "scores": by_part("scores"),
        "groups": by_group("scores"),
        "intervals": {**by_part("intervals"), "groups": by_group("intervals")},
        "sizes": {**by_part("counts"), "groups": by_group("counts")},
        "human": people_scores(job, options.seed) if job.gold else None,
        "agreement": _with_gold(job, verdicts),
        "consistency": {turn: _with_first(verdicts, turn) for turn in ("repeat", "swap")},
        "usage": {**asdict(usage), "cost_usd": settings.cost(usage.tokens_in, usage.tokens_out)},
        "provenance": {
            "model": settings.model, "endpoint": settings.endpoint, "prompt": JUDGE_VERSIONS[settings.prompt],
            "temperature": settings.temperature, "per_request": options.per_request, "max_chars": options.max_chars,
            "sample": options.sample, "seed": options.seed, "versions": {"pusl": __version__},
        },
    }  # fmt: skip


def _judged(job: Job, verdicts: Verdicts) -> list[JudgedItem]:
    items = []
    for subject in job.subjects:
        groups = [] if subject.group is None else [f"group:{subject.group}"]
        if job.mu is not None and subject.references:
            groups.append("narrow" if subject.references <= 2 * job.mu else "diverse")
        found = verdicts.get((subject.id, ""), {})
        values = [found.get(phrase) for phrase in subject.predicted]
        inside = None if job.universe is None else [normalize(phrase) in job.universe for phrase in subject.predicted]
        items.append(JudgedItem(subject.id, subject.predicted, subject.ranks, values, inside, groups))
    return items


def people_scores(job: Job, seed: int = 0) -> Row:
    """Hum@k: of the distinct keyphrases among the first k that people have judged, the share they call relevant.

    {"scores", "intervals", "sizes"}, each by part (all, narrow, diverse, group:NAME). Needs no endpoint.
    """
    judged = []
    for item in _judged(job, {}):
        said = [job.gold.get((item.id, normalize(phrase))) for phrase in item.keyphrases]
        places = [place for place, verdict in enumerate(said) if verdict is not None]
        judged.append(
            JudgedItem(
                item.id, [item.keyphrases[place] for place in places], [item.ranks[place] for place in places],
                [said[place] for place in places], None, item.groups,
            )
        )  # fmt: skip
    found = judge_scores([item for item in judged if item.keyphrases], job.k, seed=seed)

    def humans(kind: str) -> Row:
        renamed = {part: {f"Hum{name[1:]}": v for name, v in values.items() if name.startswith("G@")}
                   for part, values in found[kind].items()}  # fmt: skip
        return {part: {n: v for n, v in values.items() if not n.endswith("_max")} for part, values in renamed.items()}

    return {"scores": humans("scores"), "intervals": humans("intervals"), "sizes": found["counts"]}


def _with_gold(job: Job, verdicts: Verdicts) -> Row | None:
    if not job.gold:
        return None
    said = {
        (name, normalize(phrase)): verdict
        for (name, turn), found in verdicts.items() if not turn for phrase, verdict in found.items()
    }  # fmt: skip
    return agreement(job.gold, said)


def _with_first(verdicts: Verdicts, turn: str) -> Row:
    """How often a repeated question got the same verdict."""
    again = {(name, phrase): v for (name, t), found in verdicts.items() if t == turn for phrase, v in found.items()}
    first = {(name, phrase): verdicts[name, ""][phrase] for name, phrase in again}
    return agreement(first, again)


def _output_rows(job: Job, verdicts: Verdicts) -> Iterator[Row]:
    for subject, item in zip(job.subjects, _judged(job, verdicts), strict=True):
        row: Row = {
            "id": item.id, "keyphrases": item.keyphrases, "ranks": item.ranks,
            "verdicts": [WORDS[verdict] for verdict in item.verdicts],
        }  # fmt: skip
        if item.in_universe is not None:
            row["in_universe"] = item.in_universe
        if subject.gold:
            said = [job.gold.get((item.id, normalize(phrase))) for phrase in item.keyphrases]
            row["gold"] = [None if verdict is None else WORDS[verdict] for verdict in said]
        if subject.group is not None:
            row["group"] = subject.group
        yield row
