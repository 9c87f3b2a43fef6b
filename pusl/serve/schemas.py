"""JSON bodies <-> typed requests and answers; the source of the OpenAPI description."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

LOWEST_TEMPERATURE = 0.01


class KeyphraseRequest(BaseModel):
    """Texts, and how to generate keyphrases for them."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, json_schema_extra={
        "example": {"texts": ["Waterproof hiking boots for wide feet"], "k": 5},
    })  # fmt: skip
    # fail_fast: a body of 4 MiB can hold two million wrong items, and a message for each takes seconds and gigabytes.
    texts: Annotated[
        list[str],
        Field(min_length=1, fail_fast=True, description="One or more texts. Results come in the same order."),
    ]
    known: Annotated[
        Annotated[list[Annotated[list[str], Field(fail_fast=True)]], Field(fail_fast=True)] | None,
        Field(description="Keyphrases that each text already has, one list per text. The answer holds k further ones."),
    ] = None
    k: Annotated[int | None, Field(ge=1, strict=True, description="Keyphrases per text (default: the model's).")] = None
    strategy: Annotated[str | None, Field(description="Decoding strategy; `GET /v1/model` lists them.")] = None
    vocabulary: Annotated[
        Literal["open", "prefer", "closed"], Field(description="`prefer` and `closed` need a server with a universe.")
    ] = "open"
    allow_repeats: Annotated[bool, Field(strict=True, description="Keep repeated keyphrases.")] = False
    min_score: Annotated[float | None, Field(strict=True, description="Omit keyphrases with a lower score.")] = None
    temperature: Annotated[
        float | None, Field(ge=0, le=10, strict=True, description="0 searches; from 0.01 to 10 samples.")
    ] = None
    top_p: Annotated[
        float | None,
        Field(
            gt=0, le=1, strict=True, description="Sampling: only the most likely tokens, up to this total probability."
        ),
    ] = None
    num_beams: Annotated[int | None, Field(ge=1, le=64, strict=True, description="Beam width.")] = None
    seed: Annotated[
        int,
        Field(ge=0, lt=2**31, strict=True, description="Seed of the sampling; the same seed gives the same result."),
    ] = 0
    long: Annotated[
        Literal["cut", "window"],
        Field(description="Texts longer than the model reads are cut, or searched by overlapping windows."),
    ] = "cut"
    explain: Annotated[bool, Field(strict=True, description="Add marks: present, new, in_universe.")] = False

    @field_validator("temperature")
    @classmethod
    def _check_temperature(cls, value: float | None) -> float | None:
        """Below 0.01 sampling is a search in all but name, and close to 0 the division by it overflows."""
        if value is not None and 0 < value < LOWEST_TEMPERATURE:
            raise PydanticCustomError("temperature", f"must be 0 or at least {LOWEST_TEMPERATURE}")
        return value


class Mark(BaseModel):
    """Facts about one keyphrase; null where the server has no list to compare with."""

    present: bool = Field(description="The text contains its words.")
    offsets: list[list[int]] = Field(description="[start, end) of each occurrence, in characters.")
    new: bool | None = Field(description="No training item had it as a label.")
    in_universe: bool | None = Field(description="It is in the server's universe of real queries.")
    sources: dict[str, int] | None = Field(
        default=None, description="A fused model's sources that proposed it, with the rank each gave it."
    )


class KeyphraseResult(BaseModel):
    """Keyphrases of one text, best first."""

    keyphrases: list[str] = Field(description="Best first.")
    scores: list[float] = Field(description="Log-probability per keyphrase (a fused model: probability), same order.")
    exhausted: bool = Field(description="The model found fewer than k different keyphrases.")
    truncated: bool = Field(default=False, description="The text is longer than the model reads; its end was cut.")
    reason: str | None = Field(
        default=None, description="Why there are no keyphrases, such as `empty text`; only if the text is the reason."
    )
    marks: list[Mark] | None = Field(default=None, description="Only with `explain`.")


class KeyphraseResponse(BaseModel):
    """One result per text, in the order of the request."""

    model: str = Field(description="Name of the model.")
    k: int = Field(description="Keyphrases requested per text.")
    results: list[KeyphraseResult] = Field(description="One per text, in the order of the request.")


class ErrorBody(BaseModel):
    """Every answer that is not 2xx."""

    error: dict[Literal["code", "message"], str]


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in (
        (400, "The body is not JSON."), (401, "The API key is missing or wrong."),
        (413, "Too many texts, a text that is too long, a body that is too large, or too much work."),
        (408, "The body did not arrive in time."), (421, "The Host header is not a name of this server."),
        (500, "The model failed; the log has the request id."), (431, "The headers are too large."),
        (415, "The body is not declared as JSON."),
        (422, "A field is missing, unknown or out of range, or a text takes too long."),
        (429, "The queue is full; see Retry-After."), (504, "No answer within the time limit."),
        (503, "The model is loading or the service is stopping; see Retry-After."),
    )
}  # fmt: skip


def pick(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a path that has only some of them."""
    return {status: ERRORS[status] for status in statuses}
