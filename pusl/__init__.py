"""Text + incomplete keyphrases -> a model that gives k different, scored keyphrases for any text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pusl.process import avoid_half_amx
from pusl_eval import __version__ as __version__

if TYPE_CHECKING:
    from pusl.decoding.generator import KeyphraseGenerator as KeyphraseGenerator
    from pusl.decoding.logits_processor import TopKKeyphrasesLogitsProcessor as TopKKeyphrasesLogitsProcessor

__all__ = ["KeyphraseGenerator", "TopKKeyphrasesLogitsProcessor", "__version__"]

_LAZY = {
    "KeyphraseGenerator": "pusl.decoding.generator",
    "TopKKeyphrasesLogitsProcessor": "pusl.decoding.logits_processor",
}

avoid_half_amx()  # here, because torch looks at the limit once, at its first product


def __getattr__(name: str) -> Any:
    """Torch loads only when a public class is asked for, so that the command line starts at once."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'pusl' has no attribute {name!r}")
