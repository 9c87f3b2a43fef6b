"""python scripts/studies/propensity.py --output docs/propensity_study.md

The effect of propensities on data whose complete labels are known (hyper-balls: 100 labels, 63,000 training and
30,000 test points as in Schultheis et al. 2022, Table 5 "Artificial"). Labels are hidden by the jpv model or by a
power law. Linear logistic models are trained on the rest: without propensities, with those of either model, and
with propensities learned during training (PEJL, which starts at 0.5 for all labels). The table compares precision on
the complete test labels with PSP@1 on the biased ones. A second table shows which family (jpv, power, richards)
recovers known propensities (Table 7).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy import sparse
from tqdm import tqdm

from pusl.baselines.logistic import LogisticConfig, fit_logistic
from pusl.baselines.pejl import learn_propensities
from pusl.data.hyperballs import hide, make_hyperballs, uniform_in_ball
from pusl_eval.errors import exit_code
from pusl_eval.files import open_atomic
from pusl_eval.flags import add_force
from pusl_eval.propensity import direct, fit, propensities

LAWS: dict[str, tuple[str, dict[str, float]]] = {
    "jpv": ("jpv", {}),
    "power law": ("power", {"beta": 1.0, "gamma": 0.5}),
}
FAMILIES = {
    "jpv": {"a": 0.55, "b": 1.5},
    "power": {"beta": 1.0, "gamma": 0.25},
    "richards": {"c": 0.05, "d": 0.9, "e": 1.0, "f": 10.0, "g": 30.0, "h": 1.0},
}


def main() -> int:
    """Runs both studies and writes one Markdown file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", metavar="FILE", help="Markdown file (default: print only)")
    parser.add_argument("--train-items", type=int, default=63_000)
    parser.add_argument("--test-items", type=int, default=30_000)
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--dimensions", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5, help="independent data sets (default: 5)")
    parser.add_argument("--epochs", type=int, default=5)
    add_force(parser)
    args = parser.parse_args()
    start = time.monotonic()
    text = hiding_study(args) + "\n" + fitting_study(args)
    command = "python " + " ".join(["scripts/studies/propensity.py", *sys.argv[1:]])
    text += f"\n`{command}` ({time.monotonic() - start:.0f} s)\n"
    print(text)
    if args.output:
        with open_atomic(Path(args.output), args.force) as stream:
            stream.write(text)
    return 0


