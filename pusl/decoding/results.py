"""Keyphrases of many texts -> a list that shows itself, as a table, as HTML, as a DataFrame or a `datasets` dataset."""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex, overload

from pusl.decoding import arguments
from pusl_eval.files import InputError

SHOWN = 10  # texts in a printed table
WIDTH = 60  # characters of a text in it
STREAM_BUFFER = 512  # texts that `stream` reads ahead


@dataclass
class Prediction:
    """Keyphrases of one text, best first.

    `scores` are log-probabilities of whole keyphrases (of a fused or calibrated model, probabilities), `normalized`
    the same per token. `exhausted`: the model had fewer than k to give. `truncated`: the text was longer than the model
    reads, and its end was not looked at.
    """

    keyphrases: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    exhausted: bool = False
    normalized: list[float] = field(default_factory=list)
    truncated: bool = False


class PredictionList(list[Prediction]):
    """A list with one `Prediction` per text, in their order; it can be turned into a DataFrame or a Dataset."""

    def __init__(self, predictions: Iterable[Prediction] = (), texts: Iterable[str] | None = None) -> None:
        super().__init__(predictions)
        self.texts = list(texts) if texts is not None else None

    @overload
    def __getitem__(self, place: SupportsIndex) -> Prediction: ...

    @overload
    def __getitem__(self, place: slice) -> PredictionList: ...

    def __getitem__(self, place: SupportsIndex | slice) -> Prediction | PredictionList:
        if isinstance(place, slice):
            texts = self._texts()
            return PredictionList(super().__getitem__(place), texts[place] if texts is not None else None)
        return super().__getitem__(place)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary per text: text (where it is known), keyphrases, scores, exhausted, truncated."""
        texts = self._texts()
        rows = []
        for number, one in enumerate(self):
            row: dict[str, Any] = {"text": texts[number]} if texts else {}
            row.update(
                keyphrases=list(one.keyphrases), scores=list(one.scores), exhausted=one.exhausted,
                truncated=one.truncated,
            )  # fmt: skip
            rows.append(row)
        return rows

    def to_pandas(self, *, explode: bool = False) -> Any:
        """A DataFrame with one row per text; with `explode`, one row per keyphrase with its rank and score."""
        try:
            import pandas
        except ImportError:
            raise InputError("to_pandas needs pandas; pip install pandas") from None
        if not explode:
            texts = ["text"] if self._texts() else []
            return pandas.DataFrame(
                self.to_dicts(), columns=[*texts, "keyphrases", "scores", "exhausted", "truncated"]
            )  # fmt: skip
        rows = [
            {"item": item, "rank": rank, "keyphrase": phrase, "score": score}
            for item, one in enumerate(self)
            for rank, (phrase, score) in enumerate(zip(one.keyphrases, one.scores, strict=True), 1)
        ]
        return pandas.DataFrame(rows, columns=["item", "rank", "keyphrase", "score"])

    def to_dataset(self) -> Any:
        """A `datasets.Dataset` with the same columns, to save with `save_to_disk` or to push to the Hub."""
        from datasets import Dataset, Features, List, Value

        kinds: dict[str, Any] = {"text": Value("string")} if self._texts() else {}
        kinds.update(keyphrases=List(Value("string")), scores=List(Value("float64")))
        kinds.update(exhausted=Value("bool"), truncated=Value("bool"))
        rows = self.to_dicts()
        return Dataset.from_dict({name: [row[name] for row in rows] for name in kinds}, features=Features(kinds))

    def _texts(self) -> list[str] | None:
        """The texts, as long as nobody has changed the list's length."""
        return self.texts if self.texts is not None and len(self.texts) == len(self) else None

    def __repr__(self) -> str:
        lines = [f"Predictions for {len(self):,} text{'s' if len(self) != 1 else ''}"]
        texts = self._texts()
        for number, one in enumerate(itertools.islice(self, SHOWN)):
            title = f"{number}" + (f"  {_short(texts[number])}" if texts else "") + _marks(one)
            lines.append(title)
            lines += [f"  {score:9.3f}  {phrase}" for phrase, score in zip(one.keyphrases, one.scores, strict=True)]
        if len(self) > SHOWN:
            lines.append(f"... and {len(self) - SHOWN:,} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        texts = self._texts()
        rows = []
        for number, one in enumerate(itertools.islice(self, SHOWN)):
            pairs = zip(one.keyphrases, one.scores, strict=True)
            phrases = " · ".join(f'<span title="{score:.4f}">{html.escape(phrase)}</span>' for phrase, score in pairs)
            text = f"<td>{html.escape(_short(texts[number]))}</td>" if texts else ""
            rows.append(f"<tr><td>{number}</td>{text}<td>{phrases}{_marks(one)}</td></tr>")
        more = f"<p>… and {len(self) - SHOWN:,} more</p>" if len(self) > SHOWN else ""
        head = "<tr><th></th>" + ("<th>text</th>" if texts else "") + "<th>keyphrases</th></tr>"
        return f"<table>{head}{''.join(rows)}</table>{more}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def _marks(one: Prediction) -> str:
    marks = [name for name in ("exhausted", "truncated") if getattr(one, name)]
    return f" ({', '.join(marks)})" if marks else ""


class Streaming:
    """`stream` for whatever has `generate`."""

    generate: Callable[..., Any]

    def stream(
        self, texts: Iterable[str], k: int, *, buffer: int = STREAM_BUFFER, **options: Any
    ) -> Iterator[Prediction]:
        """Predictions one by one, in order, for input that may never end; at most `buffer` texts are held.

        `options` are those of `generate`, except `known`.
        """
        if isinstance(texts, str):
            raise InputError("stream takes an iterable of texts; for one text use generate")
        if options.get("known") is not None:
            raise InputError("stream takes no known keyphrases; use generate")
        buffer = arguments.whole_number("buffer", buffer, 1)
        return self._streamed(iter(texts), k, buffer, options)

    def _streamed(self, texts: Iterator[str], k: int, buffer: int, options: dict[str, Any]) -> Iterator[Prediction]:
        done = 0
        while chunk := list(itertools.islice(texts, buffer)):
            yield from self.generate(arguments.text_list(chunk, start=done), k, **options)
            done += len(chunk)


def in_parts(work: Callable[[Sequence[int]], list[Any]], items: Sequence[int], size: int) -> list[Any]:
    """All results of `work`, a part at a time, with a bar."""
    from tqdm.auto import tqdm

    found: list[Any] = []
    with tqdm(total=len(items), unit="text") as bar:
        for start in range(0, len(items), size):
            found += work(items[start : start + size])
            bar.update(len(found) - bar.n)
    return found
