"""Flags -> the address, parameters and limits of an OpenAI-compatible endpoint; a response -> an Answer.

Settings, token and cost estimates, and the parsing of what a server sends, well-formed or not. Nothing
here knows about threads, retries or stores.
"""

from __future__ import annotations

import email.utils
import json
import math
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pusl.config import check, option
from pusl.llm.answers import Answer
from pusl.llm.prompts import PROMPTS, Prompt, valid_unicode
from pusl_eval.files import InputError

DEFAULT_URL = "https://api.openai.com/v1"
FORMATS = ("json_schema", "json_object", "text")  # from the strictest to the one that every endpoint has


class EndpointError(RuntimeError):
    """The endpoint is down or the budget is used up: exit code 1. Earlier answers are stored."""


class RequestFailed(EndpointError):
    """One request failed after all its retries; others may still succeed."""


class BadAnswer(ValueError):
    """The body is not a chat completion."""


@dataclass(frozen=True)
class LLMSettings:
    """How to reach a language model, and what it may cost."""

    model: str = option("gpt-4o-mini", "the endpoint's name for the model")
    base_url: str | None = option(
        None, f"address of an OpenAI-compatible endpoint (default: $OPENAI_BASE_URL or {DEFAULT_URL})"
    )
    key_variable: str = option("OPENAI_API_KEY", "environment variable that holds the API key")
    concurrency: int = option(8, "parallel requests", minimum=1)
    timeout: float = option(60.0, "seconds to wait for an answer to begin, and then for its end", minimum=0.001)
    retries: int = option(8, "retries per request", minimum=0)
    backoff: float = option(0.5, "seconds before the first retry; doubles each time, up to 30", minimum=0)
    temperature: float = option(0.0, "sampling temperature; omitted if the model does not accept it", minimum=0)
    prompt: str = option(
        "default",
        "what is asked; default: our question, which explains what 'fits' means; paper: the question of the paper",
        choices=PROMPTS,
    )
    max_answer_tokens: int | None = option(None, "most tokens per answer (default: the model's limit)", minimum=1)
    response_format: str = option(
        "auto",
        "structured output; auto picks the strictest form the endpoint supports",
        choices=("auto", *FORMATS),
    )
    price_in: float | None = option(None, "USD per million prompt tokens, for cost estimates", minimum=0)
    price_out: float | None = option(None, "USD per million answer tokens, for cost estimates", minimum=0)
    max_cost: float | None = option(None, "stop before the run costs more than this many USD", minimum=0)

    def __post_init__(self) -> None:
        check(self)
        if self.max_cost is not None and (self.price_in is None or self.price_out is None):
            raise InputError("--max-cost needs --price-in and --price-out (USD per million tokens)")
        if not self.model.strip():
            raise InputError("--model is empty; expected the name of a model")

    @property
    def url(self) -> str:
        """The endpoint's address as given; an InputError if it is not a URL."""
        url = self.base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL
        try:
            parts = urlsplit(url)
            parts.port  # noqa: B018 (raises if the port is not a number)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"[\s\\^`{}|\x00-\x1f]", url):
            raise InputError(f"--base-url: {_bare(url)!r} is not a URL; expected e.g. http://localhost:8000/v1")
        return url

    @property
    def address(self) -> tuple[str, dict[str, object]]:
        """The address without its parameters, and the parameters: they go with every request."""
        parts = urlsplit(self.url)
        return parts._replace(query="", fragment="").geturl(), dict(parse_qsl(parts.query))

    @property
    def secrets(self) -> list[str]:
        """What the address holds besides host and path, as written and as decoded; messages must not show it."""
        parts = urlsplit(self.url)
        found = [value for _, value in parse_qsl(parts.query)] + [parts.password or ""]
        return [text for value in found for text in (value, quote(value, safe=""), unquote(value)) if text]

    @property
    def endpoint(self) -> str:
        """The address without user name, password and parameters, for messages and records."""
        return _bare(self.url)

    def cost(self, tokens_in: float, tokens_out: float) -> float | None:
        """USD for these tokens; None without prices."""
        if self.price_in is None or self.price_out is None:
            return None
        return (tokens_in * self.price_in + tokens_out * self.price_out) / 1e6


@dataclass
class Usage:
    """Exact counts of one run. Token counts are the endpoint's own if it reports them."""

    requests: int = 0  # all requests, retries included
    answers: int = 0
    retries: int = 0
    rejected: int = 0  # requests that the endpoint rejected (too long, filtered)
    tokens_in: int = 0
    tokens_out: int = 0
    estimated: int = 0  # answers without token counts, which are then estimated
    faults: dict[str, int] = field(default_factory=dict)  # errors that led to a retry, by kind


def estimate_tokens(prompt: Prompt) -> int:
    """Tokens of a prompt, roughly: four bytes each, and a few per message.

    >>> estimate_tokens(Prompt("v", [{"role": "user", "content": "x" * 40}], {}, 1))
    16
    """
    return sum(6 + math.ceil(len(message["content"].encode()) / 4) for message in prompt.messages)


