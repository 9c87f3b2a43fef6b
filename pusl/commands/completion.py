"""Prints a script that lets a shell complete commands, flags and their values.

examples:
  eval "$(pusl completion bash)"  # in ~/.bashrc
  eval "$(pusl completion zsh)"   # in ~/.zshrc, after compinit
  pusl completion fish > ~/.config/fish/completions/pusl.fish
"""

from __future__ import annotations

import argparse
from importlib import import_module

from pusl.commands.completion_script import SHELLS, flags_of, script


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The shell."""
    parser.add_argument("shell", choices=SHELLS, help="your shell")


def run(args: argparse.Namespace) -> None:
    """Asks every command for its flags and prints the script."""
    from pusl.cli import COMMANDS, Parser

    commands = {}
    for name, (module, about) in COMMANDS.items():
        parser = Parser(prog=f"pusl {name}")
        import_module(module).add_arguments(parser)
        commands[name] = (about, flags_of(parser))
    print(script(args.shell, commands), end="")
