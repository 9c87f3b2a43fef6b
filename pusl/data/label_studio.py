"""Label Studio tasks -> examples (annotations as references), and predictions or examples -> tasks to pre-annotate.

Import reads an export in JSON or JSON-MIN. Of a task it takes what annotators typed (TextArea), chose (Choices,
Taxonomy) or marked (Labels). Export writes a JSON list of tasks whose predictions fit this labeling interface:

  <View>
    <Text name="text" value="$text"/>
    <TextArea name="keyphrases" toName="text" editable="true" maxSubmissions="0"/>
  </View>
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pusl.data.convert_config import ConvertConfig, Report
from pusl.data.json_stream import json_values
from pusl.examples import Columns, Example, render_text
from pusl_eval.columns import ItemFields
from pusl_eval.files import InputError, Row, open_atomic, to_json, type_name
from pusl_eval.normalize import distinct

SPANS = ("labels", "hypertextlabels", "paragraphlabels")


def looks_like_tasks(source: str | Path) -> bool:
    """Whether the first value is a task with its data and annotations or predictions."""
    _, first = next(json_values(source), (0, None))
    if not isinstance(first, dict) or not isinstance(first.get("data"), dict):
        return False
    return bool({"annotations", "predictions", "id"} & first.keys())


def read_tasks(source: str, config: ConvertConfig, columns: Columns, report: Report) -> Iterator[Example]:
    """One example per task; the keyphrases of several annotators are united, skipped tasks have none."""
    fields = ItemFields(columns, table=False)
    control = columns.keyphrases_column
    for number, task in json_values(source):
        where = f"{source}: task {number}"
        if not isinstance(task, dict):
            raise InputError(f"{where}: expected an object, found {type_name(task)}")
        data = task.get("data", task)
        if not isinstance(data, dict):
            raise InputError(f"{where}: 'data' must be an object, found {type_name(data)}")
        item = data.get(columns.id_column, task.get("id", number))
        if isinstance(item, bool) or not isinstance(item, (str, int)):
            raise InputError(f"{where}: the id must be a string or an integer, found {type_name(item)}")
        text = render_text(data, fields, source, number)
        whole = "data" in task
        phrases = _annotated(task, control, where, report) if whole else _minimal(task.get(control), where)
        yield Example(str(item), text, distinct(phrases))


def _annotated(task: Row, control: str, where: str, report: Report) -> list[str]:
    given = task.get("annotations") or []
    if not isinstance(given, list) or not all(isinstance(annotation, dict) for annotation in given):
        raise InputError(f"{where}: 'annotations' must be a list of objects (export as JSON, not CSV)")
    done = [annotation for annotation in given if not annotation.get("was_cancelled")]
    if not done:
        report.note("tasks without an annotation")
    elif len(done) > 1:
        report.note("tasks with several annotations, which were united")
    results = [result for annotation in done for result in annotation.get("result") or []]
    results = [result for result in results if isinstance(result, dict) and isinstance(result.get("value"), dict)]
    named = [result for result in results if result.get("from_name") == control]
    return [phrase for result in named or results for phrase in _phrases(result, where)]


def _phrases(result: Row, where: str) -> list[str]:
    kind, value = result.get("type"), result["value"]
    if kind == "textarea":
        found: Any = value.get("text", [])
    elif kind in ("choices", "taxonomy"):
        found = value.get(kind, [])
        if kind == "taxonomy":
            found = [path[-1] if isinstance(path, list) and path else path for path in found]
    elif kind in SPANS:
        found = value.get("text", [])
    else:
        return []
    return _minimal(found, where)


def _minimal(found: Any, where: str) -> list[str]:
    """A string, a list of strings, or {"choices": [...]}, as JSON-MIN has them."""
    if found is None:
        return []
    if isinstance(found, dict):
        found = next((value for name, value in found.items() if name in ("choices", "text", "taxonomy")), [])
    if isinstance(found, str):
        found = [found]
    if isinstance(found, list) and all(isinstance(one, dict) for one in found):
        found = [one.get("text", "") for one in found]
    if not isinstance(found, list) or not all(isinstance(phrase, str) for phrase in found):
        raise InputError(f"{where}: expected keyphrases as a list of strings, found {type_name(found)}")
    return [phrase.strip() for phrase in found if phrase.strip()]


def write_tasks(to: str | Path, examples: Iterable[Example], config: ConvertConfig, report: Report, force: bool) -> int:
    """Writes tasks as a JSON list, one per line; returns how many."""
    if not str(to).removesuffix(".gz").endswith(".json"):
        raise InputError(f"{to}: Label Studio imports a JSON list; name a file that ends in .json")
    count = 0
    with open_atomic(to, force) as stream:
        for example in examples:
            stream.write(("[\n" if count == 0 else ",\n") + to_json(_task(example, config.model_version)))
            count += 1
        stream.write("\n]\n" if count else "[]\n")
    return count


def _task(example: Example, version: str) -> Row:
    """The id stays in the data, so that annotations find their item again. A share of right ones is the score."""
    result = {
        "from_name": "keyphrases", "to_name": "text", "type": "textarea", "value": {"text": example.keyphrases},
    }  # fmt: skip
    prediction: Row = {"model_version": version, "result": [result] if example.keyphrases else []}
    chances = example.extra.get("probabilities") or example.extra.get("scores") or []
    if chances and all(0 <= chance <= 1 for chance in chances):
        prediction["score"] = sum(chances) / len(chances)
    return {"data": {"id": example.id, "text": example.text}, "predictions": [prediction]}
