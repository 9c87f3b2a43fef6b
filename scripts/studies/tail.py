"""python scripts/studies/tail.py --data data/tate --work runs/tail --output tail.md

What micro averages hide. Every closed-vocabulary baseline (and PUSL, if its predictions are given) on one data set:
micro F1@5, macro F1@5 by training frequency, P@5 and Cov@5, each with a 95% bootstrap interval over items, and a plot
of precision against coverage. `--data` names one or more folders with train.jsonl.gz and test.jsonl.gz. Predictions
are stored under `--work` and reused.

  python scripts/studies/tail.py --data data/tate data/cdnjs --work runs/tail --systems svm plt ps-plt cov-plt
  python scripts/studies/tail.py --data data/tate --work runs/tail --predictions PUSL=pusl.jsonl
  python scripts/studies/tail.py --data data/tate --work runs/tail --model PUSL=models/pusl
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from figures import load_pyplot
from scipy import sparse

from pusl.baselines.model import baseline_class
from pusl.baselines.predict import run_baseline
from pusl.rerank import rerank
from pusl_eval.errors import exit_code
from pusl_eval.evaluation import evaluate
from pusl_eval.files import InputError, open_atomic
from pusl_eval.flags import add_force, named_files
from pusl_eval.labels import bin_names, bin_of
from pusl_eval.normalize import distinct_forms
from pusl_eval.records import read_predictions, read_references

CANDIDATES = 100  # stored per item, for reranking
K = 5
BETAS = (0.0, 0.25, 0.5, 1.0)
DRAWS = 500
# System -> baseline and the settings that differ from its defaults.
SYSTEMS: dict[str, tuple[str, dict[str, object]]] = {
    "frequency": ("frequency", {}),
    "knn": ("knn", {}),
    "svm": ("svm", {}),
    "plt": ("plt", {}),
    "ps-plt": ("plt", {"propensity": "jpv"}),
    "logistic": ("logistic", {}),
    "unbiased": ("logistic", {"loss": "unbiased"}),
    "pejl": ("logistic", {"loss": "pejl"}),
    "fastxml": ("fastxml", {}),
    "word-label": ("word-label", {}),
    "attention-xml": ("attention-xml", {}),
    "doc-vec": ("doc-vec", {}),
}


def main() -> int:
    """Runs what is missing, then writes tables and plots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", required=True, metavar="DIR", help="folders with train and test files")
    parser.add_argument("--work", required=True, type=Path, metavar="DIR", help="folder for predictions")
    parser.add_argument("--output", metavar="FILE", help="Markdown file (default: print only)")
    parser.add_argument("--systems", nargs="+", default=[*SYSTEMS, "cov-plt"], choices=[*SYSTEMS, "cov-plt"])
    parser.add_argument("--predictions", nargs="*", default=[], metavar="NAME=FILE", help="e.g. PUSL=pusl.jsonl")
    parser.add_argument("--model", nargs="*", default=[], metavar="NAME=DIR", help="a PUSL model to generate with")
    parser.add_argument("--reuse-only", action="store_true", help="skip systems without predictions")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="where DATA.svg goes (default: --work)")
    add_force(parser)
    args = parser.parse_args()
    load_pyplot()  # what is missing is said before hours of work
    text = "\n".join(study(Path(folder), args) for folder in args.data)
    text += "\n`" + " ".join(["python scripts/studies/tail.py", *sys.argv[1:]]) + "`\n"
    print(text)
    if args.output:
        with open_atomic(args.output, args.force) as stream:
            stream.write(text)
    return 0


