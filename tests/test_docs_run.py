"""The commands and programs of README, quickstart and guides run, page by page, in a small world of files they name.

A hub id becomes a tiny random model and training stops after a few steps; what needs another machine is only parsed
(tests/test_docs.py).
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from test_docs import ROOT, blocks, commands

from pusl.cli import COMMANDS, Parser, main

pytestmark = pytest.mark.slow
PAGES = [ROOT / "README.md", ROOT / "docs/quickstart.md", *sorted(ROOT.glob("docs/guides/*.md"))]
PAGES = [page for page in PAGES if page.name != "judging.md"]
ELSEWHERE = (
    "ray",
    "s3://",
    "cuda",
    "serve",
    "demo",
    "push",
    "judge",
    "--llm",
    "accelerate",
    "COMMAND",
    "user/",
    "http",
)


THESAURUS = """@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
<http://example.org/drone> a skos:Concept ; skos:prefLabel "drone"@en ; skos:altLabel "quadcopter"@en .
"""
EXPORT = [
    {
        "id": 1,
        "data": {"id": "a1", "text": "a drone"},
        "annotations": [{"result": [{"type": "textarea", "value": {"text": ["drone"]}, "from_name": "keyphrases"}]}],
    }
]


def lines(path: str) -> list[str]:
    """The lines of a file."""
    return Path(path).read_text(encoding="utf-8").splitlines()


def call(*words: str) -> None:
    """One command in this process."""
    assert main(list(words)) == 0, " ".join(words)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every name that the pages use."""
    folder = tmp_path_factory.mktemp("world")
    before = Path.cwd()
    os.chdir(folder)
    try:
        call("data", "simulate", "--out", "data", "--items", "400", "--dev-items", "60", "--test-items", "20")
        items = [json.loads(line) for line in lines("data/train.jsonl")]
        rows = ["sku,title,details,tags"]
        rows += [f'{item["id"]},"{item["text"]}",new,{";".join(item["keyphrases"])}' for item in items]
        for name in ("items.csv", "new.csv"):
            Path(name).write_text("\n".join(rows))
        copies = {"train": ["train", "all", "new"], "dev": ["dev"], "test": ["test", "items"]}
        for name, others in copies.items():
            for other in others:
                shutil.copy(f"data/{name}.jsonl", f"{other}.jsonl")
        new = [json.dumps({**json.loads(line), "id": f"new-{i}"}) for i, line in enumerate(lines("dev.jsonl"))]
        Path("new.jsonl").write_text("\n".join(new[:10]) + "\n")
        Path("queries.txt").write_text("\n".join(sorted({p for item in items for p in item["keyphrases"]})))
        Path("yso.ttl").write_text(THESAURUS)
        with gzip.open("train.tsv.gz", "wt") as file:
            file.write("a drone with a camera\t<http://example.org/drone>\n")
        Path("export.json").write_text(json.dumps(EXPORT))
        small = ["--max-steps", "2", "--dev-items", "5", "--model", "scratch:tiny", "--restart", "0.2"]
        call("train", "--train", "train.jsonl", "--dev", "dev.jsonl", "--out", "models/pusl", *small)
        sources = ["pusl=models/pusl", "knn", "text"]
        call("fuse", "--train", "train.jsonl", "--dev", "dev.jsonl", "--sources", *sources, "--out", "models/fused")
        call("baseline", "knn", "--train", "train.jsonl", "--input", "test.jsonl", "--output", "knn.jsonl", "-k", "10")
        for copy in ("predictions", "pusl", "fused", "wide"):
            shutil.copy("knn.jsonl", f"{copy}.jsonl")
    finally:
        os.chdir(before)
    return folder


def small(line: str) -> list[str]:
    """A command of a page, made small: a tiny model, few steps, one worker, existing outputs replaced."""
    line = re.sub(r"\S+-t5/\S+|\S*/?t5-(base|small)\S*", "scratch:tiny", line).replace("--workers 8", "--workers 1")
    words = shlex.split(line.replace("items.jsonl.gz", "items.jsonl"))[1:]
    name = " ".join(words[:2]) if words[0] == "data" else words[0]
    parser = Parser(prog=name)
    import_module(COMMANDS[name][0]).add_arguments(parser)
    if name in ("train", "post-train"):
        words += ["--max-steps", "2", *(["--dev-items", "5"] if "--dev" in words else [])]
    if "--force" in parser._option_string_actions and "--resume" not in words and "--force" not in words:
        words.append("--force")
    return words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page: Path, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [line for line in commands(page) if not any(word in line for word in ELSEWHERE)]
    programs = [code for code in blocks(page, "python") if not any(word in code for word in ELSEWHERE)]
    if not found and not programs:
        return
    folder = tmp_path / "world"
    shutil.copytree(world, folder)
    monkeypatch.chdir(folder)
    for line in found:
        call(*small(line))
    for program in programs:
        program = program.replace('"google-t5/t5-base"', '"scratch:tiny", max_steps=2, dev_items=5')
        exec(compile(program, page.name, "exec"), {"__name__": "page"})


def test_the_judge_guide_runs(tmp_path: Path) -> None:
    """Its blocks are one bash session with the endpoint that comes with PUSL."""
    script = "\n".join(blocks(ROOT / "docs/guides/judging.md", "bash"))
    port = 20000 + os.getpid() % 20000
    script = script.replace("8123", str(port)).replace("python -m", f'"{sys.executable}" -m')
    script = re.sub(r"^pusl ", f'"{sys.executable}" -m pusl ', script, flags=re.M)
    script = script.replace(" &\n", " &\nserver=$!\ntrap 'kill $server' EXIT\nsleep 3\n", 1)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "eval")])
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "agreement with people" in done.stdout
