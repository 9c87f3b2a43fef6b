"""Whatever is wrong with a file: exit 2 (1 for the disk), two lines at most, nothing half-written."""

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pusl.cli import main

GOOD = b"".join(
    json.dumps({"id": f"a{n}", "text": f"text {n}", "keyphrases": [f"k{n}", "x"]}).encode() + b"\n" for n in range(40)
)
LINK = object()  # a link that points to itself
ZIPPED = gzip.compress(GOOD)


def line(**fields):
    return GOOD + json.dumps({"id": "bad", "text": "t", "keyphrases": ["k"], **fields}).encode() + b"\n"


FILES = {
    "cut.jsonl.gz": (ZIPPED[: len(ZIPPED) // 2], "damaged or cut short"),
    "utf8.jsonl": (GOOD + b'{"id": "\xff"}\n', "utf8.jsonl:41: not valid UTF-8"),
    "empty.jsonl": (b"", "is empty"),
    "blank.jsonl": (b"\n \n", "is empty"),
    "empty.csv": (b"", "is empty"),
    "header.csv": (b"id,text,keyphrases\n", "is empty"),
    "null.jsonl": (line(keyphrases=None), "null.jsonl:41: id 'bad': 'keyphrases' must be a list of strings"),
    "string.jsonl": (line(keyphrases="k"), "must be a list of strings, found a string"),
    "number.jsonl": (line(keyphrases=[1, 2]), "must be a list of strings, found a number"),
    "huge.jsonl": (line(keyphrases=["k" * 1_000_000]), "a keyphrase of 1,000,000 characters"),
    "twice.jsonl": (line(id="a3"), "twice.jsonl:41: id 'a3' occurs twice (first in line 4)"),
    "counts.jsonl": (line(counts=[1, 2, 3]), "'counts' has 3 values, but there are 1 keyphrases"),
    "notext.jsonl": (GOOD + b'{"id": "bad", "keyphrases": []}\n', "notext.jsonl:41: id 'bad': no field 'text'"),
    "surrogate.jsonl": (GOOD + b'{"id": "bad", "text": "\\ud800", "keyphrases": []}\n', "surrogate pair"),
    "folder.jsonl": (None, "is a directory; expected a file"),
    "missing.jsonl": (False, "no such file"),
    "circle.jsonl": (LINK, "no such file"),
    "items.xls": (GOOD, "unknown file ending"),
    "bad.parquet": (GOOD, "not a readable Parquet file"),
    "quote.csv": (b'id,text,keyphrases\n1,"never closed,a\n', "not valid CSV"),
    "short.csv": (b"id,text,keyphrases\n1,t\n", "2 cells, but the header has 3; quote cells that hold the delimiter"),
    "long.csv": (b"id,text,keyphrases\n1,t,a,b\n", "4 cells, but the header has 3; quote cells that hold"),
    "binary.csv": (b"PK\x03\x04\x14\x00\x06\x00\x08\x00\r\x00!", "looks like a binary file, not CSV; export it"),
    "mac.csv": (b"id,text,keyphrases\r1,t,a\r", "a carriage return without a line feed; save the file with line ends"),
}  # fmt: skip
COMMANDS = {
    "stats": ["stats", "FILE", "--plot", "out.svg"],
    "split": ["split", "FILE", "--out", "out"],
    "thin": ["thin", "FILE", "--out", "out.jsonl", "--keep", "0.9"],
    "convert": ["convert", "FILE", "--to", "out.jsonl", "--format", "table"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", FILES)
def test_bad_files(tmp_path, capsys, monkeypatch, command, name):
    monkeypatch.chdir(tmp_path)
    content, words = FILES[name]
    if content is None:
        (tmp_path / name).mkdir()
    elif content is LINK:
        (tmp_path / name).symlink_to(tmp_path / name)
    elif content is not False:
        (tmp_path / name).write_bytes(content)
    before = os.listdir()
    assert main(["data", *(name if word == "FILE" else word for word in COMMANDS[command])]) == 2
    error = capsys.readouterr().err
    if not (command == "convert" and "twice" in name):
        assert words in error
    assert name in error and "Traceback" not in error and error.count("\n") <= 2 and len(error) < 600
    assert os.listdir() == before


def test_group_with_a_link_that_points_to_itself(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("circle.jsonl").symlink_to("circle.jsonl")
    assert main(["data", "group", "circle.jsonl", "--out", "out.jsonl"]) == 2
    assert capsys.readouterr().err == "pusl: circle.jsonl: no such file\n"


def test_bom_and_crlf_are_fine(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + GOOD.replace(b"\n", b"\r\n"))
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfid,text,keyphrases\r\n1,t,a|b\r\n")
    for name, items in (("a.jsonl", 40), ("a.csv", 1)):
        assert main(["data", "stats", str(tmp_path / name), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[name]["items"] == items


OUTPUTS = {
    "simulate": ["simulate", "--items", "200", "--out", "out"],
    "split": ["split", "good.jsonl", "--out", "out"],
    "thin": ["thin", "good.jsonl", "--out", "out.jsonl", "--keep", "0.9"],
    "convert": ["convert", "good.jsonl", "--to", "out.jsonl", "--format", "table"],
}


@pytest.mark.parametrize("command", OUTPUTS)
def test_disk_full(tmp_path, command):
    """A limit on file size stands for the full disk: exit 1, one line, nothing left."""
    (tmp_path / "good.jsonl").write_bytes(GOOD)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))

    done = subprocess.run(
        [sys.executable, "-m", "pusl", "data", *OUTPUTS[command]],
        cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "nothing was left half-written" in done.stderr and "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == ["good.jsonl"]


@pytest.fixture
def humble(monkeypatch):
    """`humble(command)`: in an open folder, with all the command imports loaded, as a user whom permissions bind."""
    folder = Path(tempfile.mkdtemp())
    root = os.geteuid() == 0

    def become(command):
        (folder / "good.jsonl").write_bytes(GOOD)
        monkeypatch.chdir(folder)
        assert main(["data", *command]) == 0
        for path in folder.iterdir():
            if path.name != "good.jsonl":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if root:
            os.chown(folder, 65534, 65534)
            os.chown(folder / "good.jsonl", 65534, 65534)
            os.setresuid(65534, 65534, 0)
        return folder

    yield become
    if root:
        os.setresuid(0, 0, 0)
    folder.chmod(0o700)
    shutil.rmtree(folder)


@pytest.mark.parametrize("command", OUTPUTS)
def test_no_permission(humble, capsys, command):
    folder = humble(OUTPUTS[command])
    folder.chmod(0o500)
    assert main(["data", *OUTPUTS[command]]) == 2
    assert "no permission" in capsys.readouterr().err
    assert os.listdir(folder) == ["good.jsonl"]


@pytest.mark.parametrize("command", COMMANDS)
def test_unreadable_file(humble, capsys, command):
    words = ["good.jsonl" if word == "FILE" else word for word in COMMANDS[command]]
    folder = humble(words)
    (folder / "good.jsonl").chmod(0)
    assert main(["data", *words]) == 2
    assert "good.jsonl: no permission to read it" in capsys.readouterr().err
    assert os.listdir(folder) == ["good.jsonl"]


def test_permission_denied_only_in_the_attempt(tmp_path, capsys, monkeypatch):
    """Where asking says yes and writing says no (access lists, network drives) there is no traceback either."""
    (tmp_path / "good.jsonl").write_bytes(GOOD)
    monkeypatch.chdir(tmp_path)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", "out")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    assert main(["data", "split", "good.jsonl", "--out", "out"]) == 2
    assert capsys.readouterr().err == "pusl: out: no permission (Permission denied)\n"
