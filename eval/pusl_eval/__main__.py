"""argv -> an evaluation -> an exit code: `python -m pusl_eval --references FILE --predictions FILE --k 3 6`.

The same flags as `pusl evaluate`, without importing pusl or a deep-learning package. 0 done; 2 the
user's input or flags are wrong; 1 anything else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pusl_eval.command import DESCRIPTION, add_arguments, run
from pusl_eval.errors import exit_code
from pusl_eval.help_text import Parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the evaluation and returns the exit code."""
    prog = "python -m pusl_eval"
    parser = Parser(prog=prog, description=DESCRIPTION.format(prog=prog))
    add_arguments(parser)
    return exit_code(lambda: run(parser.parse_args(argv)), "pusl-eval")


if __name__ == "__main__":
    sys.exit(main())
