"""The flags that several commands share are spelled and explained the same everywhere."""

import argparse
from importlib import import_module

import pytest

from pusl.cli import COMMANDS, Parser, main
from pusl_eval.flags import FORCE, SEED, integer

WITH_K = ["generate", "evaluate", "rerank", "judge", "baseline", "post-train"]


def parser_of(name):
    module = import_module(COMMANDS[name][0])
    parser = Parser(prog=f"pusl {name}", description=module.__doc__)
    module.add_arguments(parser)
    children = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return children[0].choices["svm"] if children else parser


def flag(parser, spelling):
    return next((action for action in parser._actions if spelling in action.option_strings), None)


@pytest.mark.parametrize("name", COMMANDS)
def test_shared_flags_have_the_same_words_everywhere(name):
    parser = parser_of(name)
    force, seed, threads, k = (flag(parser, text) for text in ("--force", "--seed", "--threads", "--k"))
    assert force is None or force.help == FORCE
    assert seed is None or seed.help.startswith(SEED)
    assert threads is None or threads.help.startswith("CPU threads per process")
    assert flag(parser, "-k") is k
    assert k is not None or name not in WITH_K


@pytest.mark.parametrize("name", COMMANDS)
def test_no_help_text_breaks_the_help(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: pusl {name}")


@pytest.mark.parametrize("spelling", ["-k", "--k"])
def test_both_spellings_of_k_work(spelling):
    given = ["--predictions", "a", "--output", "b", "--objective", "brs", spelling, "3"]
    assert parser_of("rerank").parse_args(given).k == 3
    scored = parser_of("evaluate").parse_args(["--references", "a", "--predictions", "b", spelling, "3", "2mu"])
    assert scored.k == ["3", "2mu"]


@pytest.mark.parametrize(
    ("text", "message"), [("0", "0 must be at least 1"), ("1.5", "'1.5' is not an integer"), ("x", "not an integer")]
)
def test_an_integer_that_is_none_is_named(text, message):
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        integer(1)(text)
