"""README.md -> the description on a package index, where relative links would lead nowhere.

Everything else is in pyproject.toml.
"""

from __future__ import annotations

import re
from pathlib import Path

PAGES = "https://github.com/pusl/pusl/blob/main/"
FILES = "https://raw.githubusercontent.com/pusl/pusl/main/"
PICTURES = (".svg", ".png", ".gif", ".jpg")
RELATIVE = r"(?!https?://|#|mailto:)"


def description(text: str) -> str:
    """The text with absolute links; code blocks stay as they are."""
    parts = re.split(r"(```.*?```)", text, flags=re.S)
    return "".join(part if part.startswith("```") else _absolute(part) for part in parts)


def _absolute(text: str) -> str:
    text = re.sub(rf"(\]\(){RELATIVE}([^)\s]+)", lambda found: found[1] + _place(found[2]), text)
    return re.sub(rf'((?:src|srcset|href)="){RELATIVE}([^"]+)', lambda found: found[1] + _place(found[2]), text)


def _place(link: str) -> str:
    return (FILES if link.partition("#")[0].endswith(PICTURES) else PAGES) + link


if __name__ == "__main__":
    from setuptools import setup

    readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    setup(long_description=description(readme), long_description_content_type="text/markdown")
