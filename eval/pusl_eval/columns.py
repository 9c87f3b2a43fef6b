"""A user's table + which column holds what -> the fields of an item, checked.

`Columns` and its flags are the same in every command that reads items. What is wrong with a record is a
`BadRecord`: readers that must stop turn it into an InputError with file and line, the catalog into a
line of its .rejects file.
"""

from __future__ import annotations

import argparse
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from pusl_eval.errors import InputError
from pusl_eval.files import Dialect, Row, split_list, type_name
from pusl_eval.files.lines import is_encodable
from pusl_eval.flags import Arguments
from pusl_eval.options import add_flags, from_flags, option

MAX_KEYPHRASE_CHARS = 10_000  # a "keyphrase" longer than this is a parsing accident, not a label
MAX_COUNT = 2**53  # counts are added up in float64 and int64 arrays
DELIMITERS = ";\t|,"  # looked for in a header that is a single column
ID_NAMES = ("sku", "asin", "item_id", "itemid", "product_id", "productid", "uid")
_SEPARATORS = frozenset(" \t\n.,;:|/-–—·")
_TABS = {"\\t": "\t", "tab": "\t"}


@dataclass(frozen=True)
class Columns:
    """Which column of a user's table holds what, and how the table is written."""

    id_column: str = option("id", "column that holds the item's id")
    text_column: str = option("text", "column that holds the item's text")
    text_template: str | None = option(
        None, 'build the text from columns instead, e.g. --text-template "{title}. {description}"'
    )
    keyphrases_column: str = option("keyphrases", "column that holds the list of keyphrases")
    counts_column: str = option("counts", "column that holds the interactions per keyphrase, if there is one")
    timestamp_column: str = option("timestamp", "column that holds the item's time, if there is one")
    group_column: str = option("group", "column that holds the item's group, if there is one")
    separator: str | None = option(
        None, "what separates the values of a list in one cell (default: a JSON array, or '|')"
    )
    delimiter: str | None = option(
        None, "CSV, TSV: character between cells, e.g. ';' (default: a comma; in .tsv a tab)"
    )
    encoding: str = option("utf-8", "CSV, TSV: the file's encoding, e.g. latin-1, cp1252 or utf-16")

    def __post_init__(self) -> None:
        self.dialect  # noqa: B018 - a wrong delimiter or encoding is found here
        for field in fields(Columns):
            if not is_encodable(getattr(self, field.name) or ""):
                flag = f"--{field.name.replace('_', '-')}"
                raise InputError(f"{flag}: the name contains bytes that are not UTF-8, which no column's name has")

    @property
    def dialect(self) -> Dialect:
        """How CSV and TSV files are written."""
        return Dialect(_TABS.get(self.delimiter or "", self.delimiter), self.encoding)


STANDARD = Columns()


class ItemFile(str):
    """A path that knows the columns of its items; it works wherever a path of references or examples does.

    >>> ItemFile("items.csv", Columns(id_column="sku")).columns.id_column
    'sku'
    """

    columns: Columns

    def __new__(cls, path: str | Path, columns: Columns = STANDARD) -> ItemFile:
        """The path as a string, with the columns attached."""
        made = super().__new__(cls, path)
        made.columns = columns
        return made


def columns_of(path: object) -> Columns:
    """The columns that an `ItemFile` knows; the standard ones for any other path."""
    return path.columns if isinstance(path, ItemFile) else STANDARD


def add_columns(parser: Arguments, skip: Sequence[str] = (), of: str = "") -> None:
    """The column flags, as a group of their own. `of` names the files they are about."""
    title = f"columns of {of}" if of else "columns"
    add_flags(parser.add_argument_group(title), Columns, skip)


def columns_from(args: argparse.Namespace) -> Columns:
    """The columns that the flags name."""
    return from_flags(Columns, args)


def name_columns(args: argparse.Namespace, files: Sequence[str]) -> None:
    """Turns the paths of these flags into paths that know the columns the other flags name, in place."""
    columns = columns_from(args)
    for name in files:
        if getattr(args, name) is not None:
            setattr(args, name, ItemFile(getattr(args, name), columns))


