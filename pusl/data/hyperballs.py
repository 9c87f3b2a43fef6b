"""A seed -> points, labels that are balls around them, and the same labels with gaps of known propensity.

Synthetic data with complete ground truth (Schultheis et al. 2022): features are uniform in a d-dimensional
ball, label j is a ball in it, and a point has the labels whose balls contain it. Radii are set so that label
frequencies fall along a long tail. Each label of each point is then kept with probability p_j.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class HyperBalls:
    """Centers and radii; everything else is drawn from them."""

    centers: np.ndarray  # (m, d)
    radii: np.ndarray  # (m,)

    def labels(self, points: np.ndarray) -> np.ndarray:
        """Which balls contain which points, (n, m) of 0/1."""
        squared = (points**2).sum(1)[:, None] - 2 * points @ self.centers.T + (self.centers**2).sum(1)
        return (squared <= self.radii**2).astype(np.float32)


def uniform_in_ball(count: int, dimensions: int, draw: np.random.Generator) -> np.ndarray:
    """Points uniform in the unit ball."""
    direction = draw.normal(size=(count, dimensions))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    return direction * draw.random((count, 1)) ** (1 / dimensions)


def make_hyperballs(
    labels: int = 100, dimensions: int = 10, seed: int = 0, head: float = 0.3, tail: float = 0.002
) -> HyperBalls:
    """Balls whose frequencies fall geometrically from `head` to `tail`.

    A ball's radius is the distance from its center within which that share of the points lies.
    """
    draw = np.random.default_rng([seed, 1])
    centers = uniform_in_ball(labels, dimensions, draw)
    shares = np.geomspace(head, tail, labels)
    points = uniform_in_ball(20_000, dimensions, draw)
    radii = np.empty(labels)
    for number, (center, share) in enumerate(zip(centers, shares, strict=True)):
        radii[number] = np.quantile(np.linalg.norm(points - center, axis=1), share)
    return HyperBalls(centers, radii)


def hide(labels: np.ndarray, propensities: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Keeps each 1 with its label's propensity."""
    return labels * (draw.random(labels.shape) < propensities)
