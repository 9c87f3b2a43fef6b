"""Yes/no verdicts -> G, Uni, Rel with intervals; two sets of verdicts -> accuracy and Cohen's kappa.

Only numbers: who gave the verdicts (a language model, a person, a rule) does not matter here. Shares
are pooled over keyphrases, while intervals draw whole items, because the verdicts of one item are not
independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pusl_eval.files import InputError, read_rows, type_name
from pusl_eval.normalize import distinct_forms, normalize

Floats = NDArray[np.float64]
Verdict = bool | None  # None: unanswered
Pairs = Mapping[tuple[str, str], Verdict]  # (item id, normalized keyphrase) -> verdict

RESAMPLES = 1000
_WORDS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


@dataclass(slots=True)
class JudgedItem:
    """The distinct keyphrases of one prediction (in order, blanks dropped), each with its verdict."""

    id: str
    keyphrases: list[str]  # as generated, first occurrence
    ranks: list[int]  # 1-based place of that occurrence in the generated list
    verdicts: list[Verdict]
    in_universe: list[bool] | None = None  # None: there is no universe
    groups: list[str] = field(default_factory=list)  # "narrow", "group:shoes", ... ("all" is understood)


def first_distinct(keyphrases: Sequence[str], k: int | None = None) -> tuple[list[str], list[int]]:
    """The distinct keyphrases among the first k AS GENERATED, and their ranks: repeats and blanks waste budget.

    >>> first_distinct(["drone", "Drone ", "", "4k camera", "toy"], 4)
    (['drone', '4k camera'], [1, 4])
    """
    places = distinct_forms(keyphrases[:k]).values()
    return [keyphrases[place] for place in places], [place + 1 for place in places]


def judge_scores(
    items: Sequence[JudgedItem], k: Sequence[int | None], resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, dict[str, dict[str, Any]]]:
    """G@k, Uni@k and Rel@k (docs/reference/metrics.md) for all items and for every group.

    N = distinct keyphrases among the first k of each item, pooled. G@k = yes / N, Uni@k = in the universe / N, Rel@k =
    (yes and in the universe) / N. An unanswered keyphrase counts in N and not as a yes; `G@k_max` and `Rel@k_max` are
    the values if every unanswered one were a yes, so the truth lies between. k = None stands for the whole list and is
    named `@all`. Without a universe Uni and Rel are null; so is everything where N = 0. One item has no interval.

    Returns {"scores": {part: {name: value}}, "intervals": {part: {name: [low, high]}}, "counts": {part: {name: n}}}.

    >>> item = JudgedItem("a", ["drone", "shoe"], [1, 2], [True, False], [True, True])
    >>> judge_scores([item], [2], resamples=10)["scores"]["all"]["G@2"]
    0.5
    """
    table = tally(items, k)  # (items, cuts, columns)
    parts: dict[str, list[int]] = {"all": list(range(len(items)))}
    for row, item in enumerate(items):
        for group in item.groups:
            parts.setdefault(group, []).append(row)
    has_universe = any(item.in_universe is not None for item in items)
    result: dict[str, dict[str, dict[str, Any]]] = {"scores": {}, "intervals": {}, "counts": {}}
    for part, rows in parts.items():
        totals = table[rows].sum(axis=0)  # (cuts, columns)
        draws = _resampled_sums(table[rows], resamples, seed)  # (resamples, cuts, columns)
        scores: dict[str, Any] = {}
        intervals: dict[str, Any] = {}
        counts = {"n_items": len(rows)}
        for place, cut in enumerate(k):
            at = f"@{'all' if cut is None else cut}"
            counts.update({f"{name}{at}": int(totals[place, _COLUMNS.index(name)]) for name in _COLUMNS[:3]})
            n = totals[place, 0]
            for name, columns in _SHARES.items():
                of = [_COLUMNS.index(column) for column in columns]
                known = n > 0 and (has_universe or name.startswith("G"))
                shown = name.replace("@", at)
                scores[shown] = float(totals[place, of].sum() / n) if known else None
                if name.endswith("@"):
                    drawn = draws[:, place, of].sum(axis=1), draws[:, place, 0]
                    intervals[shown] = _percentiles(*drawn) if known and len(rows) > 1 else None
        result["scores"][part], result["intervals"][part], result["counts"][part] = scores, intervals, counts
    return result


_COLUMNS = ("n", "yes", "unanswered", "in", "yes_in", "unanswered_in")
_SHARES = {
    "G@": ("yes",), "G@_max": ("yes", "unanswered"), "Uni@": ("in",), "Rel@": ("yes_in",),
    "Rel@_max": ("yes_in", "unanswered_in"),
}  # fmt: skip


def tally(items: Sequence[JudgedItem], k: Sequence[int | None]) -> Floats:
    """Per item and cut: keyphrases, yes, unanswered, in the universe, yes and in, unanswered and in.

    >>> tally([JudgedItem("a", ["x", "y"], [1, 3], [True, None])], [2, None]).astype(int).tolist()
    [[[1, 1, 0, 0, 0, 0], [2, 1, 1, 0, 0, 0]]]
    """
    table = np.zeros((len(items), len(k), len(_COLUMNS)))  # (items, cuts, columns)
    for row, item in enumerate(items):
        inside = item.in_universe or [False] * len(item.ranks)
        for rank, verdict, known in zip(item.ranks, item.verdicts, inside, strict=True):
            yes, unanswered = verdict is True, verdict is None
            for place, cut in enumerate(k):
                if cut is None or rank <= cut:
                    table[row, place] += (1, yes, unanswered, known, yes and known, unanswered and known)
    return table


def agreement(first: Pairs, second: Pairs, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Any]:
    """How well two sets of verdicts agree: accuracy and Cohen's kappa with 95% intervals over items.

    Pairs that one side does not have are left out; pairs that one side left unanswered are counted in `n_unanswered`.
    kappa = (p_o - p_e) / (1 - p_e), with p_e from the two sides' own shares of yes; it is null where both sides always
    say the same word (p_e = 1), and a draw of items without a kappa does not enter its interval. One item has no
    interval.

    >>> gold = {("a", "x"): True, ("a", "y"): True, ("b", "x"): False, ("b", "y"): False}
    >>> judge = {("a", "x"): True, ("a", "y"): False, ("b", "x"): False, ("b", "y"): None}
    >>> result = agreement(gold, judge)
    >>> result["n_pairs"], result["n_unanswered"], round(result["accuracy"], 3), round(result["kappa"], 3)
    (3, 1, 0.667, 0.4)
    """
    rows: dict[str, int] = {}
    cells: list[tuple[int, int]] = []
    unanswered = 0
    for pair, one in first.items():
        if pair not in second:
            continue
        other = second[pair]
        if one is None or other is None:
            unanswered += 1
        else:
            cells.append((rows.setdefault(pair[0], len(rows)), 2 * (not one) + (not other)))
    table = np.zeros((len(rows), 4))  # (items, yes-yes yes-no no-yes no-no)
    for row, cell in cells:
        table[row, cell] += 1
    total = table.sum(axis=0)  # (4,)
    found: dict[str, Any] = {
        "n_pairs": len(cells), "n_items": len(rows), "n_unanswered": unanswered,
        "table": dict(zip(("yes_yes", "yes_no", "no_yes", "no_no"), map(int, total), strict=True)),
        "accuracy": None, "accuracy_interval": None, "kappa": None, "kappa_interval": None,
    }  # fmt: skip
    if cells:
        found["accuracy"] = float((total[0] + total[3]) / total.sum())
        kappa = _kappa(total[None, :])[0]
        found["kappa"] = float(kappa) if np.isfinite(kappa) else None
    if len(rows) > 1:
        draws = _resampled_sums(table, resamples, seed)  # (resamples, 4)
        found["accuracy_interval"] = _percentiles(draws[:, 0] + draws[:, 3], draws.sum(axis=1))
        kappas = _kappa(draws)
        if found["kappa"] is not None:
            low, high = np.percentile(kappas[np.isfinite(kappas)], (2.5, 97.5))
            found["kappa_interval"] = [float(low), float(high)]
    return found


def read_gold(path: str) -> dict[tuple[str, str], bool]:
    """A file of human verdicts -> {(id, normalized keyphrase): yes or no}.

    One row per keyphrase, `{"id", "keyphrase", "verdict"}`, or one per item, `{"id", "keyphrases", "verdicts"}` (what
    `pusl judge` writes; its `unanswered` entries are skipped). A verdict is yes/no, true/false or 1/0.
    """
    gold: dict[tuple[str, str], bool] = {}
    for line, row in read_rows(path):
        where = f"{path}:{line}"
        name = str(row["id"]) if type(row.get("id")) in (str, int) else ""
        if not name:
            raise InputError(f"{where}: no field 'id' with a string (found: {', '.join(row) or 'nothing'})")
        if "keyphrase" in row and "verdict" in row:
            phrases, verdicts = [row["keyphrase"]], [row["verdict"]]
        elif isinstance(row.get("keyphrases"), list) and isinstance(row.get("verdicts"), list):
            phrases, verdicts = row["keyphrases"], row["verdicts"]
        else:
            raise InputError(
                f"{where}: id {name!r}: expected 'keyphrase' and 'verdict', or the lists 'keyphrases' and 'verdicts' "
                f"(found: {', '.join(row)})"
            )
        if len(phrases) != len(verdicts):
            raise InputError(f"{where}: id {name!r}: {len(verdicts)} verdicts for {len(phrases)} keyphrases")
        for phrase, verdict in zip(phrases, verdicts, strict=True):
            if not isinstance(phrase, str) or not normalize(phrase):
                found = "blank" if isinstance(phrase, str) else type_name(phrase)
                raise InputError(f"{where}: id {name!r}: a keyphrase is {found}; expected a phrase")
            word = str(verdict).strip().lower()
            if word == "unanswered":
                continue
            if word not in _WORDS:
                raise InputError(f"{where}: id {name!r}: verdict {verdict!r} of {phrase!r}; expected yes or no")
            pair = (name, normalize(phrase))
            if gold.setdefault(pair, _WORDS[word]) != _WORDS[word]:
                raise InputError(f"{where}: id {name!r}: {phrase!r} has both a yes and a no; keep one")
    if not gold:
        raise InputError(f"{path}: no verdicts found")
    return gold


def _kappa(tables: Floats) -> Floats:
    """Cohen's kappa of rows (yes-yes, yes-no, no-yes, no-no); NaN where chance agreement is 1."""
    n = tables.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        observed = (tables[:, 0] + tables[:, 3]) / n
        first, second = (tables[:, 0] + tables[:, 1]) / n, (tables[:, 0] + tables[:, 2]) / n
        chance = first * second + (1 - first) * (1 - second)
        return np.asarray(np.where(chance < 1, (observed - chance) / (1 - chance), np.nan), dtype=np.float64)


def _resampled_sums(table: Floats, resamples: int, seed: int) -> Floats:
    """Sums over `resamples` sets of rows, each as large as the table and drawn from it with replacement."""
    generator = np.random.default_rng(seed)
    n = len(table)
    sums = np.zeros((resamples, *table.shape[1:]))  # (resamples, ...)
    for draw in range(resamples if n else 0):
        sums[draw] = np.tensordot(np.bincount(generator.integers(n, size=n), minlength=n), table, 1)
    return sums


def _percentiles(numerators: Floats, denominators: Floats) -> list[float] | None:
    usable = denominators > 0
    if not usable.any():
        return None
    low, high = np.percentile(numerators[usable] / denominators[usable], (2.5, 97.5))
    return [float(low), float(high)]
