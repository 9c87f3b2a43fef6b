"""A text -> its first words: a generator that costs nothing, for tests of the machinery around it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


class Words(NamedTuple):
    """A prediction."""

    keyphrases: list[str]
    scores: list[float]
    exhausted: bool


@dataclass(frozen=True)
class WordsRecipe:
    """`slow` seconds per call; a text that contains "POISON" ends the process (once per `marker` file)."""

    slow: float = 0.0
    marker: str = ""
    log: str = ""
    version: int = 1

    def load(self) -> WordsRecipe:
        return self

    def fingerprint(self) -> dict[str, Any]:
        return {"version": self.version}

    def weight(self) -> int:
        return 0

    def generate(self, texts: Sequence[str], k: int, **options: Any) -> list[Words]:
        time.sleep(self.slow)
        if self.log:
            with open(self.log, "a") as stream:
                stream.write("".join(text + "\n" for text in texts))
        if any("POISON" in text for text in texts) and (not self.marker or not Path(self.marker).exists()):
            if self.marker:
                Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        found = []
        for text in texts:
            words = list(dict.fromkeys(text.split()))[:k]
            found.append(Words(words, [-1.0 / (1 + len(word)) for word in words], len(words) < k))
        return found
