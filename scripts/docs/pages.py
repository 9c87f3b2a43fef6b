"""python scripts/docs/pages.py [--check]

Parsers, metric declarations, configs, the notebook and result files -> the generated parts of the pages in docs/.

Tables and charts stand between `<!-- table ... -->` or `<!-- chart ... -->` and `<!-- end -->`. The comment says what
they show; the numbers come from docs/results/data. `--check` writes nothing and lists the pages that are out of date.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from notebook import notebook_page
from reference import commands_page, configs_page
from results import charts, with_tables

from pusl_eval.files import InputError, open_atomic
from pusl_eval.glossary import rewritten

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def generated(docs: Path = DOCS) -> dict[Path, str]:
    """Every generated file with what it should hold."""
    files = {
        docs / "reference/commands.md": commands_page(),
        docs / "reference/configs.md": configs_page(ROOT / "configs"),
        docs / "examples/notebook.md": notebook_page(docs / "examples/keyphrases.ipynb"),
        docs / "reference/metrics.md": rewritten((docs / "reference/metrics.md").read_text(encoding="utf-8")),
    }
    pages = [*sorted(docs.rglob("*.md")), ROOT / "README.md"]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        if "<!-- table" in text:
            files[page] = with_tables(text, docs / "results/data", page)
        for name, svg in charts(text, docs / "results/data", page).items():
            files[docs / "results/charts" / name] = svg
    return files


def out_of_date(files: dict[Path, str]) -> list[Path]:
    """The files whose content differs."""
    return [p for p, text in files.items() if not p.is_file() or p.read_text(encoding="utf-8") != text]


def main() -> int:
    """Writes the files, or lists those that are out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is out of date")
    args = parser.parse_args()
    try:
        files = generated()
        stale = out_of_date(files)
        for path in stale:
            print(f"{'out of date' if args.check else 'written'}: {path.relative_to(ROOT)}")
            if not args.check:
                path.parent.mkdir(parents=True, exist_ok=True)
                with open_atomic(path, force=True) as stream:
                    stream.write(files[path])
    except InputError as error:
        print(f"pages.py: {error}", file=sys.stderr)
        return 2
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