def choose_ids(columns: Columns, names: Sequence[str], number_ids: bool, warnings: list[str]) -> tuple[Columns, bool]:
    """The columns, and whether row numbers are the ids, for a table that may lack the column `id`.

    >>> said: list[str] = []
    >>> choose_ids(STANDARD, ["sku", "text"], False, said)[0].id_column, said
    ('sku', ["no column 'id': the ids are those of 'sku' (see --id-column)"])
    """
    if number_ids or columns.id_column != "id" or "id" in names or not names:
        return columns, number_ids
    found = next((name for name in names if name.lower() in ID_NAMES), None)
    if found is None:
        warnings.append(f"no column 'id' (found: {', '.join(names)}): row numbers are the ids (see --id-column)")
        return columns, True
    warnings.append(f"no column 'id': the ids are those of '{found}' (see --id-column)")
    return replace(columns, id_column=found), False


class BadRecord(ValueError):
    """What is wrong with a record; `fix` says what a user can do where one wrong record stops everything."""

    def __init__(self, reason: str, fix: str = "", column: str | None = None) -> None:
        super().__init__(reason)
        self.fix = fix
        self.column = column  # the column that is missing


def missing_column(path: str | Path, column: str, names: Sequence[str], flag: str) -> InputError:
    """The error for a table that lacks a column."""
    found = [char for char in DELIMITERS if len(names) == 1 and char in names[0]]
    if found:
        shown = "tab" if found[0] == "\t" else f"'{found[0]}'"
        return InputError(
            f"{path}: the header is one column, {names[0][:80]!r}. Name the character between cells with "
            f"--delimiter {shown}"
        )
    return InputError(f"{path} has no column '{column}' (found: {', '.join(names) or 'none'}). Name it with {flag}")


class ItemFields:
    """The fields of an item, taken from rows of one file and checked."""

    def __init__(self, columns: Columns, table: bool, split_lists: bool | None = None) -> None:
        self.columns, self.table = columns, table
        split = table if split_lists is None else split_lists
        self.split_lists = split or columns.separator is not None
        self.text_fields = template_fields(columns.text_template) if columns.text_template else [columns.text_column]
        self.text: Callable[[Row], str] = self._from_template if columns.text_template else self._from_column

    def identifier(self, row: Row) -> str:
        """The id: a string, or an integer, which becomes a string."""
        column = self.columns.id_column
        value = self._need(row, column, "--id-column")
        if type(value) is int:
            value = str(value)
        if not isinstance(value, str):
            _refuse(column, "a string or an integer", value)
        if not value:
            raise BadRecord(f"'{column}' is blank", "; every item needs an id")
        return value

    def _from_column(self, row: Row) -> str:
        column = self.columns.text_column
        text = self._need(row, column, "--text-column, or build it with --text-template")
        if not isinstance(text, str):
            _refuse(column, "a string", text)
        return text

    def _from_template(self, row: Row) -> str:
        template, names = self.columns.text_template, self.text_fields
        for name in names:
            # A missing value is blank, but a table that has no such column at all is a typo.
            if name not in row and self.table:
                self._need(row, name, "--text-template")
        if not any(name in row for name in names):
            self._need(row, names[0], "--text-template")
        assert template is not None
        return render(template, {name: "" if row.get(name) is None else str(row[name]).strip() for name in names})

    def labels(self, row: Row, required: bool = True) -> tuple[list[str], list[int] | None]:
        """Keyphrases and their counts, blanks dropped. Unless `required`, an item without them has none."""
        column = self.columns.keyphrases_column
        if not required and (column not in row or (self.table and row[column] in (None, ""))):
            return [], None
        phrases = self.keyphrases(row)
        counts = row.get(self.columns.counts_column)
        if self.split_lists and isinstance(counts, str):
            counts = self._split(counts, self.columns.counts_column) if counts.strip() else None
        if counts is not None:
            counts = integers(counts, self.columns.counts_column, len(phrases))
        if not all(map(str.strip, phrases)):
            kept = [index for index, phrase in enumerate(phrases) if phrase.strip()]
            phrases = [phrases[index] for index in kept]
            counts = None if counts is None else [counts[index] for index in kept]
        return phrases, counts

    def keyphrases(self, row: Row) -> list[str]:
        """The keyphrases as they are, blanks included."""
        column = self.columns.keyphrases_column
        phrases = self._need(row, column, "--keyphrases-column")
        if self.split_lists and isinstance(phrases, str):
            phrases = self._split(phrases, column)
        if not isinstance(phrases, list):
            _refuse(column, "a list of strings", phrases)
        for phrase in phrases:
            if not isinstance(phrase, str):
                raise BadRecord(f"'{column}' must be a list of strings, found {type_name(phrase)} in it")
            if len(phrase) > MAX_KEYPHRASE_CHARS:
                raise BadRecord(
                    f"a keyphrase of {len(phrase):,} characters in '{column}' "
                    f"(at most {MAX_KEYPHRASE_CHARS:,}); it starts with {phrase[:40]!r}"
                )
        return list(phrases)

    def known(self, row: Row) -> tuple[str, ...]:
        """The keyphrases that an item has already; none where the column is missing or empty.

        >>> ItemFields(STANDARD, table=True).known({"id": "a", "keyphrases": '["red shoe", "boot"]'})
        ('red shoe', 'boot')
        """
        column = self.columns.keyphrases_column
        if row.get(column) is None or (self.table and row[column] == ""):
            return ()
        return tuple(phrase for phrase in self.keyphrases(row) if phrase.strip())

    def _split(self, cell: str, column: str) -> list[Any]:
        try:
            found = split_list(cell, self.columns.separator)
        except ValueError as error:
            raise BadRecord(f"'{column}' is {error}") from None
        # A JSON array in a cell may escape what no cell could hold.
        if not all(is_encodable(value) for value in found if isinstance(value, str)):
            raise BadRecord(f"'{column}' contains half of a surrogate pair, which is not a character")
        return found

    def _need(self, row: Row, column: str, flag: str) -> Any:
        if column not in row:
            found = ", ".join(map(str, row)) or "none"
            raise BadRecord(f"no field '{column}' (found: {found})", f". Name it with {flag}", column)
        return row[column]

    def refuse(self, error: BadRecord, row: Row, path: str | Path, line: int, item: str | None = None) -> InputError:
        """The InputError for a bad record in a file that must be right."""
        if error.column is not None and self.table:
            return missing_column(path, error.column, list(row), error.fix.removeprefix(". Name it with "))
        name = f" id {item!r}:" if item else ""
        return InputError(f"{path}:{line}:{name} {error}{error.fix}")


