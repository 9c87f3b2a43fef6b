"""What the user may choose -> checked settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pusl_eval.budgets import K_WORDS
from pusl_eval.files import InputError
from pusl_eval.inputs import Source
from pusl_eval.labels import BIN_EDGES
from pusl_eval.normalize import NORMALIZATIONS
from pusl_eval.propensity import PARAMETERS

LARGEST_K = 10_000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything besides references, predictions and k. Sources are paths or Python objects."""

    train: Source | None = None  # training examples: μ, bins, propensities, New@k, seen/unseen
    universe: str | Path | Iterable[str] | None = None  # real queries or labels, for Uni@k
    label_space: str | Path | Iterable[str] | None = None  # labels to average over; default: those of the references
    weights: str | Path | Mapping[str, float] | None = None  # worth of each label, for weighted P@k
    rank_weights: str | Path | Mapping[str, Sequence[float]] | None = None  # worth by label and rank
    unbiased: Source | None = None  # a bias-controlled set, for `direct` propensities and for fitting the others
    control_probability: float = 1.0  # p^c: the probability with which the unbiased set was labeled
    normalization: str = "basic"
    propensity: str | None = None  # default: jpv with a training file
    propensity_parameters: Mapping[str, float] | None = None
    prior: float = 0.0  # α of the robust prior (n_l + α) / (n + α)
    bins: Sequence[int] = BIN_EDGES  # lower edges of the bins of training frequency; 0 is always its own bin
    alpha: float = 0.5  # of αCov@k
    beta: float = 2.0  # of MacroF_β@k
    coverage_items: Sequence[int] = (1000,)  # n' of "Cov@k (n' items)"
    bootstrap: int = 1000  # draws; 0 leaves intervals out
    seed: int = 0
    progress: bool = False  # a bar on stderr while files are read
    warn: bool = True  # log warnings; they are in the provenance in any case

    def sources(self) -> dict[str, object]:
        """Role -> what was given for it."""
        roles = ("train", "universe", "label_space", "weights", "rank_weights", "unbiased")
        return {role: getattr(self, role) for role in roles}

    def check(self, k: Sequence[int | str]) -> list[int | str]:
        """The wanted cuts, after everything was checked; an InputError names the first thing that is wrong."""
        if self.normalization not in NORMALIZATIONS:
            raise InputError(f"normalization is {self.normalization!r}; allowed: {', '.join(NORMALIZATIONS)}")
        if not 0 <= self.alpha <= 1:
            raise InputError(f"alpha is {self.alpha}; expected a number from 0 to 1")
        if not (self.beta > 0 and math.isfinite(self.beta)):
            raise InputError(f"beta is {self.beta}; expected a number above 0")
        if not 0 < self.control_probability <= 1:
            raise InputError(f"control_probability is {self.control_probability}; expected above 0 and at most 1")
        if not (self.prior >= 0 and math.isfinite(self.prior)):
            raise InputError(f"prior is {self.prior}; expected 0 or more")
        if self.bootstrap < 0 or self.seed < 0:
            raise InputError("bootstrap and seed must be 0 or more")
        edges = list(self.bins)
        if any(edge < 1 for edge in edges) or edges != sorted(set(edges)):
            raise InputError(f"bins are {edges}; expected rising integers of at least 1")
        if any(items < 1 for items in self.coverage_items):
            raise InputError(f"coverage_items holds {min(self.coverage_items)}; expected at least 1")
        self._check_propensity()
        return [self._check_k(value) for value in ([k] if isinstance(k, (int, str)) else k)]

    def _check_propensity(self) -> None:
        model = self.propensity
        if model is not None and model not in PARAMETERS:
            raise InputError(f"propensity is {model!r}; allowed: {', '.join(PARAMETERS)}")
        if model not in (None, "none") and self.train is None:
            raise InputError(f"propensity model '{model}' needs a training file; pass --train FILE")
        if model == "direct" and self.unbiased is None:
            raise InputError("propensity model 'direct' needs a bias-controlled set; pass --unbiased FILE")
        if self.unbiased is not None and self.train is None:
            raise InputError("an unbiased set is compared with a training file; pass --train FILE too")

    def _check_k(self, value: int | str) -> int | str:
        if isinstance(value, str):
            if value in K_WORDS:
                if self.train is None:
                    raise InputError(f"k is '{value}', but μ is defined by training items; pass --train FILE")
                return value
            try:
                value = int(value)
            except ValueError:
                raise InputError(f"k is {value!r}; expected an integer of at least 1, mu or 2mu") from None
        if isinstance(value, bool) or not 1 <= value <= LARGEST_K:
            raise InputError(f"k is {value}; expected an integer from 1 to {LARGEST_K}, mu or 2mu")
        return int(value)
