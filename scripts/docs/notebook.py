"""python scripts/docs/notebook.py docs/examples/keyphrases.ipynb

A notebook -> the same notebook with its results, and a page of the documentation.

The command runs the notebook in an empty folder and stores what it shows (needs `pip install nbclient ipykernel`).
Messages and timings are left out. `notebook_page` makes the page from what is stored; pages.py calls it.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TIMING = re.compile(r".*\d items? in [\d.]+ s.*\n?")  # "fused.jsonl: 100 items in 0.4 s, 241.8 items/s"


def notebook_page(path: Path) -> str:
    """The notebook's cells and stored results as Markdown."""
    parts = ["<!-- made by scripts/docs/pages.py; do not edit -->"]
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source.removesuffix(';')}\n```")
        parts += [_shown(output) for output in cell["outputs"]]
    link = f"To run it yourself, download [{path.name}]({path.name})."
    return "\n\n".join([*parts, link]) + "\n"


def _shown(output: dict[str, Any]) -> str:
    """One result: a table as HTML, anything else as text."""
    data = output.get("data", {})
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.S)
        plain = re.sub(r' (?:border|class|style)="[^"]*"', "", table)  # the site has its own style of tables
        return re.sub(r"\n\s*", "", plain)  # Markdown would take indented lines for code
    text = "".join(output.get("text") or data["text/plain"])
    return f"```text\n{text.strip()}\n```"


def cleaned(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook without what differs from run to run: messages, timings, times of execution, versions."""
    notebook["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            printed = [line for one in cell["outputs"] if one.get("name") == "stdout" for line in one["text"]]
            text = TIMING.sub("", "".join(printed))
            stream = {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}
            results = [one for one in cell["outputs"] if one["output_type"] != "stream"]
            cell["outputs"] = [*([stream] if text else []), *results]
    return notebook


def run(path: Path) -> dict[str, Any]:
    """Runs the notebook in an empty folder; the notebook with its results."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(path, folder)
        program = "from nbclient.cli import main; main()"  # what `jupyter execute` calls
        subprocess.run([sys.executable, "-c", program, "--inplace", copy], check=True, cwd=folder)
        result: dict[str, Any] = json.loads(Path(copy).read_text(encoding="utf-8"))
    return cleaned(result)


def main() -> None:
    """Runs the notebook and stores its results in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", type=Path, metavar="NOTEBOOK")
    path = parser.parse_args().notebook
    path.write_text(json.dumps(run(path), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
