"""Commands and their flags -> completion scripts for bash, zsh and fish."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Flag:
    """A flag, what it is for, and the values it takes, if they are few."""

    names: tuple[str, ...]
    help: str
    values: tuple[str, ...] = ()
    takes_value: bool = True


def flags_of(parser: argparse.ArgumentParser) -> list[Flag]:
    """The flags of one command."""
    found = []
    for action in parser._actions:
        names = tuple(action.option_strings)
        if names and action.help is not argparse.SUPPRESS:
            words = " ".join((action.help or "").replace("%%", "%").split())
            values = tuple(map(str, action.choices or ()))
            found.append(Flag(names, words.partition(" (default")[0], values, action.nargs != 0))
    return found


def script(shell: str, commands: Mapping[str, tuple[str, Sequence[Flag]]]) -> str:
    """The script for a shell; `commands` maps a name (`data split`) to its summary and flags."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands)


def _tree(commands: Mapping[str, tuple[str, Sequence[Flag]]]) -> dict[str, list[str]]:
    """Words that may follow: {"": first words, "data": second words}."""
    following: dict[str, list[str]] = {"": []}
    for name in commands:
        first, _, second = name.partition(" ")
        if first not in following[""]:
            following[""].append(first)
        if second:
            following.setdefault(first, []).append(second)
    return following


def _cases(commands: Mapping[str, tuple[str, Sequence[Flag]]], indent: str) -> str:
    """Branches of a `case`: the flags of each command, and the values of flags that have few."""
    lines = []
    for name, (_, flags) in commands.items():
        for flag in flags:
            if flag.values:
                patterns = "|".join(f"'{name} {one}'" for one in flag.names)
                lines.append(f"{indent}{patterns}) values='{' '.join(flag.values)}' ;;")
        files = "|".join(
            f"'{name} {one}'" for flag in flags if flag.takes_value and not flag.values for one in flag.names
        )
        if files:
            lines.append(f"{indent}{files}) files=1 ;;")
    return "\n".join(lines)


def _bash(commands: Mapping[str, tuple[str, Sequence[Flag]]]) -> str:
    following = _tree(commands)
    groups = [name for name in following if name]
    words = "\n".join(
        f"    '{name}') words='{' '.join(one for flag in flags for one in flag.names)}' ;;"
        for name, (_, flags) in commands.items()
    )
    seconds = "\n".join(f"    '{name}') words='{' '.join(following[name])}' ;;" for name in groups)
    return f"""# pusl completion for bash: eval "$(pusl completion bash)"
_pusl() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local name="${{COMP_WORDS[1]}}" words='' values='' files=''
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{" ".join(following[""])} --help --version' -- "$current"))
    return
  fi
  case "$name" in
    {"|".join(groups) or "''"})
      if [ "$COMP_CWORD" -gt 2 ]; then name="$name ${{COMP_WORDS[2]}}"; fi ;;
  esac
  case "$name $previous" in
{_cases(commands, "    ")}
  esac
  if [ -n "$values" ]; then
    COMPREPLY=($(compgen -W "$values" -- "$current"))
    return
  fi
  case "$name" in
{seconds}
{words}
  esac
  if [ -z "$files" ] && {{ [ "${{current:0:1}}" = - ] || [ "$COMP_CWORD" -eq 2 ]; }}; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  fi
}}
complete -o default -F _pusl pusl
"""


def _zsh(commands: Mapping[str, tuple[str, Sequence[Flag]]]) -> str:
    following = _tree(commands)
    groups = [name for name in following if name]
    words = "\n".join(
        f"    '{name}') words=({' '.join(one for flag in flags for one in flag.names)}) ;;"
        for name, (_, flags) in commands.items()
    )
    seconds = "\n".join(f"    '{name}') words=({' '.join(following[name])}) ;;" for name in groups)
    return f"""#compdef pusl
# pusl completion for zsh: eval "$(pusl completion zsh)" after compinit
_pusl() {{
  local name="${{words[2]}}" previous="${{words[CURRENT-1]}}" values='' files=''
  local -i position=$CURRENT
  local current="${{words[CURRENT]}}"
  local -a typed=("${{(@)words}}")
  local -a words=()
  if (( position == 2 )); then
    compadd -- {" ".join(following[""])} --help --version
    return
  fi
  case "$name" in
    {"|".join(groups) or "''"}) if (( position > 3 )); then name="$name ${{typed[3]}}"; fi ;;
  esac
  case "$name $previous" in
{_cases(commands, "    ")}
  esac
  if [[ -n "$values" ]]; then
    compadd -- ${{(s: :)values}}
    return
  fi
  case "$name" in
{seconds}
{words}
  esac
  if [[ -z "$files" && ( "$current" == -* || $position -eq 3 ) ]] && (( $#words )); then
    compadd -- $words
  fi
  if [[ "$current" != -* ]]; then _files; fi
}}
compdef _pusl pusl
"""


def _fish(commands: Mapping[str, tuple[str, Sequence[Flag]]]) -> str:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    following = _tree(commands)
    lines = ["# pusl completion for fish: pusl completion fish | source"]
    for first in following[""]:
        about = commands[first][0] if first in commands else "convert, split and look at data"
        lines.append(f"complete -c pusl -n __fish_use_subcommand -f -a {first} -d {quoted(about)}")
    for name, (about, flags) in commands.items():
        first, _, second = name.partition(" ")
        seen = f"__fish_seen_subcommand_from {first}"
        if second:
            others = " ".join(following[first])
            lines.append(
                f"complete -c pusl -n '{seen}; and not __fish_seen_subcommand_from {others}' -f -a {second} "
                f"-d {quoted(about)}"
            )
            seen += f"; and __fish_seen_subcommand_from {second}"
        for flag in flags:
            names = " ".join(f"-l {one[2:]}" if one.startswith("--") else f"-s {one[1:]}" for one in flag.names)
            values = f" -x -a {quoted(' '.join(flag.values))}" if flag.values else " -r" if flag.takes_value else ""
            lines.append(f"complete -c pusl -n '{seen}' {names}{values} -d {quoted(flag.help)}")
    return "\n".join(lines) + "\n"
