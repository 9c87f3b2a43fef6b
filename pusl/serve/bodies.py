"""The bytes of a request -> JSON without surprises -> options that the model can work with."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute

from pusl.serve.gateway import Problem
from pusl.serve.schemas import KeyphraseRequest
from pusl.serve.serve_config import ServeConfig

MOST_KEYS = 100  # in one object; each that the API does not know would get a message of its own


class StrictRequest(Request):
    """A request whose body must be JSON as the standard has it."""

    async def json(self) -> Any:
        """The parsed body. Python alone would take NaN, UTF-16, and the last of two equal keys."""
        if not hasattr(self, "_strict"):
            self._strict = read_json(await self.body())
        return self._strict


class StrictRoute(APIRoute):
    """A route whose requests are `StrictRequest`s."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler with another kind of request."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(StrictRequest(request.scope, request.receive))

        return strict


def read_json(body: bytes) -> Any:
    """Parses a body, or raises JSONDecodeError.

    >>> read_json(b'{"k": 1, "k": 2}')
    Traceback (most recent call last):
    json.decoder.JSONDecodeError: a key occurs twice: line 1 column 1 (char 0)
    """
    try:
        return json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError:
        _refuse("it is not UTF-8")
    except RecursionError:
        _refuse("it is nested too deeply")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MOST_KEYS:
        _refuse(f"an object has more than {MOST_KEYS} keys")
    found = dict(pairs)
    if len(found) < len(pairs):
        _refuse("a key occurs twice")
    return found


def _no_constant(name: str) -> NoReturn:
    _refuse(f"{name} is not a JSON number")


def _refuse(reason: str) -> NoReturn:
    raise json.JSONDecodeError(reason, "", 0)


def checked_options(body: KeyphraseRequest, config: ServeConfig, info: dict[str, Any]) -> dict[str, Any]:
    """The request's options with defaults filled in, or the Problem that names the field and the limit."""
    if len(body.texts) > config.max_texts:
        raise Problem(413, "too_many_texts", f"texts: {len(body.texts)}; at most {config.max_texts} per request")
    if body.known is not None and len(body.known) != len(body.texts):
        raise Problem(422, "invalid", f"known: {len(body.known)} lists for {len(body.texts)} texts")
    if body.known is not None and (body.temperature or body.allow_repeats):
        raise Problem(422, "invalid", "known: cannot be combined with temperature or allow_repeats")
    written = [(f"texts.{i}", text) for i, text in enumerate(body.texts)]
    written += [(f"known.{i}", " ".join(phrases)) for i, phrases in enumerate(body.known or ())]
    for place, text in written:
        if len(text) > config.max_chars:
            raise Problem(413, "text_too_long", f"{place}: {len(text)} characters; at most {config.max_chars}")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Problem(422, "invalid", f"{place}: is not valid Unicode (it holds half a surrogate pair)") from None
    options = body.model_dump(exclude={"texts", "known"})
    options["complete"] = body.known is not None  # texts with and without known keyphrases are batched separately
    options["k"] = body.k or min(info["defaults"]["k"], config.max_k)
    if options["k"] > config.max_k:
        raise Problem(422, "invalid", f"k: {body.k} is above this server's limit of {config.max_k}")
    options["strategy"] = body.strategy or info["defaults"]["strategy"]
    if options["strategy"] not in info["strategies"]:
        raise Problem(
            422, "invalid", f"strategy: not available for this model; available: {', '.join(info['strategies'])}"
        )
    if body.vocabulary not in info["vocabularies"]:
        raise Problem(
            422, "invalid", f"vocabulary: '{body.vocabulary}' needs a universe; start the server with --universe FILE"
        )
    return options
