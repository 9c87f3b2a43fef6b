"""A dataclass of options -> command-line flags, and flags -> the checked dataclass.

An options class is a dataclass whose fields are made with `option(default, help)`. `add_flags` turns the
fields into flags, `from_flags` builds the class from those that were given. A value that is not allowed
is an InputError that names the field.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pusl_eval.errors import InputError
from pusl_eval.flags import MOST, Arguments

Config = TypeVar("Config")
Choices = Sequence[str] | Callable[[], Sequence[str]] | None


def option(
    default: Any, help: str, choices: Choices = None, minimum: float | None = None, flag: str | None = None,
    maximum: float | None = None,
) -> Any:  # fmt: skip
    """A dataclass field that knows its help text, its allowed values (or where to ask for them) and its flag.

    >>> @dataclasses.dataclass
    ... class Demo:
    ...     seed: int = option(0, "random seed", minimum=0)
    """
    metadata = {"help": help, "choices": choices, "minimum": minimum, "flag": flag, "maximum": maximum}
    return dataclasses.field(default=default, metadata=metadata)


WIDEST = 36  # characters of choices that still fit beside a flag in its help


def add_flags(parser: Arguments, cls: type, skip: Sequence[str] = (), only: Sequence[str] | None = None) -> None:
    """Adds `--field-name` for every option of `cls`. Flags that are not given stay absent, so YAML can fill them."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if field.name in skip or "help" not in field.metadata or (only is not None and field.name not in only):
            continue
        meta = field.metadata
        long = meta["flag"] or "--" + field.name.replace("_", "-")
        flags = [f"-{field.name}", long] if len(field.name) == 1 else [long]
        silent = field.default is False or field.default in (None, "", dataclasses.MISSING)
        shown = "" if silent else f" (default: {_readable(field.default)})"
        common: dict[str, Any] = {
            "dest": field.name, "default": argparse.SUPPRESS, "help": meta["help"].replace("%", "%%") + shown,
        }  # fmt: skip
        kind = plain_type(hints[field.name])
        if kind is bool:
            parser.add_argument(*flags, action=argparse.BooleanOptionalAction, **common)
        else:
            choices = _choices(meta)
            if choices and len(",".join(choices)) > WIDEST:
                common["help"] = f"{meta['help'].replace('%', '%%')}: {', '.join(choices)}{shown}"
                parser.add_argument(*flags, type=kind, choices=choices, metavar="NAME", **common)
                continue
            metavar = None if choices else {int: "N", float: "X"}.get(kind, field.name.rpartition("_")[2].upper())
            parser.add_argument(*flags, type=kind, choices=choices, metavar=metavar, **common)


def add_groups(parser: argparse.ArgumentParser, cls: type, groups: Mapping[str, Sequence[str]]) -> None:
    """The flags of `cls` in named groups; options that no group names come last, under "more"."""
    listed = [name for names in groups.values() for name in names]
    for title, names in groups.items():
        add_flags(parser.add_argument_group(title), cls, only=names)
    left = [field.name for field in dataclasses.fields(cls) if field.name not in listed and "help" in field.metadata]
    if left:
        add_flags(parser.add_argument_group("more"), cls, only=left)


def from_flags(cls: type[Config], args: argparse.Namespace | Mapping[str, Any]) -> Config:
    """A checked `cls` from the flags that were given; other names in `args` are ignored."""
    given = vars(args) if isinstance(args, argparse.Namespace) else args
    names = {field.name for field in dataclasses.fields(typing.cast(Any, cls))}
    return check(cls(**{name: value for name, value in given.items() if name in names}))


def check(config: Config) -> Config:
    """The config itself if every option has an allowed value, else an InputError that names the field."""
    for field in dataclasses.fields(typing.cast(Any, config)):
        value, meta = getattr(config, field.name), field.metadata
        choices = _choices(meta)
        if choices and value is not None and value not in choices:
            raise InputError(f"'{field.name}' is {value!r}; allowed: {', '.join(map(str, choices))}")
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"'{field.name}' is {value}; it must be a finite number")
        if type(value) is int and value > MOST:
            raise InputError(f"'{field.name}' is {str(value)[:20]}; it must be at most {MOST}")
        if meta.get("minimum") is not None and value is not None and value < meta["minimum"]:
            raise InputError(f"'{field.name}' is {value}; it must be at least {meta['minimum']}")
        if meta.get("maximum") is not None and value is not None and value > meta["maximum"]:
            raise InputError(f"'{field.name}' is {value}; it must be at most {meta['maximum']}")
    return config


def _readable(value: Any) -> str:
    """A default in a help text.

    >>> _readable(10.0), _readable(True)
    ('10', 'on')
    """
    return "on" if value is True else f"{value:g}" if isinstance(value, float) else str(value)


def _choices(meta: Mapping[str, Any]) -> Sequence[str] | None:
    choices: Choices = meta.get("choices")
    return choices() if callable(choices) else choices


def plain_type(hint: Any) -> type:
    """`int` from `int` or `int | None`."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return typing.cast(type, next(kind for kind in typing.get_args(hint) if kind is not type(None)))
    return typing.cast(type, hint)
