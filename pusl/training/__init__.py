"""Examples + a T5 model -> a trained model folder, for every paradigm.

from pusl.training import TrainConfig, train
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pusl.training.train_config import TrainConfig

if TYPE_CHECKING:
    from pusl.training.training_run import TrainingError, TrainResult, is_main_process, train

__all__ = ["TrainConfig", "TrainResult", "TrainingError", "is_main_process", "train"]


def __getattr__(name: str) -> Any:
    """Torch loads only when training itself is asked for, so that flags and help stay quick."""
    if name in __all__:
        from pusl.training import training_run

        return getattr(training_run, name)
    raise AttributeError(f"module 'pusl.training' has no attribute {name!r}")
