"""The bytes of a request -> JSON without surprises -> options that the model can work with."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute

from pusl.decoding.arguments import threshold
from pusl.serve.gateway import Problem
from pusl.serve.schemas import KeyphraseRequest
from pusl.serve.serve_config import ServeConfig
from pusl_eval.files import InputError

LONGEST_PLACE = 80  # characters of a field's name in a message
# pydantic's kinds of errors, in our words
WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not a field of this API",
    "too_short": "is empty; expected at least one entry",
    "finite_number": "expected a finite number",
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing", "int_parsing_size"), "expected an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "expected a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "expected true or false"),
    "string_type": "expected a string",
    "string_unicode": "is not valid Unicode",
    "list_type": "expected a list",
}
LIMITS = {
    "literal_error": "expected {expected}",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le:g}",
}
OBJECT = 'expected a JSON object, such as {"texts": ["Waterproof hiking boots"]}'
BODY_WORDS = {
    "missing": f"is missing; {OBJECT}",
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), OBJECT),
    "string_unicode": "a field's name is not valid Unicode",
}
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


def mistake(error: Mapping[str, Any]) -> str:
    """What is wrong with a body, in a few words, from the first error that pydantic found. Never repeats the input.

    >>> mistake({"type": "missing", "loc": ("body", "texts"), "msg": "Field required"})
    'texts: is missing'
    """
    place = ".".join(str(part) for part in error["loc"] if part != "body")
    kind, bounds = error["type"], error.get("ctx") or {}
    words = WORDS.get(kind) or LIMITS.get(kind, "{msg}").format(msg=error["msg"], **bounds)
    if not place:
        place, words = "body", BODY_WORDS.get(kind, words)
    # An unknown field's name is the client's own: it may be long, and steer a terminal.
    place = re.sub(r"[^ -~]", "?", place if len(place) <= LONGEST_PLACE else place[:LONGEST_PLACE] + "...")
    return f"{place}: {words}"


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
    try:
        threshold(body.min_score, info["scores"], hint="")
    except InputError as error:
        raise Problem(422, "invalid", str(error)) from None
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
