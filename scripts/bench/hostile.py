"""A folder -> what the fuzzer feeds to commands: sound files and models, and every kind of broken one.

`make_sound` and `make_hostile` fill a folder once. The lists at the end
(`INTEGERS`, `FLOATS`, `WORDS`, `output_names`) are hostile values of flags. Part of scripts/bench/fuzz.py.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WORDS_OF_TEXT = ("red", "blue", "green", "shoe", "boot", "drone", "camera", "zeto", "bavix", "phone", "case", "lamp")


def items(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Sound items whose keyphrases are words of their texts."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        words = chance.choices(WORDS_OF_TEXT, k=chance.randrange(3, 12))
        phrases = list(dict.fromkeys(" ".join(words[i : i + 2]) for i in range(0, len(words) - 1, 2)))
        counts = [chance.randrange(1, 9) for _ in phrases]
        row = {"id": f"i{number}", "text": " ".join(words), "keyphrases": phrases, "counts": counts}
        rows.append({**row, "timestamp": f"2025-{1 + number % 12:02d}-01", "group": "ab"[number % 2]})
    return rows


def json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def make_sound(folder: Path) -> None:
    """Files that every command accepts, and a random model of a few thousand parameters."""
    train, test = items(40), items(12, seed=1)
    for number, row in enumerate(test):
        row["id"] = f"t{number}"
    (folder / "train.jsonl").write_bytes(json_lines(train))
    (folder / "dev.jsonl").write_bytes(json_lines(test[6:]))
    (folder / "test.jsonl").write_bytes(json_lines(test))
    (folder / "small.jsonl").write_bytes(json_lines(test[:3]))
    predictions = [
        {"id": row["id"], "keyphrases": ["red shoe", *row["keyphrases"]][:4], "scores": [-0.1, -0.2, -0.3, -0.4]}
        for row in test
    ]
    for row in predictions:
        row["scores"] = row["scores"][: len(row["keyphrases"])]
    (folder / "predictions.jsonl").write_bytes(json_lines(predictions))
    (folder / "universe.txt").write_text("red shoe\nblue lamp\ndrone camera\n", encoding="utf-8")
    (folder / "items.csv").write_text(
        "id,text,keyphrases\n1,a red shoe,red shoe|shoe\n2,a lamp,lamp\n", encoding="utf-8"
    )
    (folder / "log.csv").write_text("id,text,query,count\n1,a red shoe,red shoe,2\n1,a red shoe,shoe,1\n", "utf-8")
    (folder / "popularity.tsv").write_text("".join(f"{row['id']}\t{n + 1}\n" for n, row in enumerate(train)), "utf-8")
    (folder / "settings.yaml").write_text("seed: 1\n", encoding="utf-8")
    make_model(folder / "model", [row["text"] for row in train])


def make_model(folder: Path, texts: list[str]) -> None:
    from pusl.checkpoint import save_checkpoint, scratch_model
    from pusl.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(texts * 5, 300)
    model = scratch_model("tiny", tokenizer, seed=0)
    meta = {"paradigm": "pusl", "defaults": {"max_phrase_tokens": 4, "k": 3, "max_source_length": 32, "mu": 3.0}}
    save_checkpoint(folder, model, tokenizer, meta)


def hostile_contents() -> Iterator[tuple[str, bytes]]:
    """(file name, content) of broken example files."""
    good = items(6)
    sound = json_lines(good)

    def line(**fields: Any) -> bytes:
        return sound + json.dumps({**good[0], "id": "bad", **fields}).encode() + b"\n"

    yield "empty.jsonl", b""
    yield "blank.jsonl", b"\n\n \n"
    yield "cut.jsonl.gz", gzip.compress(sound)[:60]
    yield "flipped.jsonl.gz", bytes(byte ^ (i == 40) for i, byte in enumerate(gzip.compress(sound)))
    yield "bomb.jsonl.gz", bomb()
    yield "bytes.jsonl", sound + b'{"id": "\xff\xfe", "text": "a"}\n'
    yield "utf16.jsonl", sound.decode().encode("utf-16")
    yield "zeros.jsonl", sound + b"\0" * 1000
    yield "bom.jsonl", b"\xef\xbb\xbf" + sound
    yield "deep.jsonl", sound + b'{"id": "d", "text": "t", "keyphrases": ' + b"[" * 600 + b"]" * 600 + b"}\n"
    yield "deeper.jsonl", sound + b'{"id": "d", "text": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}\n"
    yield "surrogate.jsonl", sound + b'{"id": "s", "text": "\\ud800 lamp", "keyphrases": ["a"]}\n'
    yield "nan.jsonl", sound + b'{"id": "n", "text": "t", "keyphrases": ["a"], "counts": [NaN], "scores": [NaN]}\n'
    yield "large.jsonl", sound + b'{"id": "n", "text": "t", "keyphrases": ["a"], "counts": [1' + b"0" * 400 + b"]}\n"
    yield "digits.jsonl", sound + b'{"id": "n", "text": "t", "keyphrases": ["a"], "counts": [' + b"9" * 5000 + b"]}\n"
    yield (
        "infinite.jsonl",
        sound + b'{"id": "n", "text": "t", "keyphrases": ["a"], "counts": [1e999], "scores": [1e999]}\n',
    )
    yield "array.jsonl", b"[" + sound.strip().replace(b"\n", b",") + b"]"
    yield "string.jsonl", b'"a"\n"b"\n'
    yield "null.jsonl", line(text=None, keyphrases=None)
    yield "types.jsonl", line(text=5, keyphrases={"a": 1}, counts="x", scores="y", timestamp=[1])
    yield "nested.jsonl", line(keyphrases=[["a"], ["b"]], scores=[[1], [2]])
    yield "numbers.jsonl", line(keyphrases=[1, 2, True, None])
    yield "id_list.jsonl", line(id=["a"])
    yield "id_long.jsonl", line(id="x" * 20_000)
    yield "id_lines.jsonl", line(id="a\nb\r\x1b[31m\u2028")
    yield "twice.jsonl", sound + sound
    yield "counts.jsonl", line(counts=[1], keyphrases=["a", "b"], scores=[0.5])
    yield "negative.jsonl", line(counts=[-5], keyphrases=["a"], scores=[5.0])
    yield "blank_phrases.jsonl", line(keyphrases=["", "  ", "\u00a0", "\u200b"], counts=None)
    yield "long_phrase.jsonl", line(keyphrases=["k" * 50_000])
    yield "long_text.jsonl", line(text="red shoe " * 20_000)
    yield "control.jsonl", line(text="\x00\x1b[2J\x07", keyphrases=["a\x00b", "\x1b[31mred"])
    yield "unlabeled.jsonl", json_lines([{**row, "keyphrases": [], "counts": []} for row in good])
    yield "same_text.jsonl", json_lines([{**row, "text": "same"} for row in good])
    yield "empty_text.jsonl", json_lines([{**row, "text": ""} for row in good])
    yield "one.jsonl", json_lines(good[:1])
    yield "no_id.jsonl", json_lines([{key: row[key] for key in row if key != "id"} for row in good])
    yield "other.jsonl", b'{"a": 1}\n{"b": 2}\n'
    yield "times.jsonl", line(timestamp="99999-99-99")
    yield "time_numbers.jsonl", line(timestamp=1e300)
    yield "not_parquet.parquet", sound
    yield "empty.parquet", b""
    yield "empty.csv", b""
    yield "header.csv", b"id,text,keyphrases\n"
    yield "quote.csv", b'id,text,keyphrases\n1,"never closed,a\n'
    yield "twice.csv", b"id,id,text,keyphrases\n1,1,a,b\n"
    yield "wide.csv", b"id,text,keyphrases\n1,a,b,c,d\n2\n"
    yield "surrogate.csv", b'id,text,keyphrases\n1,a lamp,"[""\\ud800""]"\n'
    yield "deep.csv", b"id,text,keyphrases\n1,a lamp," + b"[" * 60_000 + b"\n"
    yield "bytes.csv", b"id,text,keyphrases\n1,\xff\xfe,a\n"
    yield "zeros.csv", b"id,text,keyphrases\n1,a\0b,c\n"
    yield "scores.csv", b"id,text,keyphrases,scores,counts\n1,a lamp,a|b,x|y,1|z\n"
    yield "nan.csv", b"id,text,keyphrases,scores,counts\n1,a lamp,a|b,nan|inf,1|2\n"
    yield "blank.txt", b"\n\n"
    yield "bytes.txt", b"red shoe\n\xff\xfe\n"
    yield "zeros.txt", b"red\0shoe\n"
    yield "long.txt", b"x" * 100_000 + b"\nred shoe\n"
    yield "numbers.txt", b"0,1 0:1 1:1\n5 9999999999999999999:1\nx:y\n"
    yield "deep.yaml", b"[" * 3000
    yield "aliases.yaml", b"a: &a [x,x]\nb: &b [*a,*a]\nseed: *b\n"
    yield "nan.yaml", b"lr: .nan\nepochs: .inf\nmu: .nan\n"
    yield "types.yaml", b"seed: [1]\nlr: {a: 1}\n1: 2\nnull: 3\n"
    yield "unknown.yaml", b"no_such_key: 1\n"
    yield "large.yaml", b"seed: 1" + b"0" * 400 + b"\n"
    yield "code.yaml", b"!!python/object/apply:os.system ['touch hacked']\n"
    yield "text.yaml", b"just words\n"
    yield "zeros.yaml", b"seed: \0\n"
    yield "dates.yaml", b"seed: 9999-99-99\nmodel: 2001-01-01\n"


def bomb(size: int = 40 << 20) -> bytes:
    """One line of JSON that unpacks to `size` bytes, in a small gzip file."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packer.compress(b'{"id": "b", "text": "')]
    parts += [packer.compress(b"a" * (1 << 20)) for _ in range(size >> 20)]
    return b"".join([*parts, packer.compress(b'", "keyphrases": ["a"]}\n'), packer.flush()])


