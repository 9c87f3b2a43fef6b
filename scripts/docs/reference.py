"""Parsers and config files -> the reference pages of commands and configs."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

from pusl.cli import COMMANDS, Parser

_HEAD = "<!-- made by scripts/docs/pages.py; do not edit -->\n"


def commands_page() -> str:
    """Every command: what it does, an example, and a table of its flags."""
    parts = [_HEAD, "# Commands\n"]
    parts.append(
        "`pusl COMMAND --help` shows the same in the terminal.\n\n- Exit code 0 means success. With 2, your input or "
        "your flags are wrong, and one or two lines say what and where.\n  With 1, something else went wrong.\n"
        "- Outputs are never half-written. To replace an existing output, add `--force`.\n"
        "- If a run is killed, type the same command again and it continues.\n\n## All commands\n"
    )
    parts.append(
        "\n".join(f"- [`pusl {name}`](#pusl-{name.replace(' ', '-')}): {text}" for name, (_, text) in COMMANDS.items())
        + "\n"
    )
    for name, (path, text) in COMMANDS.items():
        module = import_module(path)
        parser = Parser(prog=f"pusl {name}", description=module.__doc__)
        module.add_arguments(parser)
        parts.append(f"## pusl {name}\n")
        parts += _command(parser, text)
    return "\n".join(parts)


def _command(parser: argparse.ArgumentParser, summary: str) -> list[str]:
    parts = [_prose(parser.description or summary)]
    for group in parser._action_groups:
        actions = [
            a for a in group._group_actions if a.help is not argparse.SUPPRESS and "--help" not in a.option_strings
        ]
        if not actions:
            continue
        plain = group.title in ("options", "positional arguments", None)
        parts.append(f"**{group.title[:1].upper()}{group.title[1:]}**\n" if not plain and group.title else "")
        rows = ["| flag | meaning |", "|---|---|"]
        rows += [f"| {_flag(action)} | {_meaning(action)} |" for action in actions]
        parts.append("\n".join(rows) + "\n")
    if parser.epilog and "metrics (formulas" not in parser.epilog:
        parts.append(_prose(parser.epilog))
    return parts


def _prose(text: str) -> str:
    """Paragraphs as they are; indented lines become code blocks."""
    lines: list[str] = []
    inside = False
    for line in text.strip().splitlines():
        code = (
            line.startswith("    ")
            or (inside and not line.strip())
            or bool(re.match(r"\s+(pusl|python|accelerate) ", line))
        )
        if code and not inside and line.strip():
            lines += ["", "```sh"]
            inside = True
        elif inside and line.strip() and not code:
            while lines and not lines[-1].strip():
                lines.pop()
            lines += ["```", ""]
            inside = False
        continued = inside and lines[-1].endswith("\\")
        lines.append("    " * continued + line.strip() if inside else line)
    if inside:
        lines.append("```")
    return "\n".join(lines) + "\n"


def _flag(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings) or action.dest.upper()
    if action.option_strings and action.nargs != 0:
        shown = action.metavar if isinstance(action.metavar, str) else None
        names += " " + (shown or (action.dest.upper() if not action.choices else "X"))
    return f"`{names}`" + (" (needed)" if action.required and action.option_strings else "")


def _meaning(action: argparse.Action) -> str:
    text = action.help or ""
    try:
        text = text % {**vars(action), "prog": "pusl"}
    except (TypeError, ValueError, KeyError):
        text = text.replace("%%", "%")
    if action.choices and not all(str(choice) in text for choice in action.choices):
        text += f" One of: {', '.join(map(str, action.choices))}."
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;").strip()


def configs_page(folder: Path) -> str:
    """Every key of a training config with its default, and the configs that come with PUSL."""
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
    parts.append("## Every key\n\n| key | default | meaning |\n|---|---|---|")
    rows = []
    for field in fields(TrainConfig):
        meaning = str(field.metadata.get("help", ""))
        default = "" if "factory" in repr(field.default) or "MISSING" in repr(field.default) else repr(field.default)
        meaning = re.sub(r"\s+", " ", meaning).replace("|", "\\|").replace("%%", "%").replace("<", "&lt;")
        rows.append(f"| `{field.name}` | {f'`{default}`' if default else ''} | {meaning} |")
    return "\n".join(parts) + "\n" + "\n".join(rows) + "\n"
