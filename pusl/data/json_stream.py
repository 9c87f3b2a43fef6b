"""A JSON list, or JSON values one after the other -> the values, one at a time, whatever the file's size."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pusl_eval.files import MAX_LINE, InputError, is_encodable
from pusl_eval.files.lines import reading

BLOCK = 1 << 16
_SPACE = " \t\r\n"


def is_json_list(path: str | Path) -> bool:
    """Whether the file begins with a list."""
    with reading(path) as file:
        return file.content.read(BLOCK).removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"["


def json_values(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Streams (number, value) of a list, or of values on lines of their own. Numbers start at 1.

    A value longer than a line may be is refused, so memory stays bounded.
    """
    decoder = json.JSONDecoder(parse_constant=_refuse)
    with reading(path) as file:
        text = codecs.getreader("utf-8-sig")(file.content)
        buffer, number, inside, ended, asked = "", 0, False, False, 0
        while True:
            buffer = buffer.lstrip(_SPACE + ("," if number else ""))
            if not number and not inside and buffer.startswith("["):
                buffer, inside = buffer[1:].lstrip(_SPACE), True
            if inside and buffer.startswith("]"):
                if (buffer[1:] + _read(text, path)).strip(_SPACE):
                    raise InputError(f"{path}: something follows the end of the list")
                return
            if buffer and (ended or len(buffer) >= asked):
                try:
                    value, end = decoder.raw_decode(buffer)
                except (ValueError, RecursionError) as error:
                    if ended or len(buffer) > MAX_LINE:
                        raise InputError(f"{path}: value {number + 1} is not JSON ({error})") from None
                    asked = 2 * len(buffer)  # cut off, as far as one can tell: decode again when twice as much is there
                else:
                    if ended or end < len(buffer):  # otherwise a number may go on
                        number += 1
                        buffer, asked = buffer[end:], 0
                        if not is_encodable(json.dumps(value, ensure_ascii=False)):
                            raise InputError(f"{path}: value {number} contains half of a surrogate pair")
                        yield number, value
                        continue
            if ended:
                if inside:
                    raise InputError(f"{path}: the list does not end; the file is cut short")
                return
            block = _read(text, path)
            buffer, ended = buffer + block, not block


def _read(text: codecs.StreamReader, path: str | Path) -> str:
    try:
        return text.read(BLOCK)
    except UnicodeDecodeError:
        raise InputError(f"{path}: not valid UTF-8; re-encode it as UTF-8") from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
