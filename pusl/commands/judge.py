"""Asks a language model, for every predicted keyphrase, whether it fits its item: yes or no.

Works with any OpenAI-compatible endpoint (OpenAI, vLLM, Ollama, llama.cpp, Azure). The API key is read
from $OPENAI_API_KEY (see --key-variable) and never stored.

Three scores are printed, with 95% intervals, for all items and by group:
  G    share of the keyphrases that were judged relevant
  Uni  share that is in the universe, a list of real queries or labels
  Rel  share that is both relevant and in the universe

OUTPUT gets one line per item with its verdicts. The scores go to a file of the same name with the suffix
.summary.json. Every answer is stored in llm_answers.sqlite next to OUTPUT. So a killed run continues, and a
second run sends no request and needs neither key nor network.

examples:
  pusl judge --references test.jsonl --predictions pusl.jsonl --universe queries.txt --output verdicts.jsonl --k 5 \\
      --sample 500 --dry-run --price-in 0.15 --price-out 0.60
  pusl judge --references test.jsonl --predictions pusl.jsonl --output verdicts.jsonl --k 3 6 \\
      --model llama3.1 --base-url http://localhost:11434/v1
  pusl judge --references test.jsonl --predictions pusl.jsonl --output verdicts.jsonl --gold people.csv
  pusl judge --references test.jsonl --predictions PUSL=a.jsonl One2Seq=b.jsonl --train train.jsonl --k 2mu \\
      --sample 100 --sample-per-group --prompt paper --output verdicts.jsonl
  pusl judge --references test.jsonl --predictions PUSL=a.jsonl One2Seq=b.jsonl --gold people.csv --human-only \\
      --k 6 --output people.json

--gold is a file of human verdicts: rows with id, keyphrase and verdict (yes or no), or in the format of OUTPUT.
--human-only scores only these verdicts (Hum@k) and asks no language model; OUTPUT then gets the scores as JSON.
With several systems, each system's verdicts go to a file of its own, named OUTPUT with the system's name in it.
The summary holds the scores of all.

For Azure: `--base-url https://NAME.openai.azure.com/openai/v1 --model DEPLOYMENT --key-variable AZURE_OPENAI_API_KEY`
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from pusl.commands.shared_flags import add_columns, add_cuts, add_force, add_seed, integer
from pusl.config import add_flags, build
from pusl_eval.budgets import K_WORDS
from pusl_eval.columns import name_columns
from pusl_eval.files import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `pusl judge`."""
    from pusl.llm.endpoint import LLMSettings

    files = parser.add_argument_group("files")
    add = files.add_argument
    add("--references", required=True, metavar="FILE", help="items with text (or title and description)")
    add(
        "--predictions", nargs="+", action="extend", metavar="[NAME=]FILE",
        help="keyphrases to judge, of one system or of several; optional with --gold",
    )  # fmt: skip
    add("--output", required=True, metavar="FILE", help="verdicts, one line per item")
    add("--summary", metavar="FILE", help="scores as JSON (default: OUTPUT with the suffix .summary.json)")
    add("--universe", metavar="FILE", help="real queries or labels, one per line, for Uni and Rel")
    add(
        "--train", metavar="FILE",
        help="training items, for μ and the scores of narrow items (at most 2μ keyphrases) and diverse ones (more)",
    )  # fmt: skip
    add("--gold", metavar="FILE", help="human verdicts; prints how far the judge agrees with them")
    add("--human-only", action="store_true", help="score the verdicts of --gold alone; no endpoint is asked")
    add("--cache", metavar="FILE", help="stored answers (default: llm_answers.sqlite next to OUTPUT)")
    add_force(files)
    what = parser.add_argument_group("what to judge")
    add = what.add_argument
    add_cuts(what, " (default: all)", type=_cut, default=[])
    add("--sample", type=integer(1), metavar="N", help="judge N random items only (default: all)")
    add("--sample-per-group", action="store_true", help="judge --sample items of each group, not of all together")
    add_seed(what)
    add("--per-request", type=integer(1), default=10, metavar="N", help="keyphrases in one request (default: 10)")
    add(
        "--max-chars",
        type=integer(1),
        default=8000,
        metavar="N",
        help="characters to send per field of an item (default: 8000)",
    )
    add(
        "--fields",
        nargs="+",
        metavar="NAME",
        help="fields of an item to send (default: title and description, or text)",
    )
    add(
        "--consistency", type=integer(0), default=20, metavar="N",
        help="judge N items again, in the same and in reversed order, to compare the verdicts (default: 20)",
    )  # fmt: skip
    add("--retry-unanswered", action="store_true", help="ask again for what earlier runs left unanswered")
    add(
        "--skip-failed",
        action="store_true",
        help="finish even if requests failed; their keyphrases stay unanswered",
    )
    add("--dry-run", action="store_true", help="print requests, tokens and cost; send and write nothing")
    add("--quiet", action="store_true", help="no progress bar")
    add_flags(parser.add_argument_group("endpoint and cost"), LLMSettings)
    add_columns(parser, of="--references and --train")


