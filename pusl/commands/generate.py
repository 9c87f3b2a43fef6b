"""Gives each item of a catalog k different keyphrases with scores.

The input is JSONL, JSONL.gz, Parquet, CSV or TSV with an id and a text per item. The output's ending
chooses its format; the items keep their order. Finished work is kept in OUTPUT.parts/ until the output is
complete. After Ctrl-C or a crash, type the same command again: it resumes, and the output is the same to the
byte. Lines that cannot be used go to OUTPUT.rejects with the reason.

examples:
  pusl generate --model models/pusl --input items.jsonl --output predictions.jsonl -k 10
  pusl generate --model models/pusl --input items.csv --id-column sku --text-template "{title}. {details}" \\
      --output predictions.parquet -k 20 --workers 4 --precision int8
  pusl generate --model models/pusl --input items.jsonl --output predictions.jsonl -k 10 \\
      --universe queries.txt --vocabulary closed --explain
  pusl generate --model models/pusl --input items.jsonl --output predictions.jsonl -k 10 \\
      --calibrate dev.jsonl --min-score 0.5
  pusl generate --model models/pusl --input tagged.jsonl --output more.jsonl -k 5 --complete
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pusl.commands.shared_flags import MODEL, add_columns, add_force, add_k, add_seed, add_speed, integer
from pusl.config import add_flags, build
from pusl.decoding.arguments import MOST_KEYPHRASES, threshold, whole_number
from pusl.examples import Columns
from pusl.llm.endpoint import LLMSettings
from pusl_eval.files import InputError
from pusl_eval.flags import named_files

STRATEGIES = ("sequence", "beam")
ENGINES = ("local", "ray")
# The keyphrases are for --calibrate and --complete.
OTHER_COLUMNS = ("counts_column", "timestamp_column", "group_column")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `pusl generate`."""
    files = parser.add_argument_group("files")
    files.add_argument("--model", metavar="MODEL", help=MODEL)
    files.add_argument("--llm", metavar="NAME", help="ask this language model instead of a trained one")
    files.add_argument("--input", required=True, metavar="FILE", help="the catalog: .jsonl(.gz), .parquet, .csv, .tsv")
    files.add_argument("--output", required=True, metavar="FILE", help="predictions: .jsonl(.gz), .parquet, .csv, .tsv")
    files.add_argument("--dataset", metavar="DIR", help="also save the predictions as a Hugging Face dataset")
    add_force(files)
    files.add_argument("--strict", action="store_true", help="check all lines first and stop at the first bad one")
    add_columns(parser, skip=OTHER_COLUMNS)
    decoding = parser.add_argument_group("decoding")
    add_k(decoding)
    decoding.add_argument(
        "--complete", action="store_true",
        help="give k keyphrases in addition to those an item has already (its `keyphrases`)",
    )  # fmt: skip
    decoding.add_argument(
        "--strategy", choices=STRATEGIES, help="how phrases are searched (default: what is best for the model)"
    )
    decoding.add_argument(
        "--allow-repeats", action="store_true", help="the paper's Algorithm 1 as printed: a phrase may come twice"
    )
    decoding.add_argument("--universe", metavar="FILE", help="the universe: real queries or labels, one per line")
    decoding.add_argument(
        "--vocabulary", choices=("open", "prefer", "closed"), default="open",
        help="closed: only phrases of the universe; prefer: a bonus for them; open: any phrase (default: open)",
    )  # fmt: skip
    decoding.add_argument(
        "--long", choices=("cut", "window"), default="cut",
        help="texts longer than the model reads: cut their end off, or search in overlapping windows (default: cut)",
    )  # fmt: skip
    decoding.add_argument("--min-score", type=float, metavar="X", help="leave out keyphrases scored below this")
    decoding.add_argument(
        "--calibrate", metavar="FILE",
        help="labeled items; with them, scores (and --min-score) become probabilities that a phrase is labeled",
    )  # fmt: skip
    decoding.add_argument(
        "--source", action="append", metavar="NAME=FILE",
        help="predictions for these items by a source of the fused model that runs elsewhere",
    )  # fmt: skip
    decoding.add_argument("--num-beams", type=integer(1), metavar="N", help="beam width (default: by strategy)")
    decoding.add_argument(
        "--temperature",
        type=float,
        metavar="X",
        help="sample phrases instead of searching for the best; higher is more random (default: 0, no sampling)",
    )
    decoding.add_argument("--top-p", type=float, metavar="X", help="with --temperature: sample among the most "
        "probable tokens that together have this probability (default: 1, all)")  # fmt: skip
    add_seed(decoding)
    decoding.add_argument(
        "--explain",
        action="store_true",
        help="say for each keyphrase whether it is in the text, in the training labels, in the universe",
    )
    speed = parser.add_argument_group("speed")
    add_speed(speed)
    speed.add_argument(
        "--engine",
        choices=ENGINES,
        default="local",
        help="local: on this machine; ray: on a Ray cluster (default: local)",
    )
    speed.add_argument(
        "--address", metavar="HOST:PORT", help="ray: address of the cluster (default: start one on this machine)"
    )
    speed.add_argument(
        "--gpus-per-worker", type=float, metavar="X", help="ray: GPUs of each process (default: 1 where there are GPUs)"
    )
    llm = parser.add_argument_group("language model (--llm)")
    add_flags(llm, LLMSettings, skip=("model", "temperature"))
    llm.add_argument("--cache", metavar="FILE", help="stored answers (default: llm_answers.sqlite next to the output)")


