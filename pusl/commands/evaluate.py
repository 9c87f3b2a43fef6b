"""Every metric for incomplete labels, one system or several.

examples:
  pusl evaluate --references test.jsonl --predictions pusl.jsonl --k 3 6 --train train.jsonl --output metrics.json
  pusl evaluate --references test.jsonl --predictions pusl=a.jsonl svm=b.jsonl --k mu 2mu --train train.jsonl
"""

from __future__ import annotations

from pusl_eval.command import add_arguments, run

__all__ = ["add_arguments", "run"]
