"""The flags of `pusl data convert`, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from pusl.config import option
from pusl.data import duplicates

FORMATS = (
    "auto", "xmc", "libsvm", "log", "hf", "table", "predictions", "vocabulary", "annif", "label-studio",
    "elasticsearch", "vespa",
)  # fmt: skip
TARGETS = ("rows", "annif", "label-studio", "elasticsearch", "vespa")
ACTIONS = ("update", "index")


@dataclass(frozen=True)
class ConvertConfig:
    """What the source is and where its parts are."""

    format: str = option("auto", "format of the source; auto looks at its structure", choices=FORMATS)
    to_format: str = option(
        "rows", "format to write; rows means JSONL, Parquet, CSV or TSV, by the file's ending", choices=TARGETS
    )
    vocabulary: str | None = option(
        None, "SKOS or Annif vocabulary: URIs and alternative labels in the source become preferred labels"
    )
    language: str | None = option(None, "language of the vocabulary's labels, e.g. en")
    alternatives: bool = option(False, "vocabulary to .txt: write alternative labels too")
    labels: str | None = option(
        None, "xmc, libsvm: label names, lbl.json(.gz) or one name per line (default: lbl.json beside the source)"
    )
    texts: str | None = option(
        None, "libsvm: the items' texts, one per line; predictions to label-studio: the items' file"
    )
    query_column: str = option("query", "log: column that holds the query")
    count_column: str = option(
        "count", "log: column that holds the number of interactions; without it each row counts as one"
    )
    min_count: int = option(1, "log: skip a query that has fewer interactions with the item", minimum=1)
    split: str | None = option(
        None, "hf: split of the dataset, e.g. train; all: every split, into the folder --to (validation becomes dev)"
    )
    config_name: str | None = option(None, "hf: configuration (subset) of the dataset")
    streaming: bool = option(False, "hf: stream from the Hub instead of downloading first")
    action: str = option(
        "update", "elasticsearch, vespa: update documents (and create missing ones), or replace them", choices=ACTIONS
    )
    index: str = option("items", "elasticsearch: name of the index")
    namespace: str = option("items", "vespa: namespace of the documents")
    document_type: str = option("item", "vespa: type of the documents")
    model_version: str = option("pusl", "label-studio: name that the predictions get")
    number_ids: bool = option(False, "use row numbers as ids, as happens when there is no id column")
    drop_unlabeled: bool = option(False, "skip items without keyphrases")
    duplicates: str = option("error", duplicates.HELP, choices=duplicates.WAYS)


@dataclass
class Report:
    """What came of a conversion."""

    format: str = ""
    to_format: str = "rows"
    textless: bool = False  # the source has predictions, so that a blank text is no mistake
    written: int = 0
    labels: int = 0
    notes: dict[str, int] = field(default_factory=dict)  # what was left out or mended -> how often
    warnings: list[str] = field(default_factory=list)  # what was guessed, and what looks wrong

    def note(self, what: str) -> None:
        """Counts one more of it."""
        self.notes[what] = self.notes.get(what, 0) + 1
