"""A model + a file with references -> the curve that turns its scores into probabilities of being labeled.

The curve is kept beside the output under a name made from everything it depends on, so a run that is
started again finds it, and another model or other settings never do.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pusl.catalog.recipes import ModelRecipe
from pusl.decoding.calibration import Calibration, hits
from pusl.examples import Columns, read_examples
from pusl_eval.files import InputError, Row, check_input, file_digest
from pusl_eval.records import read_predictions


def learned_curve(
    recipe: ModelRecipe,
    references: str | Path,
    output: str | Path,
    columns: Columns,
    options: Row,
    generate: Callable[[str, str], Any],
) -> Calibration:
    """The curve of `recipe` on `references`; `generate(input, output)` makes the predictions it is learned from."""
    check_input(references)
    facts = {"model": recipe.fingerprint(), "references": file_digest(references), "options": options}
    code = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=4).hexdigest()
    kept = Path(f"{output}.calibration-{code}.json")
    if kept.exists():
        return Calibration.load(kept)
    known = {one.id: one.keyphrases for one in read_examples(references, columns=columns) if one.keyphrases}
    if not known:
        raise InputError(f"{references}: no item has keyphrases; --calibrate needs a file with references")
    predictions = kept.with_suffix(".jsonl")
    if not predictions.exists():
        generate(os.fspath(references), str(predictions))
    found = [one for one in read_predictions(predictions) if one.id in known]
    try:
        curve = Calibration.fit(*hits(found, [known[one.id] for one in found]))
    except InputError:  # nothing can be learned from these predictions, now or later
        predictions.unlink()
        raise
    curve.save(kept)
    predictions.unlink()
    return curve
