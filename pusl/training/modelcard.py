"""A finished run -> README.md: what the model is, what it learned from, how good it is, how to use it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pusl import paradigms
from pusl_eval.budgets import budget
from pusl_eval.files import open_atomic

METRIC_TEXT = {"F1@O": "F1@O", "B@mu": "B@μ", "B@2mu": "B@2μ", "K@2mu": "#K@2μ"}


def write_card(folder: str | Path, record: Mapping[str, Any]) -> None:
    """Writes the model card of the run whose run.json is `record`."""
    with open_atomic(Path(folder) / "README.md", force=True) as stream:
        stream.write(render_card(record))


def render_card(record: Mapping[str, Any]) -> str:
    """The card's Markdown."""
    config, summary, best = record["config"], record["summary"], record["best"]
    base = "" if config["model"].startswith("scratch:") else f"base_model: {config['model']}\n"
    tags = "".join(f"- {tag}\n" for tag in dict.fromkeys(("keyphrase-generation", "pusl", config["paradigm"])))
    k = budget(config.get("mu") or summary["mu"], 2)
    lines = [
        f"---\nlibrary_name: transformers\n{base}tags:\n{tags}---\n",
        f"# Keyphrase model ({config['paradigm']})\n",
        f"Generates keyphrases for a text: {paradigms.get(config['paradigm']).summary}. Made with `pusl train`.\n",
        "## Training\n",
        "| | |\n|---|---|",
        f"| base model | `{config['model']}`, {record['parameters'] / 1e6:.1f} M parameters |",
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
            f"{METRIC_TEXT[config['metric']]}. They chose the model, so they are too good: score it on a test file.\n",
            "| " + " | ".join(METRIC_TEXT.values()) + " |\n" + "|---" * len(METRIC_TEXT) + "|",
            "| " + " | ".join(_number(name, best.get(name)) for name in METRIC_TEXT) + " |\n",
        ]
    lines += [
        "## Use\n",
        f"```sh\npusl generate --model DIR --input catalog.jsonl --output predictions.jsonl -k {k}\n```\n",
        "```python\nfrom pusl.decoding.generator import KeyphraseGenerator\n\n"
        'generator = KeyphraseGenerator.from_pretrained("DIR")\n'
        f'print(generator.generate(["a text"], k={k})[0].keyphrases)\n```\n',
        "The folder is also a plain Hugging Face checkpoint: `AutoModelForSeq2SeqLM` and `AutoTokenizer` load it. "
        "Labels were incomplete by assumption: a keyphrase that is missing from a reference list may still be right.\n",
    ]
    return "\n".join(lines)


def _number(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if name.startswith("K@") else f"{100 * value:.1f}%"
