"""argv -> one command -> an exit code.

0 done; 2 the user's input or flags are wrong; 1 anything else. Only the chosen command's module is
imported, and that module imports torch only when it runs, so help is instant.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from pusl.messages import show_messages
from pusl.process import end_with_command, prepare_process
from pusl_eval.errors import exit_code
from pusl_eval.files import InputError
from pusl_eval.help_text import Parser as Parser

COMMANDS = {
    "demo": ("pusl.commands.demo", "the whole job once, on a small simulated shop"),
    "data stats": ("pusl.commands.data_stats", "describe files: labels per item, rare labels, overlap"),
    "data split": ("pusl.commands.data_split", "split into train, dev and test; equal texts stay together"),
    "data simulate": ("pusl.commands.data_simulate", "a simulated shop whose complete labels are known"),
    "data thin": ("pusl.commands.data_thin", "hide some labels of a file, to study missing labels"),
    "data group": ("pusl.commands.data_group", "mark items as hot or rare, with many or few keyphrases"),
    "data convert": ("pusl.commands.data_convert", "read other people's formats, and write them"),
    "train": ("pusl.commands.train", "train a T5 model with one of four paradigms"),
    "post-train": ("pusl.commands.post_train", "train again on items with many keyphrases (PUSL+PT)"),
    "generate": ("pusl.commands.generate", "k different keyphrases with scores for each item"),
    "score": ("pusl.commands.score", "how well given phrases fit given items"),
    "evaluate": ("pusl.commands.evaluate", "score predictions, fairly where labels are missing"),
    "fuse": ("pusl.commands.fuse", "combine models, similar items and classifiers"),
    "baseline": ("pusl.commands.baseline", "kNN, SVM and others, which choose among known labels"),
    "rerank": ("pusl.commands.rerank", "choose k keyphrases per item, the whole catalog in view"),
    "judge": ("pusl.commands.judge", "ask an LLM which keyphrases are relevant"),
    "report": ("pusl.commands.report", "one HTML page with tables, charts and examples"),
    "serve": ("pusl.commands.serve", "HTTP API and web page"),
    "push": ("pusl.commands.push", "upload a finished model to the Hugging Face Hub"),
    "completion": ("pusl.commands.completion", "tab completion for bash, zsh or fish"),
    "env": ("pusl.commands.env", "versions and hardware, to paste into a bug report"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    prepare_process()
    end_with_command()
    show_messages()
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_code(lambda: _dispatch(words), "pusl")


def _dispatch(argv: list[str]) -> int:
    words = argv[:2] if argv[:1] == ["data"] else argv[:1]
    name = " ".join(words)
    if name in COMMANDS:
        module = import_module(COMMANDS[name][0])
        parser = Parser(prog=f"pusl {name}", description=module.__doc__)
        module.add_arguments(parser)
        args = parser.parse_args(argv[len(words) :])
        return module.run(args) or 0
    if not argv or name in ("-h", "--help", "help", "data", "data -h", "data --help"):
        print(_overview("data" if words[:1] == ["data"] else ""), end="")
        return 0
    if name in ("-V", "--version"):
        from pusl import __version__

        print(f"pusl {__version__}")
        return 0
    raise InputError(f"unknown command {name!r}; `pusl --help` lists them")


def _overview(group: str = "") -> str:
    shown = {name: text for name, (_, text) in COMMANDS.items() if name.startswith(group)}
    rows = "".join(f"  {name:<15} {text}\n" for name, text in shown.items())
    return (
        "usage: pusl COMMAND [flags]\n\n"
        "Keyphrases for catalogs whose labels are incomplete: train, generate, evaluate.\n\n"
        f"commands:\n{rows}\n"
        "`pusl COMMAND --help` explains every flag with an example.\nStart with `pusl demo`.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
