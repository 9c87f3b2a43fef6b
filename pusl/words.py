"""Text -> words, also in scripts that write no spaces between them."""

from __future__ import annotations

import re

from pusl_eval.normalize import normalize

# Signs of such scripts: Thai, Lao, Burmese, Khmer, Chinese, Japanese. Each counts as a word.
SIGNS = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u312f\u31f0-\u31ff\u3400-\u9fff"
    r"\uf900-\ufaff\uff66-\uff9f"
    r"\U00020000-\U0003ffff"
)
PIECE = re.compile(rf"[^\W{SIGNS}]+|[{SIGNS}]|[^\w\s]")  # a word or a sign of punctuation
_WORD = re.compile(rf"[^\W{SIGNS}]+|[{SIGNS}]")
_SIGN = re.compile(f"[{SIGNS}]")
_RUN = re.compile(rf"[{SIGNS}]{{2,}}")


def words(text: str) -> list[str]:
    """Lower-case words, digits and single letters included.

    >>> words("Saltash, Cornwall; 1827"), words("4K无人机")
    (['saltash', 'cornwall', '1827'], ['4k', '无', '人', '机'])
    """
    return _WORD.findall(normalize(text))


def unspaced(text: str) -> bool:
    """Whether the text has a sign of a script without spaces."""
    return _SIGN.search(text) is not None


def parts(piece: str) -> list[str]:
    """A normalized piece as pieces again: normalizing turns halfwidth katakana, for one, into several signs.

    >>> parts("drone"), parts(normalize("ｶﾒﾗ"))
    (['drone'], ['カ', 'メ', 'ラ'])
    """
    return PIECE.findall(piece) if unspaced(piece) else [piece]


def pairs(text: str) -> list[str]:
    """Neighboring signs, which are the better words where there are no spaces.

    >>> pairs("4K无人机 drone")
    ['无人', '人机']
    """
    runs = _RUN.findall(normalize(text))
    return [run[place : place + 2] for run in runs for place in range(len(run) - 1)]
