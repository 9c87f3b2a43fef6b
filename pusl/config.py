"""YAML file + flags -> a checked dataclass.

A config is a dataclass whose fields are made with `option(default, help)`. `add_flags` turns the
fields into command-line flags, `build` merges defaults < YAML < flags, and whatever is unknown or
of the wrong type is an InputError that names the key and the allowed values.
"""

from __future__ import annotations

import argparse
import difflib
import os
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pusl_eval.files import InputError, check_input
from pusl_eval.options import Config, add_flags, add_groups, check, from_flags, option, plain_type

__all__ = ["add_flags", "add_groups", "build", "check", "find_config", "option", "read_yaml"]

# Help of options that several configs have: the same words for the same thing.
THREADS = "CPU threads per process"
PRECISION = "number format of the model (default: bf16 on GPUs that have it, else fp32); tf32 needs a GPU, int8 a CPU"
PRECISIONS = ("fp32", "tf32", "bf16", "int8")
DEVICE = "where the model runs: cpu, cuda, cuda:N, mps or auto, which takes a GPU if there is one"


def build(cls: type[Config], args: argparse.Namespace | Mapping[str, Any], path: str | Path | None = None) -> Config:
    """Defaults < the YAML file at `path` < flags that were given -> a checked `cls`."""
    given = vars(args) if isinstance(args, argparse.Namespace) else dict(args)
    return from_flags(cls, {**(read_yaml(path, cls) if path else {}), **given})


def read_yaml(path: str | Path, cls: type) -> dict[str, Any]:
    """A YAML mapping whose keys are fields of `cls`, values coerced to the fields' types."""
    import yaml

    try:
        loaded = yaml.safe_load(find_config(path).read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date like 2025-99-99, other encodings
        if isinstance(error, InputError):
            raise
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


def find_config(path: str | Path) -> Path:
    """A config file: a path, or the name of one that comes with PUSL, such as `tate`."""
    if os.path.exists(path) or Path(path).name != str(path) or Path(path).suffix:
        return check_input(path)
    shipped = {file.stem: file for file in _shipped_configs()}
    if str(path) not in shipped:
        known = f" (configs that come with PUSL: {', '.join(sorted(shipped))})" if shipped else ""
        raise InputError(f"{path}: no such file{known}")
    return shipped[str(path)]


def _shipped_configs() -> list[Path]:
    """configs/*.yaml of the checkout, or those that the wheel installed."""
    beside = Path(__file__).resolve().parent.parent / "configs"
    if beside.is_dir() and (beside.parent / "pyproject.toml").is_file():
        return sorted(beside.glob("*.yaml"))
    from importlib import metadata

    try:
        files = metadata.files("pusl") or []
    except metadata.PackageNotFoundError:
        return []
    found = [Path(str(file.locate())) for file in files if file.match("share/pusl/configs/*.yaml")]
    return sorted(file for file in found if file.is_file())


def _coerce(value: Any, hint: Any, where: str) -> Any:
    kind = plain_type(hint)
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
