"""A small picklable recipe -> a loaded generator, in whichever process asks for it."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pusl.catalog.shards import CatalogFile
from pusl.decoding.calibration import Calibration
from pusl.devices import resolve_device, resolve_precision
from pusl.fusion.folder import generator_folders, is_fused
from pusl_eval.files import InputError, Row, check_input, file_digest
from pusl_eval.records import read_predictions

log = logging.getLogger(__name__)

# Everything in a model folder that a prediction depends on; checkpoints and logs of the training do not count.
MODEL_FILES = ("*.json", "*.safetensors", "*.bin", "*.model")
NOT_MODEL_FILES = ("run.json", "trainer_state.json", "selection.json", "metrics.json")


class Predictor(Protocol):
    """What predicts: `KeyphraseGenerator`, an LLM client, or anything with this method."""

    @property
    def generate(self) -> Callable[..., Sequence[Any]]:
        """(texts, k, **options) -> one prediction (keyphrases, scores, exhausted) per text, in order."""
        ...


class GeneratorSpec(Protocol):
    """A picklable recipe for a generator."""

    def load(self) -> Predictor:
        """Loads it; called once per process."""
        ...

    def fingerprint(self) -> Row:
        """Facts that change when its predictions may change."""
        ...


@dataclass(frozen=True)
class ModelRecipe:
    """A trained model folder, and how to load it."""

    model: str
    precision: str | None = None  # None: the device's default
    threads: int = 1
    universe: str | None = None
    explain: bool = False
    calibration: Calibration | None = None
    predictions: tuple[tuple[str, str], ...] = ()  # of a fused model's sources: name, file
    device: str = "auto"

    def load(self) -> Predictor:
        """The generator with its universe bound to it."""
        from pusl.decoding.engines import expect_any_length
        from pusl.decoding.generator import KeyphraseGenerator

        more: Row = {"predictions": dict(self.predictions)} if self.predictions else {}
        generator = KeyphraseGenerator.from_pretrained(
            self.model, device=self.device, precision=self.precision, universe=self.universe,
            calibration=self.calibration, **more,
        )  # fmt: skip
        if isinstance(generator, KeyphraseGenerator):  # not a fused one
            expect_any_length(generator)
        return generator

    def prepare(self) -> None:
        """Builds the universe's index once, before several processes want to map it."""
        if self.universe:
            from pusl.checkpoint import load_tokenizer
            from pusl.decoding.universe import Universe

            for folder in generator_folders(self.model):
                Universe.open(self.universe, load_tokenizer(folder))

    def fingerprint(self) -> Row:
        """Digests of the model's files and of the universe, precision and threads."""
        folder = Path(self.model)
        if not (folder / "pusl.json").is_file():
            raise InputError(f"{self.model}: not a PUSL model folder (no pusl.json); train one with `pusl train`")
        if self.predictions and not is_fused(folder):
            raise InputError(f"--source works with a fused model only, and {self.model} is not one")
        paths = {path for pattern in MODEL_FILES for path in folder.glob(pattern) if path.name not in NOT_MODEL_FILES}
        if is_fused(folder):
            paths = {path for path in folder.rglob("*") if path.is_file() and path.name != "fusion.json"}
        if self.explain:
            paths |= set(folder.glob("labels.txt.gz"))
        code = hashlib.blake2b(digest_size=16)
        for path in sorted(paths):
            code.update(f"{path.relative_to(folder)} {file_digest(path)}\n".encode())
        device = resolve_device(self.device)
        facts: Row = {
            "digest": code.hexdigest(), "precision": resolve_precision(self.precision, device),
            "threads": self.threads, "device": device,
        }  # fmt: skip
        if self.predictions:
            facts["predictions"] = {name: file_digest(check_input(path)) for name, path in self.predictions}
        if self.universe:
            facts["universe"] = file_digest(check_input(self.universe))
        if self.calibration:
            facts["calibration"] = hashlib.blake2b(repr(self.calibration).encode(), digest_size=16).hexdigest()
        return facts

    def weight(self) -> int:
        """The size of the weight files; of a fused model, of all its files."""
        pattern = "*" if is_fused(self.model) else "*.safetensors"
        return sum(path.stat().st_size for path in Path(self.model).rglob(pattern) if path.is_file())


def check_predictions(files: Mapping[str, str | os.PathLike[str]], source: CatalogFile) -> None:
    """Warns of a fused model's predictions made elsewhere (`--source`) that are for other items."""
    first = source.first_ids() if files else set()
    for name, path in files.items():
        if first and first.isdisjoint(one.id for one in read_predictions(check_input(Path(path)))):
            log.warning(
                f"--source {name}={path}: has predictions for none of the first {len(first):,} items of {source.path}; "
                "are they for another file?"
            )
