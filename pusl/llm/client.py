"""Prompts -> answers from any OpenAI-compatible endpoint; texts -> zero-shot keyphrases.

One client for the judge and the generator. It retries errors that may pass (429, 5xx, timeouts, dropped
connections, bodies that are not JSON), stops at once on errors that will not (a wrong key, address or
model), learns which parameters the endpoint accepts, and keeps exact counts. The key is read from the
environment at the first request, and is never stored, logged or printed.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pusl.llm.answers import Answer, AnswerStore, key_of
from pusl.llm.endpoint import (
    DEFAULT_URL,
    FORMATS,
    BadAnswer,
    EndpointError,
    Ledger,
    LLMSettings,
    RequestFailed,
    Usage,
    cause_of,
    read_answer,
    retry_after,
    server_message,
)
from pusl.llm.prompts import KEYPHRASES_VERSIONS, Prompt, item_block, keyphrases_prompt, parse_keyphrases
from pusl.llm.threads import run_all
from pusl_eval.files import InputError, check_output
from pusl_eval.normalize import distinct

_RETRIED = frozenset((408, 409, 425, 429))  # and every 5xx
_REJECTED = ("HTTP 400", "HTTP 413", "HTTP 422")  # only this request is wrong: too long, filtered, a parameter
_LONGEST_BACKOFF = 30.0  # seconds
_LONGEST_WAIT = 120.0  # seconds; a server may ask for more
_LONGEST_BODY = 16 * 2**20  # bytes; an answer has some thousand
_RETRIES_BEFORE_CONTACT = 3  # no connection yet: probably a wrong address


class LLMClient:
    """Asks one endpoint; threads may share it. `usage` counts requests and answers."""

    def __init__(self, settings: LLMSettings, patience: int = 3) -> None:
        """`patience`: after this many failed requests in a row, retries included, the endpoint counts as down."""
        settings.url  # noqa: B018 (a wrong address fails before anything is made)
        self.settings, self.patience = settings, patience
        self.ledger = Ledger(settings)
        self._lock = threading.Lock()
        self._client: Any = None
        self._closed = False
        self._key = ""
        self._secrets: list[str] = []  # the key, and what the address holds besides host and path
        self._pause_until = 0.0  # a 429 pauses every thread, not only the one that received it
        self._failed_in_a_row = 0
        self._dropped: set[str] = set()  # parameters that this endpoint does not accept
        self._last_rejection = ""

    @property
    def usage(self) -> Usage:
        """Requests, answers, retries and tokens so far."""
        return self.ledger.usage

    def ask(self, prompt: Prompt) -> Answer:
        """The answer to one prompt. Raises InputError (wrong key, address, model), RequestFailed or EndpointError."""
        reserved = self.ledger.reserve(prompt)
        answer = None
        try:
            answer = self._ask(prompt)
            return answer
        finally:
            self.ledger.settle(prompt, answer, reserved)

    def _ask(self, prompt: Prompt) -> Answer:
        fault, tried = "", 0
        without: set[str] = set()  # parameters omitted after a complaint; remembered if that helped
        retries = self.settings.retries
        while tried <= retries:
            self._wait()
            parameters = self._parameters(prompt, self._dropped | without)
            answer, fault, wait = self._send(parameters)
            if answer is not None:
                with self._lock:
                    self._failed_in_a_row = 0
                    self._dropped = self._dropped | without
                return answer
            if fault.startswith(_REJECTED):
                if suspect := self._suspect(parameters, fault):
                    without.add(suspect)
                    continue
                with self._lock:
                    self.usage.rejected += 1
                    self._last_rejection = fault
                if self.usage.rejected >= 10:
                    self.check_rejections()
                return Answer(None, problem=fault)
            if not fault.startswith("HTTP"):
                self.ledger.lose(prompt)
                if fault.startswith("connection") and not self.usage.answers:
                    retries = min(retries, _RETRIES_BEFORE_CONTACT)
            tried += 1
            if tried <= retries:
                self._note_retry(fault, tried, wait)
        with self._lock:
            self._failed_in_a_row += 1
            down = self._failed_in_a_row >= self.patience
        message = f"{self.settings.endpoint} gave no answer after {tried} tries (last: {fault})"
        raise (EndpointError if down else RequestFailed)(message)

    def trusted(self, answer: Answer) -> bool:
        """False for a rejection before the first answer: then the flags may be wrong, not the item."""
        return bool(answer.finish or self.usage.answers)

    def check_rejections(self) -> None:
        """Raises an InputError if the endpoint has rejected every request: the flags must be wrong."""
        if self.usage.rejected and not self.usage.answers:
            raise InputError(
                f"{self.settings.endpoint} rejects every request ({self._last_rejection})\n"
                "Check the model's name and the flags of the request, such as --max-answer-tokens."
            )

    def _send(self, parameters: dict[str, Any]) -> tuple[Answer | None, str, float | None]:
        """One HTTP request -> (answer, "", None), or (None, the error, the wait that the server asks for)."""
        import openai

        client = self._open()
        with self._lock:
            self.usage.requests += 1
        try:
            with client.chat.completions.with_streaming_response.create(**parameters) as response:
                answer = read_answer(self._body(response))
            return replace(answer, text=answer.text and self._without_secrets(answer.text)), "", None
        except openai.APIStatusError as error:
            status, text = error.status_code, self._hide(server_message(error))
            if status == 402 or (status == 429 and "insufficient_quota" in text):
                raise EndpointError(f"{self.settings.endpoint}: the account has no credit left ({text})") from None
            if status in (400, 413, 422):
                return None, f"HTTP {status}: {text}", None
            if status in _RETRIED or status >= 500:
                return None, f"HTTP {status}", retry_after(error.response.headers)
            raise InputError(self._refused(status, text)) from None
        except openai.APITimeoutError:
            return None, "timeout", None
        except openai.APIConnectionError as error:
            return None, f"connection: {self._hide(cause_of(error))}", None
        except (openai.APIError, BadAnswer, UnicodeError) as error:
            return None, f"unreadable body ({self._hide(cause_of(error))})", None

    def _body(self, response: Any) -> str:
        """The body of a response. HTTP timeouts are per read, so one that drips is ended here, and one that is huge."""
        import openai

        deadline, size = time.monotonic() + self.settings.timeout, 0
        chunks: list[bytes] = []
        parts = iter(response.iter_bytes())
        while True:
            try:
                chunk = next(parts, None)
            except Exception as error:  # the transport's own kinds, which `openai` wraps only until the body begins
                if "Timeout" in type(error).__name__:
                    raise openai.APITimeoutError(response.http_request) from error
                raise openai.APIConnectionError(request=response.http_request) from error
            if chunk is None:
                return b"".join(chunks).decode("utf-8")
            chunks.append(chunk)
            size += len(chunk)
            if time.monotonic() > deadline:
                raise openai.APITimeoutError(response.http_request)
            if size > _LONGEST_BODY:
                raise BadAnswer(f"more than {_LONGEST_BODY:,} bytes")

    def close(self) -> None:
        """Closes the connections; threads that are still working make no further request."""
        with self._lock:
            self._closed = True
            if self._client is not None:
                self._client.close()

    def __enter__(self) -> LLMClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refused(self, status: int, text: str) -> str:
        settings = self.settings
        if status == 401 and not self._key:
            return f"{settings.endpoint} needs an API key (HTTP 401); export it in ${settings.key_variable}"
        if status in (401, 403):
            return (
                f"{settings.endpoint} does not accept the key in ${settings.key_variable}, or not for model "
                f"{settings.model!r} (HTTP {status}: {text})\nSet ${settings.key_variable}, or name another variable "
                "with --key-variable."
            )
        if status == 404:
            return (
                f"{settings.endpoint} does not know the address or the model {settings.model!r} (HTTP 404: {text})\n"
                "Check --base-url (it usually ends in /v1) and the model's name."
            )
        return f"{settings.endpoint} does not accept the request (HTTP {status}: {text}); check --base-url and --model"

    def _open(self) -> Any:
        """The HTTP client, created for the first request: a replay needs neither a key nor `openai`."""
        import openai

        with self._lock:
            if self._closed:
                raise EndpointError("the client is closed")
            if self._client is None:
                settings = self.settings
                self._key = os.environ.get(settings.key_variable, "").strip()
                if not self._key and urlsplit(settings.url).hostname == urlsplit(DEFAULT_URL).hostname:
                    raise InputError(
                        f"${settings.key_variable} is not set; export your API key in it, or point --base-url to an "
                        "endpoint that needs no key"
                    )
                if not (self._key.isascii() and self._key.isprintable()):
                    raise InputError(
                        f"${settings.key_variable} holds characters that no API key contains; set it again"
                    )
                address, query = settings.address
                self._secrets = [text for text in (self._key, *settings.secrets) if len(text) > 3]
                self._client = openai.OpenAI(
                    api_key=self._key or "none", base_url=address, default_query=query, timeout=settings.timeout,
                    max_retries=0,
                )  # fmt: skip
            return self._client

    def _parameters(self, prompt: Prompt, without: set[str]) -> dict[str, Any]:
        settings = self.settings
        found: dict[str, Any] = {
            "model": settings.model, "messages": prompt.messages, "temperature": settings.temperature
        }  # fmt: skip
        if settings.max_answer_tokens is not None:
            # The first is the newer name: some servers ignore it, others reject the second.
            found["max_completion_tokens"] = found["max_tokens"] = settings.max_answer_tokens
        wanted = settings.response_format
        if wanted == "auto":
            wanted = next(kind for kind in FORMATS if kind not in without)
        if wanted == "json_schema":
            schema = {"name": prompt.version.replace("-", "_"), "strict": True, "schema": prompt.schema}
            found["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif wanted == "json_object":
            found["response_format"] = {"type": "json_object"}
        return {name: value for name, value in found.items() if name not in without}

    def _suspect(self, parameters: dict[str, Any], fault: str) -> str | None:
        """After HTTP 400: the parameter that the message names, or the structured output; None if neither."""
        said = fault.lower()
        for name in ("temperature", "max_tokens", "max_completion_tokens"):
            if name in parameters and name in said:
                return name
        words = r"response.?format|json|schema|structured|grammar|unknown|unrecognized|unsupported|extra"
        if "response_format" in parameters and self.settings.response_format == "auto" and re.search(words, said):
            return str(parameters["response_format"]["type"])
        return None

    def _wait(self) -> None:
        while (delay := self._pause_until - time.monotonic()) > 0:
            # Spread the threads, so that they do not hit the limit together again.
            time.sleep(delay + random.random() * min(0.1, self.settings.backoff))

    def _note_retry(self, fault: str, tried: int, wait: float | None) -> None:
        settings = self.settings
        pause = min(_LONGEST_BACKOFF, settings.backoff * 2 ** (tried - 1)) * (0.75 + 0.5 * random.random())
        with self._lock:
            self.usage.retries += 1
            kind = fault.split(":")[0].split(" (")[0]
            self.usage.faults[kind] = self.usage.faults.get(kind, 0) + 1
            if fault == "HTTP 429":
                pause = min(_LONGEST_WAIT, wait) if wait is not None else pause
                self._pause_until = max(self._pause_until, time.monotonic() + pause)
        if fault != "HTTP 429":
            time.sleep(max(pause, min(_LONGEST_WAIT, wait or 0.0)))

    def _hide(self, text: str) -> str:
        """A message for people: without secrets that the endpoint repeats, and without control characters."""
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        text = re.sub(r"\bsk-[\w*.-]{4,}", "[key]", text)  # OpenAI's messages hold a masked copy
        return " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text).split())

    def _without_secrets(self, text: str) -> str:
        """An answer as it is stored. It may be about "sk-8 boards", so only long secrets are removed.

        The answer may hold JSON, and JSON can spell a letter as an escape.
        """
        for secret in self._secrets:
            if len(secret) >= 16:
                letters = (rf"(?:{re.escape(letter)}|(?i:\\u{ord(letter):04x}))" for letter in secret)
                text = re.sub("".join(letters), "[key]", text)
        return text


@dataclass
class LLMPrediction:
    """One item's keyphrases, best first, with the fields of a trained model's prediction."""

    keyphrases: list[str]
    scores: list[float] | None = None  # a chat model gives no scores
    exhausted: bool = False  # fewer than k, even after a second request


class LLMGenerator:
    """Zero-shot keyphrases from a chat model, as one more system in comparisons.

    >>> generator = LLMGenerator(LLMSettings(model="llama3", base_url="http://localhost:11434/v1"))
    >>> generator.generate(["Zeto X2 drone with 4k camera"], k=5)  # doctest: +SKIP
    [LLMPrediction(keyphrases=['4k drone', ...], scores=None, exhausted=False)]
    """

    def __init__(self, settings: LLMSettings, cache: str | Path | None = None, max_chars: int = 8000) -> None:
        """`cache` is the SQLite file of answers; without it nothing is stored."""
        self.client = LLMClient(settings)
        self._cache = Path(cache) if cache is not None else None
        self._stores: list[AnswerStore] = []
        self.max_chars = max_chars
        self.close = weakref.finalize(self, _close, self.client, self._stores)  # or at deletion
        if self._cache and self._cache.exists():
            self._open_store()  # a file of another program is refused before anything is asked
        elif self._cache:
            check_output(self._cache, force=True)

    def _open_store(self) -> None:
        if self._cache and not self._stores:
            self._stores.append(AnswerStore(self._cache))

    def generate(self, texts: Sequence[str], k: int, **options: Any) -> list[LLMPrediction]:
        """k different keyphrases per text, in input order.

        `batch_size` and `seed` are ignored. Any other decoding option that a chat model lacks is an InputError.
        """
        if options.get("temperature") is not None:
            self.client.settings = replace(self.client.settings, temperature=options["temperature"])
        refuse_decoding(options)
        if texts:
            self._open_store()  # not before there is something to ask: wrong input leaves no file
        found: list[LLMPrediction | None] = [None] * len(texts)
        jobs = enumerate(texts)
        for (place, _), prediction in run_all(lambda job: self._one(job[1], k), jobs, self.client.settings.concurrency):
            found[place] = prediction
        self.client.check_rejections()
        return [prediction for prediction in found if prediction is not None]

    def _one(self, text: str, k: int) -> LLMPrediction:
        """Asks once, and once more if keyphrases are missing."""
        block = item_block({"text": text}, self.max_chars)
        settings, phrases = self.client.settings, list[str]()
        for attempt in range(2):
            if len(phrases) < k:
                answer = self._ask(keyphrases_prompt(block, k - len(phrases), phrases, settings.prompt), attempt)
                phrases = distinct([*phrases, *(parse_keyphrases(answer.text) or [])])
        return LLMPrediction(phrases[:k], exhausted=len(phrases) < k)

    def _ask(self, prompt: Prompt, attempt: int) -> Answer:
        settings = self.client.settings
        key = key_of(settings.model, prompt.version, settings.temperature, prompt.messages, attempt)
        store = self._stores[0] if self._stores else None
        answer = store.answer(key) if store else None
        if answer is None:
            answer = self.client.ask(prompt)
            if store and self.client.trusted(answer):
                store.save(key, prompt, answer, settings.model, settings.endpoint)
        return answer


def refuse_decoding(options: Mapping[str, Any]) -> None:
    """An InputError for a decoding option that a chat model lacks."""
    for name, value in options.items():
        if name not in ("batch_size", "seed", "temperature") and value not in (None, False, "open"):
            raise InputError(
                f"--{name.replace('_', '-')} {value} does not work with --llm; a chat model has no such option"
            )


def _close(client: LLMClient, stores: Sequence[AnswerStore]) -> None:
    client.close()
    for store in stores:
        store.close()


@dataclass(frozen=True)
class LLMSpec:
    """The settings of an LLMGenerator; unlike the generator, they can be pickled for other processes."""

    settings: LLMSettings
    cache: str | None = None
    max_chars: int = 8000

    def load(self) -> LLMGenerator:
        """The generator; no request is made yet."""
        return LLMGenerator(self.settings, self.cache, self.max_chars)

    def fingerprint(self) -> dict[str, Any]:
        """The settings that affect the predictions."""
        settings = self.settings
        return {
            "llm": settings.model, "prompt": KEYPHRASES_VERSIONS[settings.prompt], "temperature": settings.temperature,
            "max_answer_tokens": settings.max_answer_tokens, "max_chars": self.max_chars,
        }  # fmt: skip