def _refuse(column: str, expected: str, value: object) -> NoReturn:
    raise BadRecord(f"'{column}' must be {expected}, found {type_name(value)}")


def integers(values: object, column: str, length: int) -> list[int]:
    """Counts: `length` integers >= 0, or a BadRecord."""
    if not isinstance(values, list):
        _refuse(column, "a list of integers", values)
    if len(values) != length:
        raise BadRecord(f"'{column}' has {len(values)} values, but there are {length} keyphrases")
    numbers = []
    for value in values:
        try:
            number = -1 if isinstance(value, bool) else int(value)
        except (ValueError, TypeError, OverflowError):
            number = -1
        if not 0 <= number <= MAX_COUNT or (isinstance(value, float) and value != number):
            raise BadRecord(f"'{column}' must be integers >= 0, found {value!r}")
        numbers.append(number)
    return numbers


def template_fields(template: str) -> list[str]:
    """The columns a text template names.

    >>> template_fields("{title}. {description}")
    ['title', 'description']
    """
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"--text-template {template!r}: {error}") from None
    names = [name for _, name, _, _ in parts if name is not None]
    if not names or any(not name or set(name) & set(".[") for name in names) or any(s or c for _, _, s, c in parts):
        raise InputError(f'--text-template {template!r}: expected column names in braces, as in "{{title}}. {{body}}"')
    return list(dict.fromkeys(names))


def render(template: str, values: dict[str, str]) -> str:
    """The text of a template. After an empty field the separator before the next one is left out.

    >>> render("{title}. {body}", {"title": "Zeto X2", "body": "a drone"})
    'Zeto X2. a drone'
    >>> render("{title}. {body}", {"title": "", "body": "a drone"})
    'a drone'
    """
    if all(values.values()):
        return template.format_map(values).strip()
    text, empty = "", False
    for literal, name, _, _ in string.Formatter().parse(template):
        if not (empty and name is not None and _SEPARATORS.issuperset(literal)):
            text += literal
        if name is not None:
            text += values[name]
            empty = not values[name]
    return text.strip()