def make_hostile(folder: Path) -> None:
    """Every broken file, and things that are no files at all."""
    for name, content in hostile_contents():
        (folder / name).write_bytes(content)
    _make_parquet(folder)
    (folder / "folder.jsonl").mkdir()
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "dangling.jsonl").symlink_to(folder / "nowhere.jsonl")
    (folder / "circle.jsonl").symlink_to(folder / "circle.jsonl")
    (folder / "zero.jsonl").symlink_to("/dev/zero")
    (folder / "null.device.jsonl").symlink_to("/dev/null")
    with open(os.fsencode(folder) + b"/name\xff.jsonl", "wb") as stream:  # a name that is not UTF-8
        stream.write(json_lines(items(6)))


def _make_parquet(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    good = items(6)
    table = pa.table({name: [row[name] for row in good] for name in ("id", "text", "keyphrases", "counts")})
    parquet.write_table(table, folder / "good.parquet")
    invalid = pa.array([b"\xff\xfe"] * 6).view(pa.string())
    parquet.write_table(table.set_column(1, "text", invalid), folder / "bytes.parquet")
    lists = pa.ListArray.from_arrays(pa.array(range(7), pa.int32()), invalid)
    parquet.write_table(table.set_column(2, "keyphrases", lists), folder / "bytes_list.parquet")
    for name, kind in (("duration", pa.duration("ns")), ("time", pa.timestamp("ns")), ("binary", pa.binary())):
        values = [b"x"] * 6 if name == "binary" else [2**62 + 7] * 6
        parquet.write_table(table.append_column("timestamp", pa.array(values, kind)), folder / f"{name}.parquet")
        parquet.write_table(table.set_column(1, "text", pa.array(values, kind)), folder / f"text_{name}.parquet")
    parquet.write_table(table.slice(0, 0), folder / "no_rows.parquet")
    parquet.write_table(pa.table({"id": pa.array([None] * 6)}), folder / "nulls.parquet")
    content = (folder / "good.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(content[: len(content) // 2])
    (folder / "flipped.parquet").write_bytes(bytes(byte ^ (0xFF if i == 200 else 0) for i, byte in enumerate(content)))


def damaged_folders(sound: Path, target: Path) -> None:
    """Copies of a model folder, each with one file damaged in one way."""
    files = sorted(path.relative_to(sound) for path in sound.rglob("*") if path.is_file())
    for number, (file, (how, change)) in enumerate((file, kind) for file in files for kind in DAMAGE.items()):
        if file.suffix != ".json" and how in ("deep", "list", "object", "folder"):
            continue
        copy = target / f"{sound.name}-{number}-{how}"
        shutil.copytree(sound, copy, copy_function=os.link)
        path = copy / file
        content = path.read_bytes()
        path.unlink()
        if how == "folder":
            path.mkdir()
        elif how != "missing":
            path.write_bytes(change(content))


def _flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0x55]) + content[middle + 1 :] if content else content


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "missing": bytes,
    "folder": bytes,
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "flipped": _flip,
    "header": lambda content: _flip(content[:64]) + content[64:],
    "deep": lambda content: b'{"format": ' + b"[" * 100_000,
    "list": lambda content: b"[1, 2]",
    "object": lambda content: b"{}",
    "bytes": lambda content: b"\xff\xfe\x00" + content,
}

