"""A CSV or TSV file whose flags were not given -> how it is written, with a note for every guess.

Only `pusl data convert` guesses: it runs once and its notes are read. Every other command asks for the flag.
"""

from __future__ import annotations

import codecs
from dataclasses import replace
from functools import partial

from pusl.examples import Columns
from pusl_eval.columns import DELIMITERS
from pusl_eval.files import open_reader
from pusl_eval.files.lines import reading
from pusl_eval.files.storage import BUFFER

BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
FALLBACKS = ("cp1252", "latin-1")  # latin-1 decodes every byte


def sniff(source: str, columns: Columns, warnings: list[str]) -> Columns:
    """`columns` with the encoding and the delimiter that the file shows, unless the user named them."""
    if columns.encoding == "utf-8":
        encoding = find_encoding(source)
        if encoding != "utf-8":
            warnings.append(f"is not UTF-8; read as {encoding} (see --encoding)")
            columns = replace(columns, encoding=encoding)
    if columns.delimiter is None:
        names = open_reader(source, columns.dialect).header() or []
        found = next((char for char in DELIMITERS if len(names) == 1 and char in names[0]), None)
        if found is not None:
            shown = "a tab" if found == "\t" else repr(found)
            warnings.append(f"{shown} was taken as the character between cells (see --delimiter)")
            columns = replace(columns, delimiter=found)
    return columns


def find_encoding(source: str) -> str:
    """utf-8 if the whole file is, else utf-16 by its mark, else the first of the fallbacks that can decode it."""
    with reading(source) as file:
        mark = file.content.read(2)
    if mark in BYTE_ORDER_MARKS:
        return BYTE_ORDER_MARKS[mark]
    return next((name for name in ("utf-8", *FALLBACKS) if _decodes(source, name)), FALLBACKS[-1])


def _decodes(source: str, encoding: str) -> bool:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        with reading(source) as file:
            for block in iter(partial(file.content.read, BUFFER), b""):
                decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True
