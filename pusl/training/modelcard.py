"""A model folder -> README.md, the card of the model: what it is, what it learned from, how good it is, how to use it.

The metadata at its top is what the Hub reads. `library_name` is pusl, because only PUSL decodes the model as it was
trained; transformers loads the weights. A base model is named if it is on the Hub: a path means nothing to others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pusl import paradigms
from pusl.checkpoint import read_meta
from pusl.fusion.folder import is_fused, read_fused
from pusl_eval.budgets import budget
from pusl_eval.files import InputError, open_atomic, read_json

METRIC_TEXT = {"F1@O": "F1@O", "B@mu": "B@μ", "B@2mu": "B@2μ", "K@2mu": "#K@2μ"}
PLACEHOLDER = "DIR"  # stands for the model's name in the lines that load it, until it is pushed
PIPELINE = "text-generation"  # the Hub files sequence-to-sequence models under it
WIDGET_TEXT = "Folding drone with a 4k camera, GPS and a bag, flies up to 30 minutes"


def write_card(folder: str | Path, record: Mapping[str, Any]) -> None:
    """Writes the model card of the run whose run.json is `record`."""
    with open_atomic(Path(folder) / "README.md", force=True) as stream:
        stream.write(render_card(record))


def render_card(record: Mapping[str, Any]) -> str:
    """The card's Markdown."""
    config, summary, best = record["config"], record["summary"], record["best"]
    k = budget(config.get("mu") or summary["mu"], 2)
    data = metadata(
        config["paradigm"], base=config["model"], scores=best or {},
        dataset=config.get("dataset"), tested_on=Path(config["dev"]).name if config["dev"] else "",
        license=config.get("license"), language=config.get("language"),
    )  # fmt: skip
    lines = [
        f"---\n{data}\n---\n",
        f"# Keyphrase model ({config['paradigm']})\n",
        f"Generates keyphrases for a text: {paradigms.get(config['paradigm']).summary}. Made with `pusl train`.\n",
        "## Training\n",
        "| | |\n|---|---|",
        f"| base model | `{_base_name(config['model'])}`, {record['parameters'] / 1e6:.1f} M parameters |",
        f"| training data | `{Path(config['train']).name}`: {summary['trained']:,} items with keyphrases of "
        f"{summary['items']:,}, {summary['labels']:,} labels, μ = {summary['mu']:.2f} |",
        f"| SHA-256 of the data | `{record['data']['train']['sha256']}` |",
        f"| objective | {config['loss']} loss, keyphrases in {config['order']} order |",
        f"| steps | {record['steps']:,} of {record['max_steps']:,}, about {config['batch_size']} items each"
        f"{', stopped early' if record['stopped_early'] else ''} |",
        f"| optimizer | {config['optimizer']}, learning rate {config['lr']:g}, {config['warmup']:.0%} warm-up, "
        "linear decay |",
        f"| seed, time | {config['seed']}; {record['timings']['train'] / 60:.1f} min training |",
        "",
    ]
    if best:
        lines += [
            "## Dev scores of this model\n",
            f"Step {int(best['step'])}, at most {config['dev_items']} items of `{Path(config['dev']).name}`, chosen by "
            f"{METRIC_TEXT[config['metric']]}. They chose the model, so they are too good: score it on a test file. "
            f"F1@O is of lists of {k} phrases (2μ), a lower bound.\n",
            "| " + " | ".join(METRIC_TEXT.values()) + " |\n" + "|---" * len(METRIC_TEXT) + "|",
            "| " + " | ".join(_number(name, best.get(name)) for name in METRIC_TEXT) + " |\n",
        ]
    lines += [
        _use(k),
        "The folder is also a plain Hugging Face checkpoint: `AutoModelForSeq2SeqLM` and `AutoTokenizer` load it. "
        "Labels were incomplete by assumption: a keyphrase that is missing from a reference list may still be right.\n",
    ]
    return "\n".join(lines)


