"""Two commands on one output, temporaries of killed ones, and names that no file can have."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pusl_eval.errors import exit_code
from pusl_eval.files import (
    InputError,
    Journal,
    check_input,
    check_output,
    check_outputs,
    claimed,
    folder_atomic,
    open_atomic,
    read_json,
    written_together,
)

WRITER = """
import sys, time
from pusl_eval.files import folder_atomic, open_atomic
kind, path = sys.argv[1:]
with open_atomic(path) if kind == "file" else folder_atomic(path) as held:
    if kind == "file":
        held.write("half")
        held.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


def start_writer(kind: str, path: Path) -> subprocess.Popen[str]:
    paths = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, kind, str(path)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert writer.stdout is not None and writer.stdout.readline() == "writing\n"
    return writer


def kill(writer: subprocess.Popen[str]) -> None:
    writer.kill()
    writer.wait()
    assert writer.stdout is not None
    writer.stdout.close()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_second_writer_is_told_so_and_the_next_one_cleans_up(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "out"
    opened = open_atomic if kind == "file" else folder_atomic
    writer = start_writer(kind, target)
    with pytest.raises(InputError, match="another command is writing it"), opened(target):
        pass
    assert len(os.listdir(tmp_path)) == 1, "the first one's temporary stays"
    kill(writer)
    assert len(os.listdir(tmp_path)) == 1, "what kill -9 leaves"
    with opened(target):
        assert len(os.listdir(tmp_path)) == 1, "and the next command removes"
    assert os.listdir(tmp_path) == ["out"]


def test_a_writer_may_wait_for_another(tmp_path: Path) -> None:
    writer = start_writer("folder", tmp_path / "out")
    killer = threading.Timer(0.5, writer.kill)
    killer.start()
    with folder_atomic(tmp_path / "out", wait=True) as folder:
        (folder / "a").write_text("b")
    killer.join()
    kill(writer)
    assert os.listdir(tmp_path) == ["out"]


def test_what_appeared_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    with pytest.raises(InputError, match="exists already"), open_atomic(target) as stream:
        stream.write("ours")
        target.write_text("theirs")
    assert target.read_text() == "theirs" and os.listdir(tmp_path) == ["out.txt"]
    with open_atomic(target, force=True) as stream:
        stream.write("ours")
    assert target.read_text() == "ours"


def test_other_targets_do_not_disturb(tmp_path: Path) -> None:
    long = "n" * 200
    with contextlib.ExitStack() as stack:
        for name in ("a", "a.b", f"{long}1", f"{long}2", "é" * 120):
            stack.enter_context(open_atomic(tmp_path / name))
        stack.enter_context(claimed(tmp_path / "a"))
    with pytest.raises(InputError, match="/s: another command"), claimed(tmp_path / "s"), claimed(tmp_path / "s"):
        pass
    assert sorted(os.listdir(tmp_path)) == sorted(["a", "a.b", f"{long}1", f"{long}2", "é" * 120])


class Killed(BaseException):
    """Stands for a kill: nothing after it runs in the command."""


def put_and_die(monkeypatch: pytest.MonkeyPatch, targets: list[Path], renames: int, content: str = "first") -> None:
    """Writes the targets together, and dies after so many of them have been put in place."""
    left, plain = renames, os.replace

    def replace(source: Path, target: Path) -> None:
        nonlocal left
        if Path(target) in targets:
            if not left:
                raise Killed
            left -= 1
        plain(source, target)

    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(os, "replace", replace)
        with written_together(targets) as places:
            for place in places:
                place.write_text(content)


def test_the_same_command_finishes_several_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = [tmp_path / name for name in ("out.jsonl", "out\udcff.json", "sub/c.json")]
    for renames in range(len(targets)):
        put_and_die(monkeypatch, targets, renames)
        assert sum(path.exists() for path in targets) == renames
        check_outputs(targets)
        with written_together(targets) as places:
            for place in places:
                place.write_text("second")
        assert [path.read_text() for path in targets] == ["second"] * 3
        assert len(os.listdir(tmp_path)) == 3, "no journal stays"
        with pytest.raises(InputError, match="exists already"):
            check_outputs(targets)
        for path in targets:
            path.unlink()


def test_what_was_touched_after_the_kill_is_not_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = [tmp_path / name for name in ("a", "b", "c")]
    put_and_die(monkeypatch, targets, 1)
    assert not targets[0].exists(), "the first stands for the whole and comes last"
    targets[2].write_text("mine")
    with pytest.raises(InputError, match="c: exists already"):
        check_outputs(targets)
    with pytest.raises(InputError, match="c: exists already"), written_together(targets) as places:
        for place in places:
            place.write_text("second")
    assert targets[2].read_text() == "mine" and not targets[1].exists()


def test_a_killed_runs_other_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another kill, and a rerun that makes fewer files: nothing of the first two stays."""
    targets = [tmp_path / name for name in ("a", "b", "c")]
    put_and_die(monkeypatch, targets, 2)
    put_and_die(monkeypatch, targets, 1, "second")
    assert [path.name for path in Journal(targets[0]).owned()] == ["b", "c"]
    with written_together(targets[:2]) as places:
        for place in places:
            place.write_text("third")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"] and targets[1].read_text() == "third"


def test_a_damaged_journal_owns_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    for content in ("{", "[]", '{"a": 1}', '{"a": [[1, 2, 3], null]}'):
        (tmp_path / ".a.unfinished").write_text(content)
        with pytest.raises(InputError, match="exists already"):
            check_outputs([tmp_path / "a"])


def test_files_get_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with open_atomic(tmp_path / "a"), folder_atomic(tmp_path / "b") as folder:
            (folder / "private").touch(mode=0o600)
            (tmp_path / "other").touch(mode=0o600)
            (folder / "linked").hardlink_to(tmp_path / "other")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "b" / "private").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o600, "a file of another folder stays as it is"


def test_folders_made_for_a_file_go_with_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), open_atomic(tmp_path / "new" / "er" / "out.txt"):
        raise RuntimeError
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name, said", [
    ("file/below.txt", "is a file; expected a folder"),
    ("dangling", "is a link to nothing"),
    ("dangling/below.txt", "is a link to nothing"),
    ("circle", "is a link to nothing"),
    ("n" * 256, "too long"),
    ("d/" * 2500 + "x", "too long"),
    ("n" * 256 + "/x", "too long"),
    ("pipe", "is not a regular file"),
    ("/", "is a directory"),
])  # fmt: skip
def test_hostile_output_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    Path("dangling").symlink_to("nowhere")
    Path("circle").symlink_to("circle")
    os.mkfifo("pipe")
    before = sorted(os.listdir())
    for force in (False, True):
        with pytest.raises(InputError, match=said) as raised:
            check_output(name, force)
        assert len(str(raised.value)) < 400
        with pytest.raises(InputError, match=said):
            check_outputs([name, "other"], force)
    assert sorted(os.listdir()) == before


def test_a_pipe_is_not_an_input(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(InputError, match="save its content to a file"):
        check_input(tmp_path / "pipe.jsonl")  # opening it would wait forever


@pytest.mark.parametrize("content", ["[" * 100_000, "{", "[1]", "\x00", '{"a": ' * 2000])
def test_damaged_json_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(InputError, match="train it again") as raised:
        read_json(path, "train it again")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("error, code, said", [
    (OSError(36, "File name too long", "x" * 900), 2, "File name too long; name another path"),
    (OSError(40, "Too many levels of symbolic links", "a"), 2, "a: Too many levels"),
    (OSError(28, "No space left on device", "a"), 1, "No space left on device (a)"),
    (OSError(24, "Too many open files"), 1, "Too many open files"),
    (MemoryError("Unable to allocate 9 TiB"), 1, "out of memory (Unable to allocate 9 TiB)"),
    (ConnectionRefusedError("cannot reach the hub"), 1, "cannot reach the hub"),
    (Exception("Error while serializing: I/O error: No space (os error 28)"), 1, "No space left on device; nothing"),
    (RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"), 1, "the disk may be full"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 1, "out of memory; nothing"),
    (InputError("no column '\x1b[31m\x00'"), 2, "no column '\\x1b[31m\\x00'"),
    (InputError("x" * 9000), 2, "xxx..."),
])  # fmt: skip
def test_errors_become_a_line(capfd: pytest.CaptureFixture[str], error: Exception, code: int, said: str) -> None:
    def fail() -> None:
        raise error

    assert exit_code(fail, "pusl") == code
    err = capfd.readouterr().err
    assert said in err and err.count("\n") == 1 and len(err) < 1100


@pytest.mark.parametrize("setting", [">&-", "PYTHONIOENCODING=ascii", "2>&-", ">/dev/full"])
def test_streams_that_cannot_take_everything(tmp_path: Path, setting: str) -> None:
    """A closed stdout, a terminal without μ, a full disk behind stdout."""
    name = b"items\xff.jsonl"
    with open(os.fsencode(tmp_path) + b"/" + name, "w") as stream:
        stream.write('{"id": "1", "text": "\u03bc", "keyphrases": ["\u03bc"]}\n')
    command = f"{sys.executable} -m pusl_eval --references items*.jsonl --predictions items*.jsonl -k 1"
    line = f"{setting} {command}" if "=" in setting else f"{command} {setting}"
    paths = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        line, shell=True, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.returncode == (1 if "full" in setting else 0), done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("\n") <= 1
