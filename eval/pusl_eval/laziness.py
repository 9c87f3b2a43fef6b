"""Keyphrases and interactions per item -> how skewed a data set's labeling is."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

HOT = 5  # interactions
DIVERSE = 5  # distinct keyphrases


def laziness(sizes: ArrayLike, interactions: ArrayLike | None = None) -> dict[str, float | int | dict[str, int] | None]:
    """μ, σ and CV = σ/μ of keyphrases per item and, with interactions, the sizes of the four quadrants.

    hot: at least 5 interactions; diverse: at least 5 distinct keyphrases. σ is that of the items
    themselves (not of a sample), and CV is None when no item has a keyphrase.

    >>> laziness([1, 3])
    {'n_items': 2, 'mu': 2.0, 'sigma': 1.0, 'cv': 0.5}
    >>> laziness([1, 6, 2], [9, 6, 2])["quadrants"]
    {'hot_diverse': 1, 'hot_narrow': 1, 'rare_diverse': 0, 'rare_narrow': 1}
    """
    per_item = np.asarray(sizes, np.float64)
    mu = float(per_item.mean()) if per_item.size else None
    sigma = float(per_item.std()) if per_item.size else None
    found: dict[str, float | int | dict[str, int] | None] = {
        "n_items": int(per_item.size),
        "mu": mu,
        "sigma": sigma,
        "cv": sigma / mu if mu and sigma is not None else None,
    }
    if interactions is not None:
        hot, diverse = np.asarray(interactions) >= HOT, per_item >= DIVERSE
        found["quadrants"] = {
            "hot_diverse": int(np.sum(hot & diverse)),
            "hot_narrow": int(np.sum(hot & ~diverse)),
            "rare_diverse": int(np.sum(~hot & diverse)),
            "rare_narrow": int(np.sum(~hot & ~diverse)),
        }
    return found
