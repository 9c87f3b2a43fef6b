"""Text + incomplete keyphrases -> a model that gives k different, scored keyphrases for any text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pusl_eval import __version__ as __version__

if TYPE_CHECKING:
    from pusl.decoding.generator import KeyphraseGenerator as KeyphraseGenerator
    from pusl.decoding.logits_processor import TopKKeyphrasesLogitsProcessor as TopKKeyphrasesLogitsProcessor

__all__ = ["KeyphraseGenerator", "TopKKeyphrasesLogitsProcessor", "__version__"]

_LAZY = {
    "KeyphraseGenerator": "pusl.decoding.generator",
    "TopKKeyphrasesLogitsProcessor": "pusl.decoding.logits_processor",
}


def __getattr__(name: str) -> Any:
    """Imports torch only when a public class is used, so that the command line starts at once."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'pusl' has no attribute {name!r}")
