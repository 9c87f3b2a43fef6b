"""--paradigm NAME -> the object that knows everything about it.

One item with the keyphrases `red shoe` and `boot`, in the four paradigms:

    one2one   red shoe EOS | boot EOS             one target per keyphrase
    one2seq   red shoe SEP boot EOS               the model decides when to stop
    groov     as one2seq, order reshuffled every epoch, every valid next token is right
    pusl      BOK red shoe EOK BOK boot EOK       no EOS ever: the decoder's k decides

Every keyphrase is tokenized ALONE and the ids are joined, because T5 tokenizers split a phrase
differently after an added token. Targets are cut between keyphrases, never inside one.

A new paradigm is a class (CONTRIBUTING.md shows one). `@register` makes it known to this process;
an entry point in the group `pusl.paradigms` makes an installed package's paradigm known to every
`pusl` command.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from pusl.paradigms.base import LOSSES, ORDERS, STRATEGIES, Paradigm
from pusl.paradigms.groov import Groov
from pusl.paradigms.one2one import One2One
from pusl.paradigms.one2seq import One2Seq
from pusl.paradigms.pusl import Pusl
from pusl_eval.files import InputError

__all__ = [
    "LOSSES", "ORDERS", "STRATEGIES", "Groov", "One2One", "One2Seq", "Paradigm", "Pusl", "get", "names", "register",
    "registered",
]  # fmt: skip

GROUP = "pusl.paradigms"

_known: dict[str, Paradigm] = {}
Kind = TypeVar("Kind", bound=type[Paradigm])


def register(kind: Kind) -> Kind:
    """Makes a paradigm known under its name; a class decorator."""
    taken = _known.get(kind.name)
    if taken is not None and type(taken).__qualname__ != kind.__qualname__:
        raise ValueError(f"the paradigm '{kind.name}' is already {type(taken).__qualname__}")
    for name, allowed in (("losses", LOSSES), ("orders", ORDERS), ("strategies", STRATEGIES)):
        chosen = getattr(kind, name)
        if not chosen or not set(chosen) <= set(allowed):
            raise ValueError(f"{kind.__qualname__}.{name} is {chosen}; allowed: {', '.join(allowed)}")
    _known[kind.name] = kind()
    return kind


def get(name: str) -> Paradigm:
    """The paradigm of that name, or an InputError that lists the known ones."""
    if name not in _known and name in _installed():
        point = _installed()[name]
        try:
            register(point.load())
        except Exception as error:  # a package of someone else's: whatever it raises, say whose it is
            raise InputError(f"paradigm '{name}' ({point.value}) cannot be loaded: {error}") from error
    if name not in _known:
        raise InputError(f"paradigm {name!r} is unknown; known: {', '.join(names())}")
    return _known[name]


def registered() -> tuple[Paradigm, ...]:
    """The paradigms this process has loaded."""
    return tuple(_known.values())


def names() -> tuple[str, ...]:
    """Names of all paradigms, those of installed packages included."""
    return tuple(dict.fromkeys((*_known, *_installed())))


@cache
def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


for _kind in (One2One, One2Seq, Groov, Pusl):
    register(_kind)
