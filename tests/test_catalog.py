"""Catalog file -> predictions file: formats, resuming, bad lines, bounded work. The generator is a word splitter."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from catalog_words import WordsRecipe

import pusl.catalog.parts
from pusl.catalog.parts import WorkFolder, repeated, unpack_part
from pusl.catalog.processes import WorkerDied, run_tasks
from pusl.catalog.run import Options, generate_catalog, generate_shard
from pusl.catalog.shards import CatalogFile, CatalogItem
from pusl.examples import Columns
from pusl_eval.files import InputError, open_atomic, read_rows, write_rows
from pusl_eval.records import read_predictions

ROWS = [{"id": f"a{i}", "text": f"zeto drone {i % 40} größe"} for i in range(100)]


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def generate(
    source: str | Path, output: str | Path, k: int = 3, recipe: WordsRecipe | None = None, **options: object
) -> object:
    options = {"shard_size": 16, "workers": 1, "progress": False, **options}
    return generate_catalog(recipe or WordsRecipe(), source, output, k, **options)  # type: ignore[arg-type]


@pytest.fixture
def items(tmp_path: Path) -> Path:
    path = tmp_path / "items.jsonl"
    write_rows(path, ROWS)
    return path


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "parquet", "csv", "tsv"])
def test_every_input_kind_gives_the_same_output(tmp_path: Path, items: Path, ending: str) -> None:
    rows = [{**row, "text": row["text"] + ' "x", y\nz'} for row in ROWS]
    write_rows(tmp_path / "in.jsonl", rows)
    write_rows(tmp_path / f"other.{ending}", rows)
    generate(tmp_path / "in.jsonl", tmp_path / "a.jsonl", k=20)
    generate(tmp_path / f"other.{ending}", tmp_path / "b.jsonl", k=20, shard_size=7)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert [row["id"] for _, row in read_rows(tmp_path / "b.jsonl")] == [row["id"] for row in ROWS]


@pytest.mark.parametrize("ending", ["jsonl.gz", "parquet", "csv", "tsv"])
def test_every_output_kind_reads_back_alike(tmp_path: Path, items: Path, ending: str) -> None:
    write_rows(items, [*ROWS, {"id": "empty", "text": " "}], force=True)
    generate(items, tmp_path / "a.jsonl", k=5)
    generate(items, tmp_path / f"b.{ending}", k=5, shard_size=9)
    expected = [(p.id, p.keyphrases, p.scores, p.exhausted) for p in read_predictions(tmp_path / "a.jsonl")]
    found = [(p.id, p.keyphrases, p.scores, p.exhausted) for p in read_predictions(tmp_path / f"b.{ending}")]
    assert found == expected and len(found) == 101
    first = (tmp_path / f"b.{ending}").read_bytes()
    generate(items, tmp_path / f"b.{ending}", k=5, shard_size=40, force=True)
    assert (tmp_path / f"b.{ending}").read_bytes() == first, "the shard size shows in the file"


def test_prediction_lines_are_the_contract(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "items.jsonl",
        [
            '{"id": 7, "text": "b b c"}',
            '{"id": "x", "text": ""}',
            '{"id": "y", "text": "?!"}',
            '{"id": "z", "text": null}',
        ],
    )
    summary = generate(path, tmp_path / "out.jsonl", k=2)
    assert [row for _, row in read_rows(tmp_path / "out.jsonl")] == [
        {"id": "7", "keyphrases": ["b", "c"], "scores": [-0.5, -0.5]},
        {"id": "x", "keyphrases": [], "scores": [], "exhausted": True, "reason": "empty text"},
        {"id": "y", "keyphrases": [], "scores": [], "exhausted": True, "reason": "no letter or digit in the text"},
        {"id": "z", "keyphrases": [], "scores": [], "exhausted": True, "reason": "empty text"},
    ]
    assert (summary.items, summary.exhausted, summary.no_usable_text) == (4, 3, 3)
    assert sorted(os.listdir(tmp_path)) == ["items.jsonl", "out.jsonl"], "nothing else is left"


def test_equal_texts_are_computed_once_per_shard(tmp_path: Path) -> None:
    rows, counts = generate_shard(
        WordsRecipe(log=str(tmp_path / "log")),
        [CatalogItem(i, str(i), "a b" if i % 2 else "c") for i in range(6)],
        Options(2),
    )
    assert (tmp_path / "log").read_text().splitlines() == ["c", "a b"]
    assert counts["repeats"] == 4 and [row["keyphrases"] for row in rows] == [["c"], ["a", "b"]] * 3


def test_bad_lines_are_rejected_with_line_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"id": "a", "text": "one"}\r\n'
        b"{broken\n"
        b"\n"
        b'{"id": "b"}\n'
        b'{"id": 1.5, "text": "x"}\n'
        b'{"id": "c", "text": "\xff"}\n'
        b'["list"]\n'
        b'{"id": "d", "text": "\\ud800"}\n'
        b'{"id": "a", "text": "second"}\n'
        b'{"id": "e", "text": 5}\n'
        b'{"id": "", "text": "x"}\n'
        b'{"id": "f", "text": "last"}'
    )
    summary = generate(path, tmp_path / "out.jsonl", shard_size=2)
    assert [row["id"] for _, row in read_rows(tmp_path / "out.jsonl")] == ["a", "f"]
    rejects = {row["line"]: row["reason"] for _, row in read_rows(write_copy(tmp_path / "out.jsonl.rejects"))}
    assert list(rejects) == [2, 4, 5, 6, 7, 8, 9, 10, 11] and (summary.items, summary.rejects) == (2, 9)
    assert rejects[4] == "no field 'text' (found: id)" and rejects[6] == "not valid UTF-8"
    assert rejects[9] == "id 'a' is already in line 1" and "a list" in rejects[7] and "surrogate" in rejects[8]
    with pytest.raises(InputError, match=r"items.jsonl:2: not a JSON object"):
        generate(path, tmp_path / "strict.jsonl", strict=True)
    assert not list(tmp_path.glob("strict*"))
    generate(path, tmp_path / "out5.jsonl", shard_size=5)
    assert (tmp_path / "out5.jsonl.rejects").read_bytes() == (tmp_path / "out.jsonl.rejects").read_bytes()


def write_copy(path: Path) -> Path:
    """A .rejects file is JSONL; `read_rows` goes by the ending."""
    copy = path.with_suffix(".copy.jsonl")
    copy.write_bytes(path.read_bytes())
    return copy


def test_bad_csv_records_do_not_shift_the_others(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "items.csv", ["id,text", "a,one", "b,two,three", '"c"x,bad', 'd,"two\nlines"', "", 'e,5" pipe']
    )
    for size in (1, 2, 50):
        generate(path, tmp_path / "out.jsonl", shard_size=size, force=True)
        assert [row["id"] for _, row in read_rows(tmp_path / "out.jsonl")] == ["a", "d", "e"]
        rejects = [row for _, row in read_rows(write_copy(tmp_path / "out.jsonl.rejects"))]
        assert [row["line"] for row in rejects] == [3, 4]
        assert rejects[0] == {"line": 3, "reason": "3 cells, but the header has 2", "record": "b,two,three"}


def test_repeated_ids_stop_a_strict_run(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", [*ROWS, {"id": "a5", "text": "again"}])
    with pytest.raises(InputError, match=r"in.jsonl:101: id 'a5' is already in line 6"):
        generate(tmp_path / "in.jsonl", tmp_path / "out.jsonl", strict=True)


def test_repeats_are_found_in_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pusl.catalog.parts, "BUCKET", 10)
    codes = np.random.default_rng(0).integers(0, 1000, 500).astype(np.uint64)
    values, counts = np.unique(codes, return_counts=True)
    assert repeated(np.array_split(codes, 7)) == set(values[counts > 1].tolist())


def test_columns_and_template(tmp_path: Path) -> None:
    write_rows(
        tmp_path / "in.csv", [{"sku": "1", "title": "Zeto", "body": "drone"}, {"sku": "2", "title": "", "body": ""}]
    )
    columns = Columns(id_column="sku", text_template="{title} {body}")
    generate(tmp_path / "in.csv", tmp_path / "out.jsonl", columns=columns)
    rows = [row for _, row in read_rows(tmp_path / "out.jsonl")]
    assert rows[0]["keyphrases"] == ["Zeto", "drone"] and rows[1]["reason"] == "empty text"
    with pytest.raises(InputError, match=r"no column 'text' \(found: sku, title, body\). Name it with --text-column"):
        generate(tmp_path / "in.csv", tmp_path / "x.jsonl", columns=Columns(id_column="sku"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ('{"name": "a", "title": "b"}\n' * 3, "none of 3 lines can be used; line 1: no field 'id'"),
    ],
)
def test_useless_inputs_leave_nothing(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "in.jsonl").write_text(content)
    with pytest.raises(InputError, match=message):
        generate(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert os.listdir(tmp_path) == ["in.jsonl"]


def test_damaged_files_are_named(tmp_path: Path, items: Path) -> None:
    packed = gzip.compress(items.read_bytes())
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match="gzip data is damaged"):
        generate(tmp_path / "cut.jsonl.gz", tmp_path / "out.jsonl")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(InputError, match="not a readable Parquet file"):
        generate(tmp_path / "bad.parquet", tmp_path / "out2.jsonl")


class Stop(Exception):
    """Stands for any sudden end."""


def stop_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    done = 0
    real = WorkFolder.write_part

    def write(self: WorkFolder, index: int, content: bytes) -> object:
        nonlocal done
        if done == count:
            raise Stop
        done += 1
        return real(self, index, content)

    monkeypatch.setattr(WorkFolder, "write_part", write)


def test_an_interrupted_run_goes_on_and_a_changed_one_is_refused(
    tmp_path: Path, items: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(items, tmp_path / "whole.jsonl")
    log = tmp_path / "log"
    recipe = WordsRecipe(log=str(log))
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Stop):
            generate(items, tmp_path / "out.jsonl", recipe=recipe)
    assert not (tmp_path / "out.jsonl").exists()
    with pytest.raises(InputError, match=r"unfinished run with other settings \(k was 3, is 4\)"):
        generate(items, tmp_path / "out.jsonl", k=4)
    with pytest.raises(InputError, match="another model: version was 1, is 2"):
        generate(items, tmp_path / "out.jsonl", recipe=WordsRecipe(version=2))
    original = items.read_bytes()
    items.write_bytes(original + b'{"id": "new", "text": "x"}\n')
    with pytest.raises(InputError, match="another input: size was"):
        generate(items, tmp_path / "out.jsonl")
    items.write_bytes(original)
    log.unlink()
    part = tmp_path / "out.jsonl.parts" / "part-00000001"
    part.write_bytes(part.read_bytes()[:-5])  # a disk's fault: this shard is computed again
    summary = generate(items, tmp_path / "out.jsonl", recipe=recipe)
    assert summary.resumed == 32 and len(log.read_text().splitlines()) == 68
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    with pytest.raises(InputError, match="exists already; pass --force"):
        generate(items, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl.parts").exists()


def test_a_change_in_the_middle_of_the_input_is_seen(
    tmp_path: Path, items: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pusl.catalog.run.EDGE", 100)
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        with pytest.raises(Stop):
            generate(items, tmp_path / "out.jsonl")
    items.write_text(items.read_text().replace('"a20"', '"b20"'))
    with pytest.raises(InputError, match=r"differs from line 17 on"):
        generate(items, tmp_path / "out.jsonl")
    generate(items, tmp_path / "out.jsonl", force=True)
    assert "b20" in (tmp_path / "out.jsonl").read_text()


def test_force_starts_over_only_if_something_changed(
    tmp_path: Path, items: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out.jsonl").write_text("old\n")
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Stop):
            generate(items, tmp_path / "out.jsonl", force=True)
    assert (tmp_path / "out.jsonl").read_text() == "old\n"
    assert generate(items, tmp_path / "out.jsonl", force=True).resumed == 48


def test_a_kill_after_the_output_was_renamed_is_harmless(
    tmp_path: Path, items: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, "wipe", lambda self: (_ for _ in ()).throw(Stop))
        with pytest.raises(Stop):
            generate(items, tmp_path / "out.jsonl")
    content = (tmp_path / "out.jsonl").read_bytes()
    assert generate(items, tmp_path / "out.jsonl").resumed == 100
    assert (tmp_path / "out.jsonl").read_bytes() == content and not (tmp_path / "out.jsonl.parts").exists()


def test_two_runs_on_one_output_exclude_each_other(tmp_path: Path, items: Path) -> None:
    with WorkFolder(str(tmp_path / "out.jsonl")).locked(), pytest.raises(InputError, match="another run is writing"):
        generate(items, tmp_path / "out.jsonl")


def test_urls_go_through_fsspec(tmp_path: Path, items: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # fsspec's own local file system: not `open`, and with its own commit, as an object store has.
    url = f"local://{tmp_path}"
    for name in ("out.jsonl.gz", "out.parquet"):
        generate(items, tmp_path / name)
        with monkeypatch.context() as patch:
            stop_after(patch, 3)
            with pytest.raises(Stop):
                generate(f"{url}/items.jsonl", f"{url}/far-{name}")
        far = generate(f"{url}/items.jsonl", f"{url}/far-{name}")
        assert far.resumed == 48 and (tmp_path / f"far-{name}").read_bytes() == (tmp_path / name).read_bytes()
    assert len(os.listdir(tmp_path)) == 5
    with pytest.raises(InputError, match="no such file"):
        generate_catalog(WordsRecipe(), f"{url}/none.jsonl", tmp_path / "x.jsonl", 3)
    with pytest.raises(InputError, match=r"nosuch://x/in\.jsonl"):
        generate_catalog(WordsRecipe(), "nosuch://x/in.jsonl", tmp_path / "x.jsonl", 3)


def test_a_failed_upload_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Stop), open_atomic(f"local://{tmp_path}/x.jsonl", mode="wb") as stream:
        stream.write(b"half")
        raise Stop
    assert os.listdir(tmp_path) == []


def test_chunks_can_be_read_again_from_their_notes(tmp_path: Path) -> None:
    rows = [{"id": str(i), "text": f't{i}\n"x"' if i % 3 else "y"} for i in range(50)]
    for name in ("in.jsonl", "in.csv", "in.parquet"):
        write_rows(tmp_path / name, rows)
        source = CatalogFile(str(tmp_path / name), Columns())
        chunks = list(source.chunks(7))
        assert len(chunks) == 8 and chunks[-1].done == pytest.approx(1.0)
        for chunk in reversed(chunks):
            assert source.read(chunk.note()).digest == chunk.digest
            assert source.parse(source.read(chunk.note())) == source.parse(chunk)


@pytest.mark.slow
def test_processes_replace_a_dead_worker_once(tmp_path: Path) -> None:
    rows = [*ROWS, {"id": "p", "text": "POISON"}]
    write_rows(tmp_path / "in.jsonl", rows)
    generate(tmp_path / "in.jsonl", tmp_path / "one.jsonl", recipe=WordsRecipe(marker=str(tmp_path)))
    once = WordsRecipe(marker=str(tmp_path / "marker"))
    generate(tmp_path / "in.jsonl", tmp_path / "two.jsonl", recipe=once, workers=2)
    assert (tmp_path / "marker").exists()
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    with pytest.raises(WorkerDied, match=r"shard 6 \(5 records from line 97 on\)"):
        generate(tmp_path / "in.jsonl", tmp_path / "three.jsonl", workers=2)
    assert (tmp_path / "three.jsonl.parts" / "manifest.json").exists()


@pytest.mark.slow
def test_kill_9_many_times_gives_the_same_bytes(tmp_path: Path) -> None:
    rows = [{"id": f"a{i}", "text": f"word{i} drone {i % 17}"} for i in range(1500)]
    write_rows(tmp_path / "in.jsonl", rows)
    generate(tmp_path / "in.jsonl", tmp_path / "whole.parquet", shard_size=20)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from catalog_words import WordsRecipe\n"
        "from pusl.catalog.run import generate_catalog\n"
        "generate_catalog(WordsRecipe(slow=0.01), 'in.jsonl', 'out.parquet', 3, shard_size=20, workers=1)\n"
    )
    kills = 0
    for attempt in range(30):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(Path(__file__).parent)], cwd=tmp_path, stderr=subprocess.DEVNULL
        )
        before, deadline = len(list(tmp_path.glob("out.parquet.parts/part-*"))), time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            if len(list(tmp_path.glob("out.parquet.parts/part-*"))) >= before + 15 + attempt:
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.003)
        if process.wait() == 0:
            break
    assert kills >= 3 and (tmp_path / "out.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "out.parquet", "whole.parquet"]


def pause(seconds: float) -> None:
    time.sleep(seconds)


def sleeper() -> object:
    return pause


@pytest.mark.slow
def test_workers_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_catalog import sleeper\n"
        "from pusl.catalog.processes import run_tasks\n"
        "if __name__ == '__main__':\n"
        "    for done in run_tasks(sleeper, [0.0, 60.0], 1): print('up', flush=True)\n"
    )
    (tmp_path / "parent.py").write_text(script)
    command = [sys.executable, str(tmp_path / "parent.py"), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"up\n"
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        parent.kill()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(Path(f"/proc/{child}").exists() for child in children):
        time.sleep(0.05)
    assert children and not [child for child in children if Path(f"/proc/{child}").exists()]


def test_a_part_is_checked_by_its_own_sum(tmp_path: Path, items: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(Stop):
            generate(items, tmp_path / "out.jsonl")
    content = (tmp_path / "out.jsonl.parts" / "part-00000000").read_bytes()
    found = unpack_part(content)
    assert found is not None and found[0]["lines"] == list(range(1, 17))
    changed = (
        content.replace(b'"items"', b'"itens"', 1),
        content.replace(b'"line": 1', b'"line": 2', 1),
        b"[" * 9999 + content,
    )
    assert all(one != content and unpack_part(one) is None for one in changed), "a changed header is noticed"
    assert unpack_part(content[:-1]) is None and unpack_part(b"") is None and unpack_part(b"{}\n") is None
    assert json.loads(content.splitlines()[1])["id"] == "a0"


def test_tasks_may_be_fewer_than_processes() -> None:
    assert [result for _, result in run_tasks(sleeper, [0.0], 3)] == [None]
