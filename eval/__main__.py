"""argv -> an evaluation -> an exit code: `python -m eval --references FILE --predictions FILE --k 3 6`.

The same flags as `pusl evaluate`, without importing pusl or a deep-learning package. 0 done; 2 the
user's input or flags are wrong; 1 anything else.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence

from eval.command import DESCRIPTION, add_arguments, run
from eval.files import InputError

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"{self.prog}: {message}\nTry `{self.prog} --help`.\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the evaluation and returns the exit code."""
    prog = "python -m eval"
    parser = _Parser(
        prog=prog, description=DESCRIPTION.format(prog=prog), allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_arguments(parser)
    try:
        run(parser.parse_args(argv))
        sys.stdout.flush()
    except InputError as error:
        print(f"eval: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\neval: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader (head, less) has seen enough
        _drop_output()
        return 0
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        _drop_output()
        where = f" ({error.filename})" if error.filename else ""
        print(f"eval: {error.strerror}{where}; nothing was left half-written", file=sys.stderr)
        return 1
    return 0


def _drop_output() -> None:
    """What is still to be printed goes nowhere, so that Python does not complain while flushing at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
