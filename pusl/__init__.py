"""Text + incomplete keyphrases -> a model that gives k different, scored keyphrases for any text.

What is named here is the public API; everything else may change. Each name is imported when it is first used.

    from pusl import KeyphraseGenerator, TrainConfig, evaluate, train
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pusl_eval import __version__ as __version__

if TYPE_CHECKING:
    from pusl.catalog.candidates import score_catalog as score_catalog
    from pusl.catalog.run import generate_catalog as generate_catalog
    from pusl.decoding.calibration import Calibration as Calibration
    from pusl.decoding.generator import KeyphraseGenerator as KeyphraseGenerator
    from pusl.decoding.logits_processor import TopKKeyphrasesLogitsProcessor as TopKKeyphrasesLogitsProcessor
    from pusl.decoding.results import Prediction as Prediction
    from pusl.decoding.results import PredictionList as PredictionList
    from pusl.decoding.universe import Universe as Universe
    from pusl.examples import Example as Example
    from pusl.examples import read_examples as read_examples
    from pusl.fusion.fused import FusedGenerator as FusedGenerator
    from pusl.fusion.learn import fuse as fuse
    from pusl.hub import push as push
    from pusl.training.posttraining import Selection as Selection
    from pusl.training.posttraining import post_train as post_train
    from pusl.training.train_config import TrainConfig as TrainConfig
    from pusl.training.training_run import TrainingError as TrainingError
    from pusl.training.training_run import TrainResult as TrainResult
    from pusl.training.training_run import train as train
    from pusl_eval import compare as compare
    from pusl_eval import evaluate as evaluate
    from pusl_eval.errors import InputError as InputError

_PLACES = {
    "Calibration": "pusl.decoding.calibration",
    "Example": "pusl.examples",
    "FusedGenerator": "pusl.fusion.fused",
    "InputError": "pusl_eval.errors",
    "KeyphraseGenerator": "pusl.decoding.generator",
    "Prediction": "pusl.decoding.results",
    "PredictionList": "pusl.decoding.results",
    "Selection": "pusl.training.posttraining",
    "TopKKeyphrasesLogitsProcessor": "pusl.decoding.logits_processor",
    "TrainConfig": "pusl.training.train_config",
    "TrainResult": "pusl.training.training_run",
    "TrainingError": "pusl.training.training_run",
    "Universe": "pusl.decoding.universe",
    "compare": "pusl_eval",
    "evaluate": "pusl_eval",
    "fuse": "pusl.fusion.learn",
    "generate_catalog": "pusl.catalog.run",
    "post_train": "pusl.training.posttraining",
    "push": "pusl.hub",
    "read_examples": "pusl.examples",
    "score_catalog": "pusl.catalog.candidates",
    "train": "pusl.training.training_run",
}
__all__ = ["__version__", *_PLACES]


def __getattr__(name: str) -> Any:
    """Imports torch only when something that needs it is used, so that the command line starts at once."""
    if name in _PLACES:
        from importlib import import_module

        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'pusl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