class Ledger:
    """Counts tokens and cost, and stops a run before it costs too much."""

    def __init__(self, settings: LLMSettings) -> None:
        self.settings = settings
        self.usage = Usage()
        self._lock = threading.Lock()
        self._reserved = 0.0  # USD of requests under way
        self._lost = 0.0  # USD of requests that got no answer
        self._ratio = {"in": 2.0, "out": 2.0}  # real tokens / estimate; high until the first report
        self._measured = False
        self._longest = 0  # tokens of the longest answer

    def reserve(self, prompt: Prompt) -> float:
        """Sets aside what a request may cost; an EndpointError if --max-cost could then be exceeded."""
        settings = self.settings
        if settings.max_cost is None:
            return 0.0
        with self._lock:
            cost = self._at_most(prompt)
            spent = self._lost + (settings.cost(self.usage.tokens_in, self.usage.tokens_out) or 0.0)
            if spent + self._reserved + cost > settings.max_cost:
                raise EndpointError(
                    f"stopped before --max-cost {settings.max_cost:g} USD would be exceeded "
                    f"({spent:.4f} USD spent, {self._reserved + cost:.4f} USD under way or next)"
                )
            self._reserved += cost
        return cost

    def lose(self, prompt: Prompt) -> None:
        """Counts a request without an answer: the endpoint may have billed it."""
        with self._lock:
            self._lost += self._at_most(prompt)

    def _at_most(self, prompt: Prompt) -> float:
        cap = self.settings.max_answer_tokens
        # A server may ignore the limit, so the longest answer so far counts too.
        tokens_out = max(cap, self._longest) if cap else prompt.answer_tokens * self._ratio["out"]
        return self.settings.cost(estimate_tokens(prompt) * self._ratio["in"], tokens_out) or 0.0

    def settle(self, prompt: Prompt, answer: Answer | None, reserved: float) -> None:
        """Replaces the reservation by the real cost; None and a rejection cost nothing."""
        with self._lock:
            self._reserved = max(0.0, self._reserved - reserved)
            if answer is None or not answer.finish:
                return
            usage, estimates = self.usage, {"in": estimate_tokens(prompt), "out": prompt.answer_tokens}
            usage.answers += 1
            if answer.tokens_in:
                for side, real in (("in", answer.tokens_in), ("out", answer.tokens_out)):
                    ratio = real / estimates[side]
                    self._ratio[side] = max(self._ratio[side], ratio) if self._measured else ratio
                self._measured = True
            else:
                usage.estimated += 1
            self._longest = max(self._longest, answer.tokens_out)
            usage.tokens_in += answer.tokens_in or estimates["in"]
            usage.tokens_out += answer.tokens_out or (0 if answer.tokens_in else estimates["out"])


def read_answer(body: str) -> Answer:
    """The body of a chat completion -> an Answer; raises `BadAnswer` if it is something else.

    >>> read_answer('{"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}').text
    'yes'
    """
    try:
        value = json.loads(body)
        choice = value["choices"][0]
        message, usage = choice["message"], value.get("usage") or {}
        content = message.get("content")
        if isinstance(content, list):  # some servers send parts
            content = "".join(part.get("text") or "" for part in content)
        if content is not None and not isinstance(content, str):
            raise BadAnswer("the content is not text")
        refusal, finish = message.get("refusal") or "", str(choice.get("finish_reason") or "stop")
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
        tokens = [count if type(count) is int and count > 0 else 0 for count in counts]
        text = None if refusal or finish == "content_filter" else content
        refusal, finish, model = (valid_unicode(str(part or "")) for part in (refusal, finish, value.get("model")))
        return Answer(text and valid_unicode(text), refusal, finish, model, *tokens)
    except BadAnswer:
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise BadAnswer(type(error).__name__) from None


def server_message(error: Any) -> str:
    """The server's own message in an `openai.APIStatusError`, on one line."""
    body = error.body if error.body is not None else error.message
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        body = inner.get("message", inner.get("detail", inner)) if isinstance(inner, Mapping) else inner
    code = f" [{error.code}]" if getattr(error, "code", None) else ""
    return " ".join(str(body).split())[:300] + code


def cause_of(error: BaseException) -> str:
    """The innermost reason of a connection error: `[Errno 111] Connection refused`."""
    while error.__cause__ is not None or error.__context__ is not None:
        inner = error.__cause__ or error.__context__
        if inner is None or not str(inner):
            break
        error = inner
    return " ".join(str(error).split())[:200]


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The wait in seconds that the headers ask for, as milliseconds, seconds or a date.

    >>> retry_after({"retry-after": "1.5"}), retry_after({"retry-after": "soon"})
    (1.5, None)
    """
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
        return max(0.0, date.timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


def _bare(url: str) -> str:
    """The address without user, password, parameters and fragment.

    >>> _bare("https://me:secret@host:8000/v1?api-key=1")
    'https://host:8000/v1'
    """
    scheme, _, rest = url.partition("://")
    rest = rest.partition("?")[0].partition("#")[0]
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
