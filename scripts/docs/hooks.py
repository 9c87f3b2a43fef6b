"""Hooks of mkdocs (`hooks` in mkdocs.yml).

The log's table of contents lists its parts only, because its headings are whole sentences.

A browser may break a line after a hyphen, also inside `--text-template`. Here flags, and short words of inline code,
are kept whole: `<span class="whole">`. A line of a code block says how far it is indented (`--indent`), so that the
style sheet can indent its continuation further.
"""

from __future__ import annotations

import re
from typing import Any

LONGEST = 24  # characters: a longer word would not fit into a table on a phone
_CODE = re.compile(r"(<code(?: [^>]*)?>)(.*?)(</code>)", re.DOTALL)
_TEXT = re.compile(r"(?<=>)[^<]+(?=<)")
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_LINE = re.compile(r'(<span id="__line-[^"]*")>((?:<[^>]*>)*)( +)')
_WORD = re.compile(r"[^\s<>]*[-\[/.][^\s<>]*")


def whole_words(html: str) -> str:
    """The page with such words marked, in code only.

    Examples:
        >>> whole_words("<p>a-b <code>--min-score 0.3</code></p>")
        '<p>a-b <code><span class="whole">--min-score</span> <span class="whole">0.3</span></code></p>'
    """

    def marked(match: re.Match[str]) -> str:
        return f'<span class="whole">{match[0]}</span>' if 1 < len(match[0]) <= LONGEST else match[0]

    def code(match: re.Match[str]) -> str:
        wanted = _FLAG if "\n" in match[2] or "<" in match[2] else _WORD
        body = _TEXT.sub(lambda text: wanted.sub(marked, text[0]), f">{match[2]}<")[1:-1]
        return match[1] + body + match[3]

    return _CODE.sub(code, html)


def indented_lines(html: str) -> str:
    """The page with the indent of each line of code.

    Examples:
        >>> indented_lines('<span id="__line-0-2"><span class="w">    </span>go</span>')
        '<span id="__line-0-2" style="--indent: 4ch"><span class="w">    </span>go</span>'
    """
    return _LINE.sub(lambda line: f'{line[1]} style="--indent: {len(line[3])}ch">{line[2]}{line[3]}', html)


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs with the content of each page."""
    return indented_lines(whole_words(html))


def on_page_context(context: Any, page: Any, **_: Any) -> Any:
    """Called by mkdocs before a page is put into its template."""
    if page.file.src_uri == "log.md":
        for title in page.toc:
            for part in title.children:
                part.children.clear()
    return context
