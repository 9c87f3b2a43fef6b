"""Text -> words, also in scripts that write no spaces between them."""

from __future__ import annotations

import re

from pusl_eval.normalize import normalize

# Signs of such scripts: Thai, Lao, Burmese, Khmer, Chinese, Japanese. Each counts as a word.
SIGNS = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u312f\u31f0-\u31ff\u3400-\u9fff"
    r"\uf900-\ufaff\U00020000-\U0003ffff"
)
_PIECE = re.compile(rf"[^\W{SIGNS}]+|[{SIGNS}]|[^\w\s]")  # a word or a sign of punctuation
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


def located(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Words and signs of punctuation, normalized, and where each is in the text as given.

    >>> located("Node.js  X")
    (['node', '.', 'js', 'x'], [(0, 4), (4, 5), (5, 7), (9, 10)])
    >>> located("ｶﾞﾒﾗ")  # one piece, of which normalizing makes three
    (['ガ', 'メ', 'ラ'], [(0, 4), (0, 4), (0, 4)])
    """
    pieces, spans = list[str](), list[tuple[int, int]]()
    for match in _PIECE.finditer(text):
        piece = normalize(match[0])
        own = _PIECE.findall(piece) if unspaced(piece) else [piece]
        pieces += own
        spans += [match.span()] * len(own)
    return pieces, spans


def pairs(text: str) -> list[str]:
    """Neighboring signs, which are the better words where there are no spaces.

    >>> pairs("4K无人机 drone")
    ['无人', '人机']
    """
    runs = _RUN.findall(normalize(text))
    return [run[place : place + 2] for run in runs for place in range(len(run) - 1)]