def run(args: argparse.Namespace) -> int:
    """Generates, and says how to resume if it is interrupted."""
    if args.vocabulary != "open" and not args.universe:
        raise InputError(f"--vocabulary {args.vocabulary} needs --universe FILE")
    if bool(args.model) == bool(args.llm):
        raise InputError("name a model: either --model DIR (made by `pusl train`) or --llm NAME")
    if args.model:
        whole_number("-k", args.k, 1, MOST_KEYPHRASES)
    if args.dataset:
        from pusl.data.hf_datasets import check_dataset_folder

        check_dataset_folder(args.dataset, args.force, args.output)
    return resumable(args.output, lambda: _generate(args))


def resumable(output: str, work: Callable[[], None]) -> int:
    """Runs a catalog job; if it is interrupted, says how to continue."""
    from pusl.catalog.processes import WorkerDied, WorkerFailed
    from pusl.llm.endpoint import EndpointError

    before = signal.signal(signal.SIGTERM, _terminate)
    resume = f"Finished shards are kept in {output}.parts; the same command resumes."
    try:
        work()
    except KeyboardInterrupt:
        print(f"\npusl: stopped. {resume}", file=sys.stderr)
        return 130
    except (WorkerDied, WorkerFailed) as error:
        hint = " (out of memory? try fewer --workers)" if isinstance(error, WorkerDied) else ""
        print(f"pusl: {error}{hint}\n{resume}", file=sys.stderr)
        return 1
    except EndpointError as error:
        print(f"pusl: {error}\n{resume}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS):
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(f"pusl: {error.strerror}{where}. {resume}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _terminate(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _generate(args: argparse.Namespace) -> None:
    from pusl.catalog.run import generate_catalog
    from pusl.process import prepare_process

    prepare_process(keep_memory=True)
    _check_threshold(args)
    names = {name: value for name, value in vars(args).items() if name in Columns.__dataclass_fields__}
    engine_options: dict[str, Any] = {}
    if args.engine == "ray":
        engine_options = {
            "address": args.address,
            "gpus": args.gpus_per_worker,
            "workers": args.workers,
            "cpus": args.threads,
        }
    summary = generate_catalog(
        _model(args), args.input, args.output, args.k, complete=args.complete, explain=args.explain,
        universe=args.universe, calibrate=args.calibrate,
        predictions=named_files(args.source or [], "--source"), precision=args.precision,
        device=args.device, threads=args.threads,
        columns=Columns(**names), shard_size=args.shard_size, workers=args.workers, engine=args.engine,
        engine_options=engine_options, strict=args.strict, force=args.force, progress=not args.quiet,
        strategy=args.strategy, allow_repeats=args.allow_repeats, vocabulary=args.vocabulary,
        min_score=args.min_score, num_beams=args.num_beams, temperature=args.temperature, top_p=args.top_p,
        seed=args.seed, batch_size=args.batch_size, long=None if args.long == "cut" else args.long,
    )  # fmt: skip
    if args.dataset:
        from pusl.data.hf_datasets import save_predictions

        save_predictions(args.output, args.dataset)
    print(describe(summary, args.output))


def _check_threshold(args: argparse.Namespace) -> None:
    """Refuses a --min-score that no score reaches, before the model is loaded."""
    if args.min_score is None or args.llm:
        return
    from pusl.fusion.folder import is_fused
    from pusl.hub import model_folder

    probable = args.calibrate is not None or is_fused(model_folder(args.model))
    kind = "probability" if probable else "log-probability"
    threshold(args.min_score, kind, "--min-score", "or add --calibrate")


def _model(args: argparse.Namespace) -> Any:
    if args.model:
        return args.model
    from pusl.llm.client import LLMSpec, refuse_decoding

    # Before the store of answers is made.
    names = ("strategy", "allow_repeats", "vocabulary", "min_score", "num_beams", "top_p")
    refuse_decoding({name: getattr(args, name) for name in names})
    if (args.workers or 1) > 1 or args.engine != "local":
        flag = f"--workers {args.workers}" if (args.workers or 1) > 1 else f"--engine {args.engine}"
        raise InputError(f"{flag} does not work with --llm, which asks from one process; use --concurrency instead")

    given = {name: value for name, value in vars(args).items() if (name, value) != ("temperature", None)}
    cache = args.cache or str(Path(args.output).absolute().parent / "llm_answers.sqlite")
    return LLMSpec(build(LLMSettings, {**given, "model": args.llm}), cache)


def describe(summary: Any, output: str | os.PathLike[str]) -> str:
    """The last lines a user sees."""
    done = summary.items + summary.rejects - summary.resumed
    rate = f", {done / summary.seconds:,.1f} items/s" if summary.seconds and done > 0 else ""
    lines = [f"{output}: {summary.items:,} items in {summary.seconds:,.1f} s{rate}"]
    for value, what in (
        (summary.resumed, "were done by an earlier run"),
        (summary.repeats, "have the text of an earlier item and were computed once"),
        (summary.without_known, "have no keyphrases of their own"),
        (summary.exhausted, "got fewer keyphrases than asked for ('exhausted')"),
        (summary.truncated, "were cut, being longer than the model reads ('truncated'); see --long window"),
        (summary.no_usable_text, "have no usable text (see 'reason')"),
    ):
        if value:
            lines.append(f"  {value:,} {what}")
    if summary.rejects:
        lines.append(f"  bad lines left out: {summary.rejects:,}, see {output}.rejects")
    return "\n".join(lines)
