"""A Hugging Face dataset, from a folder or the hub -> examples; predictions and scores -> a dataset's folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pusl.examples import Columns, Example, examples_of
from pusl_eval.columns import ItemFields, choose_ids
from pusl_eval.files import InputError, folder_atomic
from pusl_eval.records import read_predictions


def dataset_rows(
    source: str,
    columns: Columns,
    split: str | None = None,
    config_name: str | None = None,
    streaming: bool = False,
    number_ids: bool = False,
    warnings: list[str] | None = None,
) -> Iterator[Example]:
    """Streams a dataset's rows as examples. Label numbers become names where the dataset knows them."""
    dataset = load(source, split, config_name, streaming)
    names = _class_names(dataset, columns.keyphrases_column)
    column = columns.keyphrases_column

    def rows() -> Iterator[tuple[int, dict[str, Any]]]:
        for number, row in enumerate(dataset, 1):
            if names is not None and isinstance(row.get(column), (list, int)):
                values = row[column] if isinstance(row[column], list) else [row[column]]
                row = {**row, column: [names[value] for value in values]}
            yield number, row

    present = getattr(dataset, "column_names", None) or []
    columns, numbered = choose_ids(columns, present, number_ids, [] if warnings is None else warnings)
    fields = ItemFields(columns, table=True, split_lists=False)
    yield from examples_of(rows(), source, fields, numbered=numbered)


def load(source: str, split: str | None, config_name: str | None, streaming: bool) -> Any:
    """One split of a dataset; an InputError says what went wrong and which splits there are."""
    loaded = _load_all(source, config_name, streaming)
    if not isinstance(loaded, dict):
        if split is not None:
            raise InputError(f"{source}: has only one split; omit --split")
        return loaded
    if split is None and len(loaded) == 1:
        return next(iter(loaded.values()))
    if split not in loaded:
        asked = f"no split '{split}'" if split else "several splits"
        raise InputError(f"{source}: {asked} (found: {', '.join(loaded)}). Name one with --split, or all of them: all")
    return loaded[split]


def is_saved(folder: str | Path) -> bool:
    """Whether `save_to_disk` made the folder."""
    return any((Path(folder) / name).is_file() for name in ("dataset_dict.json", "state.json"))


def split_files(source: str, folder: str | Path, config_name: str | None = None) -> dict[str, Path]:
    """Split -> the file for it: train, dev (validation) and test as the other commands expect them."""
    loaded = _load_all(source, config_name, streaming=True)
    if not isinstance(loaded, dict):
        raise InputError(f"{source}: has only one split; omit --split all and name a file with --to")
    names = {split: "dev" if split in ("validation", "valid", "val") else split for split in loaded}
    if len(set(names.values())) < len(names):
        names = {split: split for split in loaded}
    return {split: Path(folder) / f"{name}.jsonl" for split, name in names.items()}


def _load_all(source: str, config_name: str | None, streaming: bool) -> Any:
    """A dataset, or {split: dataset}."""
    import logging

    import datasets

    datasets.disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries would fill the screen
    try:
        if is_saved(source):
            loaded = datasets.load_from_disk(source)
        else:
            loaded = datasets.load_dataset(source, config_name, streaming=streaming)
    except KeyboardInterrupt:
        raise
    except Exception as error:  # datasets and the hub client raise a dozen kinds; all mean: cannot be loaded
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{source}: `datasets` cannot load it ({reason})") from None
    return loaded


def check_dataset_folder(folder: str | Path, force: bool, output: str | Path | None = None) -> None:
    """An InputError unless a dataset may be written there, beside the command's other output."""
    folder = Path(folder)
    if output and folder.absolute() in (Path(output).absolute(), *Path(output).absolute().parents):
        raise InputError(f"--dataset {folder}: would replace --output {output}; name another folder")
    if folder.exists() and not (folder / "dataset_info.json").is_file():
        raise InputError(f"--dataset {folder}: exists and is not a dataset; name a new folder")
    if folder.exists() and not force:
        raise InputError(f"--dataset {folder}: exists already; pass --force to overwrite it")


def save_predictions(predictions: str | Path, folder: str | Path) -> None:
    """A predictions file of any kind -> a folder for `datasets.load_from_disk`, streamed, whole or not at all."""
    import datasets

    text, numbers = datasets.Value("string"), datasets.List(datasets.Value("float64"))
    flag = datasets.Value("bool")
    kinds = {
        "id": text, "keyphrases": datasets.List(text), "scores": numbers, "exhausted": flag, "truncated": flag,
    }  # fmt: skip

    def rows() -> Iterator[dict[str, Any]]:
        for one in read_predictions(predictions):
            cut = one.extra.get("truncated") in (True, "true", "True", 1)
            yield {"id": one.id, "keyphrases": one.keyphrases, "scores": one.scores, "exhausted": one.exhausted,
                   "truncated": cut}  # fmt: skip

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache, folder_atomic(folder) as staging:
        made = datasets.Dataset.from_generator(rows, features=datasets.Features(kinds), cache_dir=cache)
        made.save_to_disk(str(staging))


def save_scores(rows: Iterable[Mapping[str, Any]], folder: str | Path) -> None:
    """Rows of `pusl_eval.score_rows` -> a folder for `datasets.load_from_disk`, whole or not at all."""
    import datasets

    number = datasets.Value("float64")
    kinds = {name: datasets.Value("string") for name in ("system", "group", "metric")}
    kinds |= {name: number for name in ("value", "low", "high")}
    datasets.disable_progress_bars()
    with folder_atomic(folder) as staging:
        datasets.Dataset.from_list([*rows], features=datasets.Features(kinds)).save_to_disk(str(staging))


def _class_names(dataset: Any, column: str) -> list[str] | None:
    """The names behind a column of class numbers, if it is one."""
    feature = (getattr(dataset, "features", None) or {}).get(column)
    inner = getattr(feature, "feature", feature)
    if isinstance(inner, (list, tuple)) and inner:
        inner = inner[0]
    names = getattr(inner, "names", None)
    return list(names) if names else None
