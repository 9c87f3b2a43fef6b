"""A command's outcome -> an exit code: 0 done; 2 the user's input or flags are wrong; 1 anything else.

`InputError` is the one error that a user can fix. Every check raises it, and `exit_code` prints it.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

# The machine is at fault: nothing about the command is wrong.
DISK_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
)  # fmt: skip
# A path cannot be what the user named it for, and only trying shows it (a name that is too long for a suffix of ours).
PATH_ERRORS = (
    errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY,
    errno.ENXIO, errno.ENODEV, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EBUSY, errno.EILSEQ,
)  # fmt: skip
LONGEST_PATH = 200  # characters shown of a path
LONGEST_LINE = 1000  # characters of a line on stderr


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


NO_MEMORY = ("can't allocate memory", "out of memory")  # as torch says it, on a CPU and on a GPU


def exit_code(command: Callable[[], int | None], name: str) -> int:
    """Runs a command. What the user can fix becomes one or two lines on stderr, never a traceback."""
    for name_of_stream in ("stdout", "stderr"):
        stream = getattr(sys, name_of_stream)
        if stream is None:  # closed before the start
            setattr(sys, name_of_stream, _nowhere(1 if name_of_stream == "stdout" else 2))
        # A terminal without μ, and file names that are not UTF-8: shown as escapes instead of a UnicodeEncodeError.
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with _interrupts_kept():
            code = command() or 0
        sys.stdout.flush()
    except InputError as error:
        _say(f"{name}: {error}")
        return 2
    except KeyboardInterrupt:
        _say(f"\n{name}: stopped")
        return 130
    except BrokenPipeError:  # the reader (head, less) has seen enough
        _drop_output()
        return 0
    except PermissionError as error:  # found only by trying: access lists, network drives
        _say(f"{name}: {shown(error.filename) or 'a file'}: no permission ({error.strerror})")
        return 2
    except ConnectionError as error:  # a hub or an object store that cannot be reached
        _say(f"{name}: {next(iter(str(error).splitlines()), 'the connection failed')}")
        return 1
    except MemoryError as error:
        _say(f"{name}: out of memory{f' ({error})' if str(error) else ''}; nothing was left half-written")
        return 1
    except OSError as error:
        where = shown(error.filename)
        if error.errno in PATH_ERRORS and where:
            _say(f"{name}: {where}: {error.strerror}; name another path")
            return 2
        if error.errno not in DISK_ERRORS:
            raise
        _drop_output()
        _say(f"{name}: {error.strerror}{f' ({where})' if where else ''}; nothing was left half-written")
        return 1
    except Exception as error:
        fault = _fault_of_the_machine(str(error))
        if not fault:
            raise
        _say(f"{name}: {fault}")
        return 1
    return code


@contextlib.contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Ctrl-C where Python cannot raise it (in a callback of compiled code) is given again a moment later."""
    before, waiting = sys.unraisablehook, list[threading.Timer]()

    def hook(swallowed: Any) -> None:
        if not issubclass(swallowed.exc_type, KeyboardInterrupt):
            before(swallowed)
            return
        again = threading.Timer(0.05, _interrupt)
        again.daemon = True
        waiting.append(again)
        again.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
    for again in waiting:
        if again.is_alive():  # the command ended sooner
            again.cancel()
            raise KeyboardInterrupt


def _interrupt() -> None:
    if os.name == "nt":  # where os.kill ends the process at once
        _thread.interrupt_main()
    else:
        os.kill(os.getpid(), signal.SIGINT)


def _fault_of_the_machine(message: str) -> str:
    """What a library without Python's own kinds of errors means; "" if its error is something else."""
    if any(words in message for words in NO_MEMORY):
        return "out of memory; nothing was left half-written. Ask for less at once"
    number = re.search(r"\(os error (\d+)\)", message)  # as safetensors says it
    if number and int(number[1]) in DISK_ERRORS:
        return f"{os.strerror(int(number[1]))}; nothing was left half-written"
    if "PytorchStreamWriter failed" in message or ". unexpected pos " in message:  # as torch.save says it
        return "a file could not be written to its end; the disk may be full. Nothing was left half-written"
    return ""


@contextlib.contextmanager
def damage_refused(where: object, what: str, fix: str) -> Iterator[None]:
    """Turns whatever damaged files raise into an InputError. Each library has errors of its own for them."""
    try:
        yield
    except (InputError, KeyboardInterrupt):
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise InputError(f"{where}: {what} is damaged ({reason[:200]}); {fix}") from None


def shown(path: object) -> str:
    """A path in an error message: without control characters, and not longer than a few lines of a terminal.

    >>> shown("a\\nb"), shown(None), len(shown("x" * 5000))
    ('a\\\\nb', '', 203)
    """
    if path is None:
        return ""
    text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else str(path)
    text = printable(text)
    return text if len(text) <= LONGEST_PATH else text[:LONGEST_PATH] + "..."


def printable(text: str) -> str:
    """The text with control characters as escapes: what a file or an endpoint says must not steer a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def brief(message: str) -> str:
    """A message that fits a terminal. Line breaks are ours; other control characters come from a file and are escaped.

    >>> brief("a" * 5000)[-5:], brief("no column '\\x1b[31m'")
    ('aa...', "no column '\\\\x1b[31m'")
    """
    lines = map(printable, message.split("\n"))
    return "\n".join(line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + "..." for line in lines)


def _say(message: str) -> None:
    """One or two lines on stderr."""
    with contextlib.suppress(OSError):  # nobody reads stderr
        print(brief(message), file=sys.stderr)


def _drop_output() -> None:
    """Sends the rest of stdout nowhere, so that Python does not complain when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _nowhere(number: int) -> io.TextIOWrapper:
    """A stream to nowhere in place of a closed one. A file of ours must not get its number: libraries print there."""
    handle = os.open(os.devnull, os.O_WRONLY)
    if handle != number:
        os.dup2(handle, number)
        os.close(handle)
    return open(number, "w", encoding="utf-8", closefd=False)