def hiding_study(args: argparse.Namespace) -> str:
    """Actual precision against PSP@1 for every pairing of the truth's and the model's propensities."""
    found: dict[tuple[str, str], list[dict[str, float | None]]] = {}
    for seed in tqdm(range(args.seeds), desc="data sets", disable=None):
        for law in LAWS:
            for model in ("none", *LAWS, "PEJL"):
                found.setdefault((law, model), []).append(one_model(args, law, model, seed))
    columns = list(next(iter(found.values()))[0])
    lines = [
        f"Hyper-balls, {args.labels} labels, {args.dimensions} dimensions, {args.train_items:,} / {args.test_items:,} "
        f"points, {args.seeds} data sets: mean in percent ± half the 95% t-interval over data sets. P@k on complete "
        "labels; PSP@1 on labels hidden like the training labels.",
        "",
        "| labels hidden by | model trained with | " + " | ".join(columns) + " |",
        "|---|---|" + "---|" * len(columns),
    ]
    for (name, model), rows in found.items():
        cells = [
            interval([row[column] or 0.0 for row in rows]) if rows[0][column] is not None else "" for column in columns
        ]
        lines.append(f"| {name} | {model} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def one_model(args: argparse.Namespace, law: str, model: str, seed: int) -> dict[str, float | None]:
    """Percent: P@k on complete labels, PSP@1 on hidden ones; `r`: correlation of learned and true propensities."""
    balls = make_hyperballs(args.labels, args.dimensions, seed)
    draw = np.random.default_rng([seed, 2])
    train, test = (uniform_in_ball(n, args.dimensions, draw) for n in (args.train_items, args.test_items))
    complete, clean = balls.labels(train), balls.labels(test)
    counts = complete.sum(axis=0)
    truths = {name: propensities(counts, len(train), *choice) for name, choice in LAWS.items()}
    observed, biased = hide(complete, truths[law], draw), hide(clean, truths[law], draw)
    scores, learned = train_and_score(train, observed, test, model, truths, args.epochs, seed)
    row: dict[str, float | None] = {name: 100 * value for name, value in measure(scores, clean, biased, truths).items()}
    row["r"] = None if learned is None else float(np.corrcoef(learned, truths[law])[0, 1])
    return row


def train_and_score(
    train: np.ndarray,
    observed: np.ndarray,
    test: np.ndarray,
    model: str,
    truths: Mapping[str, np.ndarray],
    epochs: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Test scores of one linear logistic model on the coordinates and the squared length, and learned propensities."""
    features = [np.column_stack([points, (points**2).sum(1)]) for points in (train, test)]
    center, spread = features[0].mean(0), features[0].std(0)
    blocks = [((part - center) / spread).astype(np.float32) for part in features]
    p, learned = truths.get(model, np.ones(observed.shape[1])), None
    if model == "PEJL":
        matrix = sparse.csr_matrix(observed)
        p = learned = learn_propensities(blocks[0].astype(np.float64), matrix, labels=observed.shape[1], seed=seed).p
    loss = {"none": "plain", "PEJL": "pejl"}.get(model, "unbiased")
    config = LogisticConfig(loss=loss, epochs=epochs, batch=512, rate=0.5, l2=1e-4, seed=seed)
    fitted = fit_logistic(sparse.csr_matrix(blocks[0]), sparse.csr_matrix(observed), p, config)
    return blocks[1] @ fitted.weights + fitted.bias, learned


def measure(
    scores: np.ndarray, clean: np.ndarray, biased: np.ndarray, truths: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """P@1,3,5 on clean labels over points that have labels, and PSP@1 on biased ones by each propensity model."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    some = clean.sum(axis=1) > 0
    hits = np.take_along_axis(clean, order, axis=1)[some]
    row: dict[str, float] = {f"P@{k}": float(hits[:, :k].mean()) for k in (1, 3, 5)}
    seen = np.take_along_axis(biased, order[:, :1], axis=1)[some, 0]
    for name, p in truths.items():
        row[f"PSP@1 ({name})"] = float((seen / p[order[some, 0]]).mean())
    return row


def fitting_study(args: argparse.Namespace) -> str:
    """A table of how well each family fits direct estimates of each truth."""
    lines = [
        f"Fitting: {args.labels} labels, {args.train_items:,} biased training points, direct estimates from 10,000 "
        f"complete ones; root mean squared error of the fitted p (percent points) and mean squared error of 1/p, "
        f"{args.seeds} data sets.",
        "",
        "| true propensities | error of | direct | " + " | ".join(FAMILIES) + " |",
        "|---|---|---|" + "---|" * len(FAMILIES),
    ]
    for truth in FAMILIES:
        found = [fitting_errors(truth, args, seed) for seed in range(args.seeds)]
        for measure, factor in (("p", 100.0), ("1/p", 1.0)):
            cells = [interval([factor * row[f"{name} {measure}"] for row in found]) for name in ("direct", *FAMILIES)]
            lines.append(f"| {truth} | {measure} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def fitting_errors(truth: str, args: argparse.Namespace, seed: int) -> dict[str, float]:
    """RMSE of p and MSE of 1/p of the direct estimates and of every family fitted to them, on one data set."""
    balls = make_hyperballs(args.labels, args.dimensions, seed)
    draw = np.random.default_rng([seed, 3])
    complete = balls.labels(uniform_in_ball(args.train_items, args.dimensions, draw))
    control = balls.labels(uniform_in_ball(10_000, args.dimensions, draw)).sum(axis=0)
    p = fixed_point(complete.sum(axis=0), args.train_items, truth)
    counts = hide(complete, p, draw).sum(axis=0)
    usable = (control > 0) & (counts > 0)
    estimate = direct(counts, args.train_items, control, 10_000)[usable]
    return errors(counts[usable], args.train_items, estimate, p[usable])


def fixed_point(counts: np.ndarray, n: int, family: str) -> np.ndarray:
    """The models are written in observed counts, so the truth is the fixed point p = model(n_l p)."""
    p = np.full(len(counts), 0.5)
    for _ in range(200):
        p = propensities(counts * p, n, family, FAMILIES[family])
    return p


def errors(counts: np.ndarray, n: int, estimate: np.ndarray, p: np.ndarray) -> dict[str, float]:
    """`FAMILY p`: root mean squared error of p; `FAMILY 1/p`: mean squared error of 1/p."""
    guesses = {"direct": estimate}
    for family in FAMILIES:
        guesses[family] = propensities(counts, n, family, fit(counts, n, estimate, family))
    found = {}
    for name, guess in guesses.items():
        found[f"{name} p"] = rmse(guess, p)
        found[f"{name} 1/p"] = float(np.mean((1 / guess - 1 / p) ** 2))
    return found


def rmse(guess: np.ndarray, truth: np.ndarray) -> float:
    """Root mean squared difference."""
    return float(np.sqrt(np.mean((guess - truth) ** 2)))


def interval(values: list[float]) -> str:
    """Mean ± half the 95% t-interval."""
    from scipy.stats import t

    if len(values) < 2:
        return f"{values[0]:.1f}"
    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.1f} ± {half:.1f}"


if __name__ == "__main__":
    sys.exit(exit_code(main, "propensity"))