def render_fused_card(folder: str | Path) -> str:
    """The card of a fused model, from its pusl.json and fusion.json."""
    meta = read_fused(folder)
    path = Path(folder) / "fusion.json"
    report = read_json(path) if path.is_file() else {}
    names = ", ".join(source["name"] for source in meta["sources"])
    percent = report.get("percent", {})
    scores = {name: value / 100 for name, value in percent.get("fused", {}).items()}
    lines = [
        f"---\n{metadata('fused', scores=scores)}\n---\n",
        "# Keyphrase model (fused)\n",
        f"Ranks what several sources propose for a text: {names}. Made with `pusl fuse`.\n",
        "The folder holds the texts and labels of its training items: neighbors vote for their labels.\n",
    ]
    if percent:
        heads = list(percent["fused"])
        rows = "\n".join(
            f"| {name} | " + " | ".join(f"{row[head]:.1f}%" for head in heads) + " |" for name, row in percent.items()
        )
        lines += [
            f"## Scores on {report['dev_items']:,} dev items, by folds\n",
            "| | " + " | ".join(heads) + " |\n" + "|---" * (len(heads) + 1) + f"|\n{rows}\n",
        ]
    lines.append(_use(int(meta["defaults"].get("k") or 10)))
    return "\n".join(lines)


def metadata(
    paradigm: str,
    *,
    base: str = "",
    scores: Mapping[str, float] | None = None,
    tested_on: str = "",
    dataset: str | None = None,
    license: str | None = None,
    language: str | None = None,
) -> str:
    """The YAML at a card's top, without its fences."""
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type=PIPELINE, task_name="Keyphrase generation", dataset_type=dataset or "other",
            dataset_name=tested_on or "development items", metric_type=name, metric_name=METRIC_TEXT.get(name, name),
            metric_value=round(float(value), 4),
        )
        for name, value in (scores or {}).items()
        if name != "step"
    ]  # fmt: skip
    data = ModelCardData(
        library_name="pusl", pipeline_tag=PIPELINE, license=license, language=_words(language),
        base_model=hub_base(base), datasets=[dataset] if dataset else None,
        tags=list(dict.fromkeys(("keyphrase-generation", "pusl", paradigm))),
        model_name=f"Keyphrase model ({paradigm})" if results else None, eval_results=results or None,
        widget=[{"text": WIDGET_TEXT}],
    )  # fmt: skip
    return str(data.to_yaml()).strip()


def hub_base(name: str) -> str | None:
    """The base model's id on the Hub, without a revision; None for folders and random weights."""
    from pusl.hub import parse_id

    asked = None if Path(name).exists() else parse_id(name)
    return asked[0] if asked else None


def card_for_push(folder: str | Path, repository: str, more: Mapping[str, Any]) -> str:
    """The folder's card (one is made if it has none) with the repository's name and further metadata."""
    from huggingface_hub import ModelCard

    path = Path(folder) / "README.md"
    if path.is_file():
        text = path.read_text(encoding="utf-8")
    elif is_fused(folder):
        text = render_fused_card(folder)
    else:
        meta = read_meta(folder)
        data = metadata(meta["paradigm"], base=str(meta.get("base_model", "")), scores=meta.get("dev") or {})
        text = f"---\n{data}\n---\n\n# Keyphrase model ({meta['paradigm']})\n\n" + _use(10)
    for line in ("--model {} ", 'from_pretrained("{}")'):
        text = text.replace(line.format(PLACEHOLDER), line.format(repository))
    try:
        card = ModelCard(text, ignore_metadata_errors=False)
        for name, value in more.items():
            if value is not None:
                setattr(card.data, name, value)
        base = getattr(card.data, "base_model", None)
        if isinstance(base, str) and hub_base(base) is None:
            setattr(card.data, "base_model", None)  # noqa: B010 - a folder of this machine; the field is untyped
        return str(card)
    except Exception as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{path}: the card's metadata (between ---) cannot be read ({reason})") from None


def _use(k: int) -> str:
    return (
        "## Use\n\n"
        "```sh\npip install pusl\n"
        f"pusl generate --model {PLACEHOLDER} --input catalog.jsonl --output predictions.jsonl -k {k}\n```\n\n"
        "```python\nfrom pusl import KeyphraseGenerator\n\n"
        f'generator = KeyphraseGenerator.from_pretrained("{PLACEHOLDER}")\n'
        f'print(generator.generate("a text", k={k})[0].keyphrases)\n```\n'
    )


def _base_name(name: str) -> str:
    """A folder's last part only: the rest of the path is nobody's business."""
    return Path(name).name if Path(name).exists() else name


def _words(text: str | Sequence[str] | None) -> list[str] | None:
    """`"en, de"` -> `["en", "de"]`."""
    parts = text.replace(",", " ").split() if isinstance(text, str) else list(text or ())
    return parts or None


def _number(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if name.startswith("K@") else f"{100 * value:.1f}%"
