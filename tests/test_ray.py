"""`--engine ray` on a real cluster of two nodes: the same bytes, also when workers and drivers are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from catalog_words import WordsRecipe
from decoding_models import WORDS, checkpoint

from pusl.catalog.engine_ray import ATTEMPTS, ShardActor
from pusl.catalog.run import Options, ShardJob, generate_catalog
from pusl.catalog.shards import CatalogFile
from pusl.checkpoint import save_checkpoint
from pusl.examples import STANDARD
from pusl.fusion.learn import fuse
from pusl_eval.files import write_rows

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's own, about its own internals
]

DRIVER = """
import json, sys
from catalog_words import WordsRecipe
from pusl.catalog.run import generate_catalog
source, output, address, recipe = sys.argv[1:]
summary = generate_catalog(
    WordsRecipe(**json.loads(recipe)), source, output, 3, shard_size=20, progress=False, engine="ray",
    engine_options={"address": address, "workers": 2},
)
print("SUMMARY", summary.items, summary.resumed, summary.rejects)
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        cluster.add_node(num_cpus=1)
        try:
            yield cluster.address
        finally:
            cluster.shutdown()


def driver(source: str, output: str, address: str, recipe: str) -> subprocess.Popen[str]:
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]  # catalog_words lies here
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", DRIVER, source, output, address, recipe]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_killed_workers_and_drivers_change_no_byte(address: str, tmp_path: Path) -> None:
    rows = [{"id": f"a{i}", "text": f"word{i} drone {i % 17}"} for i in range(500)]
    rows[250]["text"] = "POISON"  # kill -9 for the first actor that meets it
    write_rows(tmp_path / "in.jsonl.gz", [*rows, {"id": "bad"}])
    generate_catalog(
        WordsRecipe(marker=str(tmp_path)), tmp_path / "in.jsonl.gz", tmp_path / "local.jsonl", 3, shard_size=20,
        workers=1, progress=False,
    )  # fmt: skip
    far, parts = f"local://{tmp_path}", tmp_path / "out.jsonl.parts"
    arguments = (f"{far}/in.jsonl.gz", f"{far}/out.jsonl", address, f'{{"slow": 0.1, "marker": "{tmp_path}/marker"}}')
    with driver(*arguments) as first:
        while first.poll() is None and len(list(parts.glob("part-*"))) < 5:
            time.sleep(0.01)
        first.send_signal(signal.SIGKILL)
    done = len(list(parts.glob("part-*")))
    assert first.returncode == -9 and 5 <= done < 26
    with driver(*arguments) as second:
        out, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    items, resumed, rejects = re.findall(r"SUMMARY (\d+) (\d+) (\d+)", out)[0]  # Ray talks on stdout too
    assert (items, rejects) == ("500", "1") and int(resumed) >= 20 * done - 19
    assert (tmp_path / "marker").exists(), "no worker was killed"
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()
    assert (tmp_path / "out.jsonl.rejects").read_bytes() == (tmp_path / "local.jsonl.rejects").read_bytes()
    assert not parts.exists()


def test_a_fused_folder_gives_the_same_bytes_on_a_cluster(address: str, tmp_path: Path) -> None:
    made = checkpoint()
    save_checkpoint(tmp_path / "pusl", made.model, made.tokenizer, {"paradigm": "pusl", **made.meta})
    items = [
        {"id": str(i), "text": f"{WORDS[i % 3]} {WORDS[i % 7]} lamp {i % 5}", "keyphrases": [WORDS[i % 7], "lamp"]}
        for i in range(160)
    ]
    for name, rows in (("train", items[:80]), ("dev", items[80:140]), ("test", items[140:])):
        write_rows(tmp_path / f"{name}.jsonl", [{**row, "text": f"{name} {row['text']} {row['id']}"} for row in rows])
    sources = [f"pusl={tmp_path / 'pusl'}", "knn", "text"]
    fuse(tmp_path / "train.jsonl", tmp_path / "dev.jsonl", sources, tmp_path / "fused", depth=8, ablate=False)
    generate_catalog(
        tmp_path / "fused", tmp_path / "test.jsonl", tmp_path / "here.jsonl", 3, workers=1, shard_size=6,
        explain=True, complete=True, progress=False,
    )  # fmt: skip
    command = [
        sys.executable, "-m", "pusl", "generate", "--model", tmp_path / "fused", "--input", tmp_path / "test.jsonl",
        "--output", tmp_path / "there.jsonl", "-k", "3", "--shard-size", "6", "--explain", "--complete",
        "--engine", "ray", "--workers", "2", "--address", address,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here.jsonl").read_bytes() == (tmp_path / "there.jsonl").read_bytes()
    assert "knn" in (tmp_path / "there.jsonl").read_text()


def test_a_shard_that_ends_every_actor_is_given_up(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", [{"id": "a", "text": "b"}])
    job = ShardJob(str(tmp_path / "in.jsonl"), STANDARD, WordsRecipe(), Options(3))
    (chunk,) = CatalogFile(job.input, STANDARD).chunks(5)
    note = {name: [getattr(chunk, name)] for name in ("index", "line", "start", "records", "digest")}
    (tmp_path / "out.jsonl.parts").mkdir()
    for _ in range(ATTEMPTS):
        ShardActor(job, str(tmp_path / "out.jsonl"), "run").count_attempt(chunk)  # and is killed
    (report,) = ShardActor(job, str(tmp_path / "out.jsonl"), "run")(note)["report"]
    assert json.loads(report) == {"died": "4 actors ended while they worked on shard 0 (1 records from line 1 on)"}
    (report,) = ShardActor(job, str(tmp_path / "out.jsonl"), "next run")(note)["report"]
    assert json.loads(report)["counts"]["items"] == 1
