"""Texts -> token ids in the order in which a device decodes them, tokenized in a thread while the device works.

The longest texts come first, so that a pool's last items are short. The first part is tokenized at once. The thread
does the others, sorted by their number of characters, and nobody waits for it while the device has work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

PART = 256  # texts tokenized at once

Tokens = list[list[int]]


class TokensAhead:
    """A sequence of token ids that a thread fills; reading a text waits for it.

    Args:
        texts: the documents.
        encode: documents -> ids.
        part: texts tokenized at once.
    """

    def __init__(self, texts: Sequence[str], encode: Callable[[list[str]], Tokens], part: int = PART) -> None:
        order = sorted(range(len(texts)), key=lambda i: (-len(texts[i]), i))
        self.parts = [order[at : at + part] for at in range(0, len(order), part)]
        self._place = {i: (number, at) for number, part in enumerate(self.parts) for at, i in enumerate(part)}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        first: Future[Tokens] = Future()
        if self.parts:
            first.set_result(encode([texts[i] for i in self.parts[0]]))
        self._done = [first] if self.parts else []
        self._done += [self._thread.submit(encode, [texts[i] for i in part]) for part in self.parts[1:]]

    def __len__(self) -> int:
        return len(self._place)

    def __getitem__(self, number: int) -> list[int]:
        part, at = self._place[number]
        return self._done[part].result()[at]

    def __iter__(self) -> Iterator[list[int]]:
        return (self[number] for number in range(len(self)))

    def is_ready(self, part: int) -> bool:
        """Whether a part is tokenized."""
        return self._done[part].done()

    def __enter__(self) -> TokensAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)


TokenRows = Sequence[Sequence[int]] | TokensAhead


def longest_now(texts: TokenRows) -> int:
    """The longest text, of those that come first."""
    known = texts.parts[0] if isinstance(texts, TokensAhead) else range(len(texts))
    return max((len(texts[i]) for i in known), default=0)


class TextQueue:
    """Numbers of the texts to decode, the longest first; texts that a pool has no room for are put aside in `late`."""

    def __init__(self, texts: TokenRows, room: int) -> None:
        self.texts, self.room = texts, room
        self.late: list[int] = []
        self._ready: list[int] = []  # the longest stand last
        self._parts = texts.parts if isinstance(texts, TokensAhead) else [list(range(len(texts)))]
        self._next = 0
        self._load()

    def __bool__(self) -> bool:
        return bool(self._ready) or self._next < len(self._parts)

    def take(self, most: int, wait: bool) -> list[int]:
        """At most so many texts. With `wait` there is nothing else to do, so an unfinished part is waited for."""
        while len(self._ready) < most and self._next < len(self._parts) and (self._is_there() or wait):
            self._load()
            wait = wait and not self._ready
        count = min(most, len(self._ready))
        return [self._ready.pop() for _ in range(count)]

    def _is_there(self) -> bool:
        return not isinstance(self.texts, TokensAhead) or self.texts.is_ready(self._next)

    def _load(self) -> None:
        if self._next < len(self._parts):
            part = self._parts[self._next]
            self._next += 1
            self.late += [i for i in part if len(self.texts[i]) > self.room]
            self._ready += [i for i in part if len(self.texts[i]) <= self.room]
            self._ready.sort(key=lambda i: (len(self.texts[i]), i))
