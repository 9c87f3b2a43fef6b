"""Predictions + incomplete references -> honest numbers (numpy and scipy only).

    from pusl_eval import compare, evaluate, metrics

Every number is defined in docs/reference/metrics.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pusl_eval import metrics as metrics
    from pusl_eval.evaluation import compare as compare
    from pusl_eval.evaluation import evaluate as evaluate

__version__ = "0.2.0"
__all__ = ["__version__", "compare", "evaluate", "metrics"]


def __getattr__(name: str) -> Any:
    """Loads numpy and scipy only when a public name is asked for, so that command lines start at once."""
    from importlib import import_module

    if name == "metrics":
        return import_module("pusl_eval.metrics")
    if name in ("compare", "evaluate"):
        return getattr(import_module("pusl_eval.evaluation"), name)
    raise AttributeError(f"module 'pusl_eval' has no attribute {name!r}")
