"""Nothing -> matplotlib's pyplot, for pictures that pusl_eval.charts does not draw.

Only studies need matplotlib, so PUSL does not install it.
"""

from __future__ import annotations

from typing import Any

from pusl_eval.files import InputError


def load_pyplot() -> Any:
    """pyplot, drawing into files."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("the pictures of this study need matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
