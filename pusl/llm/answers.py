"""Answers of a language model -> an SQLite file, and back on the next run.

Two tables. `answers` holds every request and its raw answer, for audits and replays. `verdicts` holds the
judge's verdict on one keyphrase of one item, so that two systems that predict the same keyphrase share
the verdict and pay for it once. An answer and its verdicts are written in one transaction: a killed run
loses at most the requests that had no answer yet. The file is readable by its owner only.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pusl.llm.prompts import Prompt, valid_unicode
from pusl_eval.files import InputError, check_output, make_folder

FORMAT = 1
NO_SPACE = ("disk I/O error", "disk is full")  # as SQLite says it
_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
  id INTEGER PRIMARY KEY, key TEXT NOT NULL, model TEXT NOT NULL, version TEXT NOT NULL, endpoint TEXT NOT NULL,
  messages TEXT NOT NULL, answer TEXT NOT NULL, created TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS answers_by_key ON answers (key);
CREATE TABLE IF NOT EXISTS verdicts (
  key TEXT PRIMARY KEY, verdict INTEGER, asked INTEGER NOT NULL, answer INTEGER NOT NULL REFERENCES answers (id)
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Answer:
    """What the endpoint sent back for one request."""

    text: str | None  # None if the model refused or the endpoint rejected this request
    problem: str = ""  # the refusal or rejection, as the endpoint put it
    finish: str = ""  # stop, length, content_filter, ...; empty for a rejected request
    model: str = ""  # as the endpoint names it; often more exact than the requested name
    tokens_in: int = 0
    tokens_out: int = 0


@dataclass(frozen=True)
class Verdict:
    """True or False, or None without a clear answer; and how often it was asked for."""

    value: bool | None
    asked: int


def key_of(*parts: object) -> str:
    """A short stable key for parts that JSON can represent.

    >>> key_of("model", "judge-1", "drone") == key_of("model", "judge-1", "drone") != key_of("drone")
    True
    """
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True, sort_keys=True).encode()).hexdigest()[:40]


class AnswerStore:
    """The SQLite file. Threads and several processes may share it, and kill -9 does not damage it."""

    def __init__(self, path: str | Path, read_only: bool = False) -> None:
        """Opens or creates the file. With `read_only` a missing file is an empty store."""
        self.path = Path(path)
        self._lock = threading.Lock()
        is_new = not self.path.exists()
        source = ":memory:" if read_only and is_new else str(check_output(self.path, force=True))
        try:
            if source != ":memory:":
                make_folder(self.path.parent)
                os.close(os.open(source, os.O_RDWR | os.O_CREAT, 0o600))  # answers may quote private texts
            self._base = sqlite3.connect(source, timeout=60, check_same_thread=False, isolation_level=None)
            version = self._base.execute("PRAGMA user_version").fetchone()[0]
            tables = self._base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if version not in (0, FORMAT) or (version == 0 and tables):
                raise InputError(f"{path}: was made by another program or version; name another file with --cache")
            if not (read_only and version == FORMAT):
                self._base.execute("PRAGMA journal_mode = WAL")
                self._base.execute("PRAGMA synchronous = NORMAL")
                self._base.executescript(_SCHEMA)
                self._base.execute(f"PRAGMA user_version = {FORMAT}")
        except sqlite3.DatabaseError as error:
            if not any(words in str(error) for words in NO_SPACE):
                raise InputError(
                    f"{path}: not a usable answer store ({error}); name another file with --cache"
                ) from None
            if is_new:
                self._base.close()
                for ending in ("", "-wal", "-shm", "-journal"):
                    Path(f"{source}{ending}").unlink(missing_ok=True)
            raise OSError(errno.EIO, str(error), str(path)) from None

    def save(
        self, key: str, prompt: Prompt, answer: Answer, model: str, endpoint: str,
        verdicts: Mapping[str, Verdict] | None = None,
    ) -> None:  # fmt: skip
        """Stores one answer and the verdicts that were read from it."""
        row = (
            key, model, prompt.version, endpoint, json.dumps(prompt.messages, ensure_ascii=False),
            json.dumps(asdict(answer), ensure_ascii=True), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )  # fmt: skip
        try:
            with self._lock, self._base:
                self._base.execute("BEGIN IMMEDIATE")
                columns = "key, model, version, endpoint, messages, answer, created"
                insert = f"INSERT INTO answers ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)"
                number = self._base.execute(insert, row).lastrowid
                self._base.executemany(
                    "INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?)",
                    [(name, verdict.value, verdict.asked, number) for name, verdict in (verdicts or {}).items()],
                )
        except sqlite3.DatabaseError as error:  # disk full, file locked for a minute, damaged, ...
            raise OSError(errno.EIO, str(error), str(self.path)) from None

    @contextlib.contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise InputError(f"{self.path}: the stored answers are damaged ({error}); name another --cache") from None

    def answer(self, key: str) -> Answer | None:
        """The newest stored answer to a request; None if there is none or it cannot be read."""
        with self._lock, self._damage_named():
            row = self._base.execute("SELECT answer FROM answers WHERE key = ? ORDER BY id DESC", (key,)).fetchone()
        if not row:
            return None
        try:
            found = Answer(**json.loads(row[0]))
            return replace(found, text=found.text and valid_unicode(found.text))
        except (ValueError, TypeError, AttributeError, RecursionError):  # damaged: ask again
            return None

    def verdicts(self, keys: Sequence[str]) -> dict[str, Verdict]:
        """The stored verdicts among `keys`."""
        found = {}
        with self._lock, self._damage_named():
            for key in keys:
                row = self._base.execute("SELECT verdict, asked FROM verdicts WHERE key = ?", (key,)).fetchone()
                if row and row[0] in (None, 0, 1) and isinstance(row[1], int):  # else damaged: ask again
                    found[key] = Verdict(None if row[0] is None else bool(row[0]), row[1])
        return found

    def close(self) -> None:
        """Closes the file; SQLite then merges its journal into it."""
        with self._lock:
            self._base.close()

    def __enter__(self) -> AnswerStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
