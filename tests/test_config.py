"""Defaults < YAML < flags, and errors that name the key."""

import argparse
from dataclasses import dataclass
from pathlib import Path

import pytest

from pusl.config import add_flags, build, option
from pusl_eval.files import InputError


@dataclass
class Sample:
    learning_rate: float = option(1e-3, "step size", minimum=0)
    order: str = option("given", "order of keyphrases", choices=("given", "shuffle"))
    steps: int | None = option(None, "stop after this many", minimum=1)
    fast: bool = option(False, "hurry")


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_flags(parser, Sample)
    return parser.parse_args(words)


def test_flags_beat_yaml_which_beats_defaults(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("learning-rate: 2e-4\nsteps: 7\n")
    built = build(Sample, parse("--steps", "9", "--fast"), file)
    assert built == Sample(2e-4, "given", 9, True)
    assert build(Sample, parse("--no-fast"), file) == Sample(2e-4, "given", 7, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("learning_rat: 1", "unknown key 'learning_rat'; did you mean 'learning_rate'?"),
        ("zzz: 1", "known keys: learning_rate, order, steps, fast"),
        ("steps: many", "key 'steps': expected int, found 'many'"),
        ("steps: 0", "'steps' is 0; it must be at least 1"),
        ("order: random", "'order' is 'random'; allowed: given, shuffle"),
        ("fast: 1", "key 'fast': expected bool, found 1"),
        ("- a\n- b", "expected `key: value` lines"),
        ("a: [", "not valid YAML"),
    ],
)
def test_errors_name_the_key(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        build(Sample, parse(), file)
    assert expected in str(error.value)


def test_help_shows_text_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "step size (default: 0.001)" in shown and "--learning-rate X" in shown and "--no-fast" in shown
