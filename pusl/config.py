"""YAML file + flags -> a checked dataclass.

A config is a dataclass whose fields are made with `option(default, help)`. `add_flags` turns the
fields into command-line flags, `build` merges defaults < YAML < flags, and whatever is unknown or
of the wrong type is an InputError that names the key and the allowed values.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pusl_eval.files import InputError, check_input
from pusl_eval.flags import Arguments

Config = TypeVar("Config")
Choices = Sequence[str] | Callable[[], Sequence[str]] | None

# Help of options that several configs have: the same words for the same thing.
THREADS = "CPU threads per process"
PRECISION = "number format of the model (default: bf16 on GPUs that have it, else fp32); tf32 needs a GPU, int8 a CPU"
PRECISIONS = ("fp32", "tf32", "bf16", "int8")
DEVICE = "where the model runs: cpu, cuda, cuda:N, mps or auto, which takes a GPU if there is one"


def option(
    default: Any, help: str, choices: Choices = None, minimum: float | None = None, flag: str | None = None
) -> Any:
    """A dataclass field that knows its help text, its allowed values (or where to ask for them) and its flag.

    >>> @dataclasses.dataclass
    ... class Demo:
    ...     seed: int = option(0, "random seed", minimum=0)
    """
    metadata = {"help": help, "choices": choices, "minimum": minimum, "flag": flag}
    return dataclasses.field(default=default, metadata=metadata)


def add_flags(parser: Arguments, cls: type, skip: Sequence[str] = ()) -> None:
    """Adds `--field-name` for every option of `cls`. Unset flags stay absent, so YAML can fill them."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if field.name in skip or "help" not in field.metadata:
            continue
        meta = field.metadata
        long = meta["flag"] or "--" + field.name.replace("_", "-")
        flags = [f"-{field.name}", long] if len(field.name) == 1 else [long]
        silent = field.default is False or field.default in (None, "", dataclasses.MISSING)
        shown = "" if silent else f" (default: {field.default})"
        common: dict[str, Any] = {
            "dest": field.name, "default": argparse.SUPPRESS, "help": meta["help"].replace("%", "%%") + shown,
        }  # fmt: skip
        kind = _plain(hints[field.name])
        if kind is bool:
            parser.add_argument(*flags, action=argparse.BooleanOptionalAction, **common)
        else:
            choices = _choices(meta)
            metavar = None if choices else {int: "N", float: "X"}.get(kind, field.name.rpartition("_")[2].upper())
            parser.add_argument(*flags, type=kind, choices=choices, metavar=metavar, **common)


def build(cls: type[Config], args: argparse.Namespace | Mapping[str, Any], path: str | Path | None = None) -> Config:
    """Defaults < the YAML file at `path` < flags that were given -> a checked `cls`."""
    given = vars(args) if isinstance(args, argparse.Namespace) else dict(args)
    names = {field.name for field in dataclasses.fields(typing.cast(Any, cls))}
    values = {**(read_yaml(path, cls) if path else {}), **{key: value for key, value in given.items() if key in names}}
    return check(cls(**values))


def read_yaml(path: str | Path, cls: type) -> dict[str, Any]:
    """A YAML mapping whose keys are fields of `cls`, values coerced to the fields' types."""
    import yaml

    try:
        loaded = yaml.safe_load(check_input(path).read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from None
    if not isinstance(loaded, dict):
        raise InputError(f"{path}: expected `key: value` lines, found {type(loaded).__name__}")
    hints = typing.get_type_hints(cls)
    values = {}
    for key, value in loaded.items():
        name = str(key).replace("-", "_")
        if name not in hints:
            near = difflib.get_close_matches(name, hints, 1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; known keys: {', '.join(hints)}"
            raise InputError(f"{path}: unknown key '{key}'{hint}")
        values[name] = _coerce(value, hints[name], f"{path}: key '{key}'")
    return values


def check(config: Config) -> Config:
    """The config itself if every option has an allowed value, else an InputError that names the field."""
    for field in dataclasses.fields(typing.cast(Any, config)):
        value, meta = getattr(config, field.name), field.metadata
        choices = _choices(meta)
        if choices and value is not None and value not in choices:
            raise InputError(f"'{field.name}' is {value!r}; allowed: {', '.join(map(str, choices))}")
        if meta.get("minimum") is not None and value is not None and value < meta["minimum"]:
            raise InputError(f"'{field.name}' is {value}; it must be at least {meta['minimum']}")
    return config


def _choices(meta: Mapping[str, Any]) -> Sequence[str] | None:
    choices: Choices = meta.get("choices")
    return choices() if callable(choices) else choices


def _plain(hint: Any) -> type:
    """`int` from `int` or `int | None`."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return typing.cast(type, next(kind for kind in typing.get_args(hint) if kind is not type(None)))
    return typing.cast(type, hint)


def _coerce(value: Any, hint: Any, where: str) -> Any:
    kind = _plain(hint)
    if value is None and hint is not kind:
        return None
    if kind is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 2e-4 as a string
        except ValueError:
            pass
    if type(value) is kind:
        return value
    raise InputError(f"{where}: expected {kind.__name__}, found {value!r}")
