"""Parsers and config files -> the reference pages of commands and configs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path

from pusl.cli import COMMANDS, Parser
from pusl_eval.columns import Columns

_HEAD = "<!-- made by scripts/docs/pages.py; do not edit -->\n"
_COLUMNS = [field.name for field in fields(Columns)]
_INTRODUCTION = """`pusl COMMAND --help` shows the same in the terminal.

- Exit code 0 means success. With 2, your input or your flags are wrong, and one or two lines say what and where.
  With 1, something else went wrong.
- Outputs are never half-written. To replace an existing output, add `--force`.
- If a run is killed, type the same command again and it continues. `pusl train` and `pusl post-train` also need
  `--resume`.
- μ (mu) is the mean number of keyphrases per training item. Formulas of all scores: [Metrics](metrics.md).
- A flag with a `--no-` form is off unless its default says otherwise.
- *The paper* is the publication of PUSL ([Sources](../sources.md#pusl)).
- Do your files name their columns differently? See [Column flags](#column-flags).
"""


def commands_page() -> str:
    """Every command: what it does, an example, and tables of its flags. Column flags are explained once."""
    parts = [_HEAD, "# Commands\n", _INTRODUCTION, "## All commands\n"]
    listed = [f"- [`pusl {name}`]({_anchor(name)}): {text}" for name, (_, text) in COMMANDS.items()]
    parts.append("\n".join(listed) + "\n")
    for name, (path, text) in COMMANDS.items():
        module = import_module(path)
        parser = Parser(prog=f"pusl {name}", description=module.__doc__)
        module.add_arguments(parser)
        parts.append(f"## pusl {name}\n")
        parts += _command(parser, text)
    parts.append("## Column flags\n\nEvery command that reads items takes these flags, or most of them.\n")
    parser = Parser()
    from pusl_eval.columns import add_columns

    add_columns(parser)
    parts.append(_table([action for action in parser._actions if action.dest in _COLUMNS]))
    return "\n".join(parts)


def _anchor(name: str) -> str:
    return f"#pusl-{name.replace(' ', '-')}"


def _command(parser: argparse.ArgumentParser, summary: str) -> list[str]:
    children = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    parts = [_prose(parser.description or summary)]
    if children:
        return parts + _choices(parser.prog, children[0].choices)
    return parts + _groups(parser._action_groups)


def _choices(prog: str, children: dict[str, argparse.ArgumentParser]) -> list[str]:
    """Sub-commands: the flags that all have come first, then each with its own."""
    first = next(iter(children.values()))
    parts = ["**Flags of every method**\n", *_groups(g for g in first._action_groups if g.title == "options")]
    parts += _groups(g for g in first._action_groups if (g.title or "").startswith("columns"))
    seen: dict[tuple[str, ...], str] = {}
    for name, child in children.items():
        summary, _, rest = (child.description or "").partition("\n\n")
        own = [a for g in child._action_groups if (g.title or "").startswith("the ") for a in g._group_actions]
        twin = seen.setdefault(tuple(action.dest for action in own), name)
        parts.append(f"### {prog} {name}\n")
        parts.append(_prose(f"{summary[0].upper()}{summary[1:]}.\n\n{rest.partition('example:')[0]}"))
        if own and twin == name:
            parts.append(_table(own))
        elif own:
            told = {action.help for action in children[twin]._actions}
            other = _table([action for action in own if action.help not in told])
            link = f"[`{prog} {twin}`]({_anchor(f'baseline {twin}')})"
            parts += [f"Its flags are those of {link}{', but:' if other else '.'}\n", *filter(None, [other])]
    return parts


def _groups(groups: Iterable[argparse._ArgumentGroup]) -> list[str]:
    """A table for each group; arguments without a flag stand above the first flags."""
    parts: list[str] = []
    waiting: list[argparse.Action] = []
    for group in groups:
        title = group.title or ""
        actions = [
            a for a in group._group_actions if a.help is not argparse.SUPPRESS and "--help" not in a.option_strings
        ]
        if title == "positional arguments":
            waiting = actions
            continue
        columns = [action.dest for action in actions if action.dest in _COLUMNS]
        rows = [*waiting, *(action for action in actions if action.dest not in _COLUMNS)]
        waiting = []
        if rows and title != "options":
            parts.append(f"**{_code(title[:1].upper() + title[1:])}**\n")
        if rows:
            parts.append(_table(rows))
        if columns:
            of = title.partition(" of ")[2]
            left = [f"`--{name.replace('_', '-')}`" for name in _COLUMNS if name not in columns]
            parts.append(
                f"{f'For {_code(of)}, also the' if of else 'Also the'} [column flags](#column-flags)"
                f"{f', without {_listed(left)}' if left else ''}.\n"
            )
    return parts


def _listed(words: Sequence[str], last: str = "and") -> str:
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _table(actions: Sequence[argparse.Action]) -> str:
    if not actions:
        return ""
    head = "flag" if all(action.option_strings for action in actions) else "argument"
    rows = [f"| {head} | meaning |", "|---|---|"]
    return "\n".join(rows + [f"| {_flag(action)} | {_meaning(action)} |" for action in actions]) + "\n"


def _prose(text: str) -> str:
    """Paragraphs as they are; commands become code blocks, `  word   what it is` lines become lists."""
    blocks: list[tuple[str, list[str]]] = []
    for line in text.strip().splitlines():
        kind, last = blocks[-1] if blocks else ("", [""])
        entry = re.match(r" {2,}(\S.*?) {2,}(\S.*)", line)
        if kind == "code" and last[-1].endswith("\\"):
            last.append("    " + line.strip())
        elif re.match(r"\s+(pusl|python|accelerate|curl|eval) \S", line):
            blocks = blocks if kind == "code" else [*blocks, ("code", [])]
            blocks[-1][1].append(line.strip())
        elif kind == "list" and line.startswith("    "):
            last[-1] += " " + line.strip()
        elif entry:
            blocks = blocks if kind == "list" else [*blocks, ("list", [])]
            blocks[-1][1].append(f"- `{entry[1]}`: {entry[2]}")
        else:
            blocks = blocks if kind == "text" else [*blocks, ("text", [])]
            opens = line.endswith(":") and not any(blocks[-1][1][-1:])
            blocks[-1][1].append(line[:1].upper() + line[1:] if opens else line)
    shown = []
    for kind, lines in blocks:
        body = "\n".join(lines).strip("\n")
        shown.append(f"```sh\n{body}\n```" if kind == "code" else _code(body))
    return "\n\n".join(shown) + "\n"


def _code(text: str) -> str:
    """Flags in running text are set as code."""
    parts = text.split("`")
    parts[::2] = [
        re.sub(r"(?<![\w-])(--[a-z](?:[a-z-]*[a-z])?|-k)(?![\w-])", r"`\1`", part).replace("<", "&lt;")
        for part in parts[::2]
    ]
    return "`".join(parts)


def _flag(action: argparse.Action) -> str:
    """`--flag` and what follows it, which may stand on the next line."""
    shown = action.metavar if isinstance(action.metavar, str) else None
    if not action.option_strings:
        return f"`{shown or action.dest.upper()}`"
    names = " ".join(f"`{name}`" for name in action.option_strings)
    if action.nargs != 0:
        names += f" `{shown or ('X' if action.choices else action.dest.upper())}`"
    return names + (" (needed)" if action.required else "")


def _meaning(action: argparse.Action) -> str:
    text = action.help or ""
    try:
        text = text % {**vars(action), "prog": "pusl"}
    except (TypeError, ValueError, KeyError):
        text = text.replace("%%", "%")
    choices = [str(choice) for choice in action.choices or ()]
    if not all(re.search(rf"(?<![\w-]){re.escape(choice)}(?![\w-])", text) for choice in choices):
        said, default, value = text.partition(" (default: ")
        text = f"{said}; one of {', '.join(choices)}{default}{value}"
    return _cell(text)


def _cell(text: str) -> str:
    return _code(re.sub(r"\s+", " ", text).replace("|", "\\|").strip())


def configs_page(folder: Path) -> str:
    """The configs that come with PUSL, and every key of a training config."""
    from pusl.commands.train import add_arguments
    from pusl.training.train_config import TrainConfig

    parts = [_HEAD, "# Configs\n"]
    parts.append(
        "`pusl train --config FILE` reads its settings from a YAML file.\nThe keys are the flags of `pusl train`, with "
        "underscores instead of hyphens.\nA flag overrides the file, and the file overrides the defaults.\nAn unknown "
        "key is an error that names the most similar key.\n"
    )
    parts.append("## Configs that come with PUSL\n")
    for path in sorted(folder.glob("*.yaml")):
        first, _, rest = path.read_text(encoding="utf-8").partition("\n")
        parts.append(f"### {path.stem}\n\n{first.lstrip('# ').strip()}\n\n```yaml\n{rest.strip()}\n```\n")
    parser = Parser()
    add_arguments(parser)
    keys = {field.name for field in fields(TrainConfig)}
    actions = [action for action in parser._actions if action.dest in keys]
    rows = [f"| `{action.dest}` | {_meaning(action)} |" for action in actions]
    return "\n".join(parts) + "\n## Every key\n\n| key | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"