def run(args: argparse.Namespace) -> int:
    """Judges, or prints the plan; says how to continue if it is stopped."""
    from pusl.llm.endpoint import EndpointError, LLMSettings
    from pusl.llm.judge_job import JudgeOptions
    from pusl.llm.judge_systems import judge_systems, score_people
    from pusl.llm.judging import cache_path, judge, plan, summary_path
    from pusl_eval.flags import named_files
    from pusl_eval.judge_table import judge_table

    systems = named_files(args.predictions) if args.predictions else None
    if args.sample_per_group and args.sample is None:
        raise InputError("--sample-per-group needs --sample N")
    if args.human_only and not args.gold:
        raise InputError("--human-only needs --gold FILE: people's verdicts")
    name_columns(args, ("references", "train"))
    settings = build(LLMSettings, args)
    settings.url  # noqa: B018 (a wrong address fails before any file is read)
    options = JudgeOptions(
        k=tuple(args.k), sample=args.sample, sample_per_group=args.sample_per_group, seed=args.seed,
        per_request=args.per_request, max_chars=args.max_chars, fields=tuple(args.fields) if args.fields else None,
        consistency=args.consistency, retry_unanswered=args.retry_unanswered, skip_failed=args.skip_failed,
    )  # fmt: skip
    _check_fields(options.fields)
    if args.human_only:
        scored = score_people(
            args.references, systems, args.gold, args.output, options=options, universe=args.universe,
            train=args.train, force=args.force,
        )  # fmt: skip
        print(judge_table(scored["systems"]))
        print(f"numbers: {args.output}")
        return 0
    files = {"universe": args.universe, "train": args.train, "gold": args.gold, "cache": args.cache}
    if args.dry_run:
        planned: set[str] = set()
        plans = [
            plan(args.references, path, args.output, settings, options=options, planned=planned, **files)
            for path in (list(systems.values()) if systems else [None])
        ]
        print(describe_plan(added_up(plans)))
        return 0
    where = (args.references, args.output, settings)
    run_with: dict[str, Any] = {"options": options, "summary": args.summary, "force": args.force, **files}
    try:
        if systems and len(systems) > 1:
            several = judge_systems(where[0], systems, *where[1:], progress=not args.quiet, **run_with)
        else:
            only = next(iter(systems.values())) if systems else None
            result = judge(where[0], only, *where[1:], progress=not args.quiet, **run_with)
    except EndpointError as error:
        print(f"pusl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        cache = cache_path(args.output, args.cache)
        print(f"\npusl: stopped. Answers are stored in {cache}; the same command continues.", file=sys.stderr)
        return 130
    if systems and len(systems) > 1:
        print(judge_table(several["systems"]))
        print("\n".join(describe_judge(several["systems"])))
        print(f"numbers: {summary_path(args.output, args.summary)}")
        return 0
    print(describe(result))
    print(f"verdicts: {args.output}, numbers: {summary_path(args.output, args.summary)}")
    return 0


def added_up(plans: list[dict[str, Any]]) -> dict[str, Any]:
    """The plans or the use of several systems as one; the cost is unknown if one is."""
    return {
        name: None if any(one[name] is None for one in plans) else sum(one[name] for one in plans)
        for name, first in plans[0].items()
        if not isinstance(first, dict)
    }


def describe_plan(found: dict[str, Any]) -> str:
    """The lines of --dry-run."""
    cost = found["cost_usd"]
    price = "unknown (give --price-in and --price-out)" if cost is None else f"about {cost:.4f} USD"
    checks = f", {found['consistency_requests']:,} of them for consistency" if found["consistency_requests"] else ""
    return (
        f"items:    {found['items']:,} ({found['verdicts']:,} verdicts)\n"
        f"requests: {found['requests']:,}{checks} (stored answers are not asked again)\n"
        f"tokens:   about {found['tokens_in']:,} in, {found['tokens_out']:,} out\n"
        f"cost:     {price}"
    )


def describe(result: dict[str, Any]) -> str:
    """The printed table: percentages with 95% intervals, then how consistent the judge is."""
    from pusl_eval.judge_table import percent

    scores, spans, sizes = (_by_part(result, kind) for kind in ("scores", "intervals", "sizes"))
    names = [name for name in spans["all"] if name.startswith("G") or scores["all"][name] is not None]
    cut = "all" if "all" in result["k"] else max(result["k"])
    rows = [["", "items", "phrases", *names, "unanswered"]]
    for part, size in sizes.items():
        if size["n_items"]:
            cells = [percent(scores[part][name], spans[part][name]) for name in names]
            counts = [f"{size[name]:,}" for name in ("n_items", f"n@{cut}", f"unanswered@{cut}")]
            rows.append([part, *counts[:2], *cells, counts[2]])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    if result["human"] is not None:
        people = result["human"]
        at = f"@{cut}"
        score = percent(people["scores"]["all"].get(f"Hum{at}"), people["intervals"]["all"].get(f"Hum{at}"))
        lines.append(f"Hum{at}: {score}% of the {people['sizes']['all'][f'n{at}']:,} keyphrases that people judged")
    return "\n".join([*lines, *_checks(result), _usage([result["usage"]])])


def describe_judge(systems: dict[str, dict[str, Any]]) -> list[str]:
    """What stands below the table of several systems: how far to trust the judge on each, and what all of it took."""
    lines = []
    for system, result in systems.items():
        if missing := result["counts"]["n_unanswered"]:
            lines.append(f"{system}: {missing:,} keyphrases unanswered")
        lines += [f"{system}: {line}" for line in _checks(result)]
    return [*lines, _usage([result["usage"] for result in systems.values()])]


def _checks(result: dict[str, Any]) -> list[str]:
    """How often the judge agrees with people and with itself."""
    from pusl_eval.judge_table import percent

    lines = []
    checks = {"agreement with people": result["agreement"]}
    checks |= {f"consistency ({turn})": found for turn, found in result["consistency"].items()}
    for name, found in checks.items():
        if found and found["n_pairs"]:
            same = percent(found["accuracy"], found["accuracy_interval"])
            kappa = "undefined (one word only)" if found["kappa"] is None else f"{found['kappa']:.2f}"
            span = " [{:.2f}, {:.2f}]".format(*found["kappa_interval"]) if found["kappa_interval"] else ""
            lines.append(f"{name}: {same}% of {found['n_pairs']:,} verdicts the same, kappa {kappa}{span}")
    return lines


def _usage(parts: list[dict[str, Any]]) -> str:
    total = added_up(parts)
    cost = "" if total["cost_usd"] is None else f", {total['cost_usd']:.4f} USD"
    tokens = f"{total['tokens_in']:,} tokens in, {total['tokens_out']:,} out{cost}"
    return f"{total['requests']:,} requests ({total['retries']:,} retries), {tokens}"


def _by_part(result: dict[str, Any], kind: str) -> dict[str, Any]:
    groups = result["groups"] if kind == "scores" else result[kind]["groups"]
    parts = {part: result[kind][part] for part in ("all", "narrow", "diverse")}
    return {**parts, **{f"group:{name}": values for name, values in groups.items()}}


def _check_fields(names: tuple[str, ...] | None) -> None:
    for name in names or ():
        if not name.isidentifier():
            raise InputError(f"--fields: {name!r} is not a plain field name (letters, digits and _)")


def _cut(text: str) -> int | str:
    return text if text in K_WORDS else integer(1)(text)