INTEGERS = (
    "0",
    "-1",
    "2",
    "4294967296",
    "1000000000",
    "9223372036854775808",
    "1" + "0" * 400,
    "9" * 5000,
    "1.5",
    "x",
    "",
    "nan",
    "٣",
    "1_0",
)
FLOATS = ("nan", "inf", "-inf", "-1", "0", "1", "1e308", "1e-308", "5e-324", "1e999", "x", "", "1_0")
WORDS = (
    "", " ", "x", "a" * 5000, "\udcff", "a\nb", "{", "{}", "{0}", "{text.__class__}", "{text!r:>99999999}", "💥",
    "\x1b[31m",
    "../..", "=", "a=", "=a", "%s", "-", "é", ",", "\t", "utf-7", "idna", "hex", "zlib", "unicode_escape", "mbcs",
    "undefined", "punycode", "cuda:99", "mps", "text", "id", "counts", "http://[::1", "http://127.0.0.1:1/v1", "file:///etc/passwd",
)  # fmt: skip


def make_clutter(folder: Path, ending: str) -> None:
    """Things in a case's own folder that `output_names` name."""
    (folder / f"dangling{ending}").symlink_to(folder / "nowhere" / "deep")
    (folder / f"circle{ending}").symlink_to(folder / f"circle{ending}")
    (folder / f"existing{ending}").write_text("mine\n")
    (folder / f"folder{ending}").mkdir()
    (folder / f"folder{ending}" / "mine.txt").write_text("mine\n")
    os.mkfifo(folder / f"pipe{ending}")
    (folder / "file").write_text("mine\n")


def output_names(ending: str) -> list[str]:
    """Hostile names of output files or folders."""
    return [
        f"file/below{ending}", f"file/deep/below{ending}", "n" * 245 + ending, "n" * 251 + ending, "n" * 300 + ending,
        "é" * 120 + ending, f"dangling{ending}", f"dangling{ending}/below{ending}", f"circle{ending}",
        f"existing{ending}", f"folder{ending}", f"pipe{ending}", "", ".", "..", "/", f"name\udcff{ending}",
        f"a\nb{ending}", f"new/folder/of/its/own{ending}", f"~{ending}", f"trailing{ending}/", "/dev/null",
        "/dev/full", f"/proc/x{ending}", f"memory://x{ending}", f"nowhere://x{ending}", "x.unknown", f".{ending}",
        f"-{ending}", "d/" * 2000 + f"x{ending}", f"/sys/x{ending}", "file", f"://x{ending}",
        f"http://127.0.0.1:1/x{ending}",
    ]  # fmt: skip