def study(folder: Path, args: argparse.Namespace) -> str:
    """One data set: predictions, table, plot."""
    train, test = (find(folder, name) for name in ("train", "test"))
    files = {}
    for system in args.systems:
        if system == "cov-plt":
            files.update(cover(folder, train, test, args))
        elif path := predict(system, folder, train, test, args):
            files[system] = path
    files.update((name, Path(path)) for name, path in named_files(args.predictions).items())
    for name, model in named_files(args.model, "--model", "DIR").items():
        files[name] = generate(name, model, folder, test, args.work)
    scorer = Scorer(train, test)
    rows = {name: scorer.score(path) for name, path in files.items()}
    picture = (args.plots or args.work) / f"{folder.name}.svg"
    draw_trade_off(rows, folder.name, picture)
    return scorer.table(folder.name, rows) + f"\nPrecision against coverage: {picture.name}\n"


def find(folder: Path, name: str) -> Path:
    """`name.jsonl` or `name.jsonl.gz`."""
    for ending in (".jsonl", ".jsonl.gz"):
        if (folder / (name + ending)).is_file():
            return folder / (name + ending)
    raise InputError(f"{folder}: has no {name}.jsonl or {name}.jsonl.gz")


def predict(system: str, folder: Path, train: Path, test: Path, args: argparse.Namespace) -> Path | None:
    """The path of a system's predictions, which are made now if they are missing."""
    path = args.work / f"{folder.name}.{system}.jsonl"
    if not path.exists():
        if args.reuse_only:
            return None
        name, settings = SYSTEMS[system]
        start = time.monotonic()
        run_baseline(name, baseline_class(name).Config(**settings), train=train, input=test, output=path, k=CANDIDATES)
        print(f"{folder.name} {system}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    return path


def cover(folder: Path, train: Path, test: Path, args: argparse.Namespace) -> dict[str, Path]:
    """COV-PLT: the label tree's candidates, chosen for coverage."""
    source = predict("plt", folder, train, test, args)
    found = {}
    for beta in BETAS if source else ():
        path = args.work / f"{folder.name}.cov-plt-{beta:g}.jsonl"
        if not path.exists():
            assert source is not None
            rerank(source, path, K, "coverage", beta=beta)
        found[f"cov-plt β={beta:g}"] = path
    return found


def generate(name: str, model: Path, folder: Path, test: Path, work: Path) -> Path:
    """Predictions of a PUSL model folder."""
    from pusl.cli import main as command

    path = work / f"{folder.name}.{name}.jsonl"
    if not path.exists():
        code = command(["generate", "--model", str(model), "--input", str(test), "--output", str(path), "-k", "20"])
        if code:
            raise InputError(f"{model}: generation failed")
    return path


class Scorer:
    """Holds references and training frequencies, and scores one system after the other."""

    def __init__(self, train: Path, test: Path) -> None:
        self.train, self.test = train, test
        self.items: dict[str, int] = {}
        self.labels: dict[str, int] = {}
        lists = []
        for reference in read_references(test):
            keys = distinct_forms(reference.keyphrases)
            if keys:
                self.items[reference.id] = len(lists)
                lists.append([self.labels.setdefault(key, len(self.labels)) for key in keys])
        self.truth = self._matrix(lists, len(self.labels))
        counts = np.zeros(len(self.labels), np.int64)
        for record in read_references(train):
            for key in distinct_forms(record.keyphrases):
                if key in self.labels:
                    counts[self.labels[key]] += 1
        self.bins = bin_of(counts)
        self.names = bin_names()
        draws = np.random.default_rng(0)
        share = np.full(len(lists), 1 / len(lists))
        self.weights = np.vstack([np.ones(len(lists)), draws.multinomial(len(lists), share, DRAWS)])  # (1 + D, n)

    def _matrix(self, lists: list[list[int]], width: int) -> sparse.csr_matrix:
        pointers = np.concatenate([[0], np.cumsum([len(row) for row in lists])])
        columns = np.array([column for row in lists for column in row], np.int64)
        return sparse.csr_matrix((np.ones(len(columns)), columns, pointers), shape=(len(lists), width))

    def score(self, path: Path) -> dict[str, tuple[float, float, float]]:
        """Metric -> value, low, high. The values are checked against `pusl_eval`, which defines them."""
        lists: list[list[int]] = [[] for _ in self.items]
        sizes = np.zeros(len(self.items))
        for prediction in read_predictions(path):
            row = self.items.get(prediction.id)
            if row is not None:
                keys = distinct_forms(prediction.keyphrases[:K])
                lists[row] = [self.labels[key] for key in keys if key in self.labels]
                sizes[row] = len(keys)
        guess = self._matrix(lists, len(self.labels))
        hits = guess.multiply(self.truth).tocsr()
        tp, predicted, positive = (self.weights @ part for part in (hits, guess, self.truth))  # (1 + D, m)
        total = tp.sum(1)
        f1 = np.divide(2 * tp, predicted + positive, out=np.zeros_like(tp), where=predicted + positive > 0)
        found = {
            "micro F1": 2 * total / (self.weights @ sizes + positive.sum(1)),
            "macro F1": np.mean(f1, axis=1),
            "P": total / (K * len(self.items)),
            "Cov": np.mean(tp > 0, axis=1),
        }
        for number, name in enumerate(self.names):
            if (self.bins == number).any():
                found[f"macro {name}"] = f1[:, self.bins == number].mean(1)
        official = evaluate(self.test, path, k=[K], train=self.train, bootstrap=0, propensity="none")["scores"]["all"]
        for mine, theirs in (("macro F1", f"MacroF1@{K}"), ("P", f"B@{K}"), ("Cov", f"Cov@{K}")):
            if abs(found[mine][0] - official[theirs]) > 1e-9:
                raise AssertionError(f"{path}: {mine} is {found[mine][0]}, pusl_eval says {official[theirs]}")
        return {name: (v[0], *np.quantile(v[1:], [0.025, 0.975]).tolist()) for name, v in found.items()}

    def table(self, title: str, rows: dict[str, dict[str, tuple[float, float, float]]]) -> str:
        """Markdown: one row per system, percent with the half width of the interval, the best in bold."""
        if not rows:
            return f"**{title}**: no predictions yet\n"
        columns = list(next(iter(rows.values())))
        best = {column: max(row[column][0] for row in rows.values()) for column in columns}
        counts = {f"macro {name}": int((self.bins == number).sum()) for number, name in enumerate(self.names)}
        heads = [f"{column} ({counts[column]:,} labels)" if column in counts else f"{column}@{K}" for column in columns]
        lines = [
            f"**{title}**: {len(self.items):,} test items, {len(self.labels):,} labels in them; percent, ± half of the "
            f"95% bootstrap interval over items ({DRAWS} draws); k = {K}",
            "",
            "| system | " + " | ".join(heads) + " |",
            "|---|" + "---:|" * len(heads),
        ]
        for name, row in rows.items():
            cells = []
            for column in columns:
                value, low, high = row[column]
                cell = f"{100 * value:.1f} ± {50 * (high - low):.1f}"
                cells.append(f"**{cell}**" if value == best[column] > 0 else cell)
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"


def draw_trade_off(rows: dict[str, dict[str, tuple[float, float, float]]], title: str, path: Path) -> None:
    """P@5 against Cov@5, the COV-PLT points joined."""
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(7.5, 4.5))
    line = [(100 * row["Cov"][0], 100 * row["P"][0]) for name, row in rows.items() if name.startswith("cov-plt")]
    if line:
        axes.plot(*zip(*sorted(line), strict=True), linewidth=0.8, color="gray", zorder=0)
    colors = pyplot.colormaps["tab10"].colors
    for number, (name, row) in enumerate(rows.items()):
        axes.errorbar(
            100 * row["Cov"][0],
            100 * row["P"][0],
            yerr=[[100 * (row["P"][0] - row["P"][1])], [100 * (row["P"][2] - row["P"][0])]],
            fmt="osD^v"[number // len(colors)],  # ten colors, then the next marker
            color=colors[number % len(colors)],
            markersize=5,
            label=name,
        )
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, frameon=False)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.set(xlabel=f"Cov@{K} (%)", ylabel=f"P@{K} (%)", title=title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(exit_code(main, "tail"))
