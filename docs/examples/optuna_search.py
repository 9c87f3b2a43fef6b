"""python docs/examples/optuna_search.py --train train.jsonl --dev dev.jsonl

Tries learning rates, restarts and dropout rates with Optuna.
Needs `pip install optuna`. Hopeless trials are stopped early.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from pusl import TrainConfig, train

METRIC = "B@2mu"


class Report(TrainerCallback):
    """Tells Optuna each dev score, and stops the run if Optuna says so."""

    def __init__(self, trial: Any) -> None:
        self.trial, self.pruned = trial, False

    def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        score = more["logs"].get(f"eval_{METRIC}")
        if score is not None:
            self.trial.report(score, state.global_step)
            if self.trial.should_prune():
                self.pruned = control.should_training_stop = True


def objective(
    trial: Any,
    train_file: str,
    dev_file: str,
    folder: Path,
    **settings: Any,
) -> float:
    """The dev score of one setting."""
    config = TrainConfig(
        paradigm="pusl",
        train=train_file,
        dev=dev_file,
        out=str(folder / f"trial-{trial.number}"),
        metric=METRIC,
        lr=trial.suggest_float("lr", 1e-4, 3e-2, log=True),
        restart=trial.suggest_categorical("restart", [0.0, 0.2, 0.5]),
        dropout=trial.suggest_float("dropout", 0.0, 0.2),
        **settings,
    )
    report = Report(trial)
    best = train(config, force=True, callbacks=[report]).best
    if report.pruned:
        import optuna

        raise optuna.TrialPruned
    return best[METRIC] if best else 0.0


def main() -> None:
    """Searches and prints the best setting."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--train", required=True)
    parser.add_argument("--dev", required=True)
    parser.add_argument("--out", type=Path, default=Path("search"))
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--model", default="scratch:tiny")
    parser.add_argument("--max-steps", type=int, default=300)
    args = parser.parse_args()
    import optuna

    def run(trial: Any) -> float:
        files = args.train, args.dev, args.out
        settings = {"model": args.model, "max_steps": args.max_steps}
        return objective(trial, *files, **settings, eval_every=50)

    pruner = optuna.pruners.MedianPruner(n_warmup_steps=50)
    study = optuna.create_study(direction="maximize", pruner=pruner)
    study.optimize(run, n_trials=args.trials)
    print(study.best_trial.number, study.best_value, study.best_params)


if __name__ == "__main__":
    main()
