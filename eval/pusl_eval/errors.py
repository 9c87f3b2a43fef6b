"""A command's outcome -> an exit code: 0 done; 2 the user's input or flags are wrong; 1 anything else.

`InputError` is the one error that a user can fix. Every check raises it, and `exit_code` prints it.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS)


class InputError(ValueError):
    """The user's input or flags are wrong: one or two lines, exit code 2."""


def needs_extra(what: str, package: str, extra: str) -> InputError:
    """The error for a package that is not installed, with a command for both ways of installing PUSL.

    >>> print(needs_extra("pusl serve", "fastapi", "serve"))
    pusl serve needs fastapi: pip install 'pusl[serve]' (in a checkout: pip install -e '.[serve]')
    """
    return InputError(
        f"{what} needs {package}: pip install 'pusl[{extra}]' (in a checkout: pip install -e '.[{extra}]')"
    )


def exit_code(command: Callable[[], int | None], name: str) -> int:
    """Runs a command. What the user can fix becomes one or two lines on stderr, never a traceback."""
    try:
        code = command() or 0
        sys.stdout.flush()
    except InputError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{name}: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader (head, less) has seen enough
        _drop_output()
        return 0
    except PermissionError as error:  # found only by trying: access lists, network drives
        print(f"{name}: {error.filename or 'a file'}: no permission ({error.strerror})", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        _drop_output()
        where = f" ({error.filename})" if error.filename else ""
        print(f"{name}: {error.strerror}{where}; nothing was left half-written", file=sys.stderr)
        return 1
    return code


def _drop_output() -> None:
    """Sends the rest of stdout nowhere, so that Python does not complain when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
