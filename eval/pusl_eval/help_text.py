"""A command's docstring and flags -> help of at most 80 columns, and errors of two lines."""

from __future__ import annotations

import argparse
import re
import shlex
import textwrap

from pusl_eval.errors import brief

WIDTH = 80
PROGRAMS = ("pusl", "pusl-eval", "accelerate", "python", "pip")
DEEPER = "    "  # what a continued example is indented by
_ENTRY = re.compile(r" +\S+(?: \S+)*  +(?=\S)")  # a name and the space before its explanation


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Argparse's help, never wider than 80 columns: prose is filled, long examples go on behind a backslash."""

    def __init__(self, prog: str, **settings: int) -> None:
        settings.setdefault("width", WIDTH)
        super().__init__(prog, **settings)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return fill(text, width)

    def _split_lines(self, text: str, width: int) -> list[str]:
        """A flag's help, without breaking other flags at their hyphens."""
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """Argparse with errors of two lines and help that keeps the examples' line breaks."""

    def __init__(self, **kwargs: object) -> None:
        kwargs.setdefault("formatter_class", Formatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(**kwargs)  # type: ignore[arg-type]

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, brief(f"{self.prog}: {message}").replace("\n", " ") + f"\nTry `{self.prog} --help`.\n")


def fill(text: str, width: int = WIDTH) -> str:
    """Paragraphs filled to the width; so are explanations beside a name; other indented lines stay as they are.

    >>> print(fill("Long prose goes on\\nhere.\\n\\nexample:\\n  pusl train --out models/one --seed 1", 24))
    Long prose goes on here.
    <BLANKLINE>
    example:
      pusl train \\
          --out models/one \\
          --seed 1
    >>> print(fill("  F1@k, F1@O  balance of precision and\\n              recall", 34))
      F1@k, F1@O  balance of precision
                  and recall
    """
    done: list[str] = []
    prose: list[str] = []

    def flush() -> None:
        if prose:
            done.extend(textwrap.wrap(" ".join(prose), width, break_on_hyphens=False))
            prose.clear()

    for line in _joined(text.strip("\n").splitlines()):
        if not line.strip() or line.startswith(" "):
            flush()
            done.extend(_kept(line, width))
            continue
        prose.append(line.strip())
        if line.endswith(":"):
            flush()
    flush()
    return "\n".join(done)


def _joined(lines: list[str]) -> list[str]:
    """Lines that end in a backslash with those that continue them, and names with all of their explanation."""
    joined: list[str] = []
    for line in lines:
        if joined and joined[-1].endswith("\\"):
            joined[-1] = f"{joined[-1][:-1].rstrip()} {line.strip()}"
        elif joined and _ENTRY.match(joined[-1]) and _indent(line) > _indent(joined[-1]) and not _ENTRY.match(line):
            joined[-1] += f" {line.strip()}"
        else:
            joined.append(line.rstrip())
    return joined


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _kept(line: str, width: int) -> list[str]:
    """A line that is too long, broken: a command behind backslashes, an explanation below its own beginning."""
    if len(line) <= width:
        return [line]
    indent = " " * _indent(line)
    if line.split()[0] in PROGRAMS:
        return _command(line, indent, width)
    entry = _ENTRY.match(line)
    head = entry.group() if entry else indent
    hang = " " * len(head)
    return textwrap.wrap(line[len(head) :], width, initial_indent=head, subsequent_indent=hang, break_on_hyphens=False)


def _command(line: str, indent: str, width: int) -> list[str]:
    """A command over several lines: a flag stays with its values where they fit."""
    try:
        words = shlex.split(line, posix=False)
    except ValueError:
        words = line.split()
    groups: list[str] = []
    for word in words:
        room = width - len(indent + DEEPER) - 3  # a space, and a space with the backslash
        fits = groups and groups[-1].startswith("-") and len(groups[-1]) + len(word) <= room
        if groups and not word.startswith("-") and (fits or len(groups) == 1):
            groups[-1] += f" {word}"
        else:
            groups.append(word)
    lines, current = [], indent
    for group in groups:
        if current.strip() and len(current) + len(group) + 3 > width:
            lines.append(current.rstrip() + " \\")
            current = indent + DEEPER
        current += group + " "
    return [*lines, current.rstrip()]
