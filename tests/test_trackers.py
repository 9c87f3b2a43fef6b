"""`--report-to`: real trainings whose curves arrive at each tracker that is installed, without a network."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent
DEV_SCORES = {"F1_O", "B_mu", "B_2mu", "K_2mu"}  # tensorboardX and MLflow write _ for @


def needs(package):
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"needs {package}")


def train(folder, *flags, **env):
    rows = [{"id": str(i), "text": f"red shoe {i}", "keyphrases": ["shoe", "red shoe"]} for i in range(12)]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["train", "--model", "scratch:tiny", "--train", "items.jsonl", "--dev", "items.jsonl", "--out", "model"]
    words += ["--vocab-size", "280", "--max-steps", "4", "--eval-every", "2", "--log-every", "1", *flags]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "eval")]), **env}
    done = subprocess.run([sys.executable, "-m", "pusl", *words], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not (folder / "model" / "training").exists()


def events(folder):
    """{curve: steps} of TensorBoard's files: records of a length, a checksum, a message and its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    curves = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        content, place = path.read_bytes(), 0
        while place < len(content):
            (length,) = struct.unpack_from("<Q", content, place)
            event = Event.FromString(content[place + 12 : place + 12 + length])
            for value in event.summary.value:
                curves.setdefault(value.tag.replace("@", "_"), []).append(event.step)
            place += 16 + length
    return curves


@needs("tensorboardX")
def test_tensorboards_curves_stay_beside_the_finished_model(tmp_path):
    train(tmp_path, "--report-to", "tensorboard")
    curves = events(tmp_path / "model" / "tensorboard")
    assert curves["train/loss"] == [1, 2, 3, 4]
    assert {name for name in DEV_SCORES if curves.get(f"eval/{name}") == [2, 4]} == DEV_SCORES
    (tmp_path / "model" / "tensorboard" / "notes.txt").write_text("mine")
    # A folder of the user's own choice; --force takes what the earlier run wrote, and nothing else.
    train(tmp_path, "--report-to", "tensorboard", "--force", TENSORBOARD_LOGGING_DIR="elsewhere")
    assert events(tmp_path / "elsewhere")["train/loss"] == [1, 2, 3, 4]
    assert [path.name for path in (tmp_path / "model" / "tensorboard").iterdir()] == ["notes.txt"]


@needs("wandb")
def test_wandb_offline(tmp_path):
    train(tmp_path, "--report-to", "wandb", WANDB_MODE="offline", WANDB_SILENT="true")
    (log,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    content = log.read_bytes()
    assert all(f"eval/{name.replace('_', '@')}".encode() in content for name in DEV_SCORES) and b"model" in content


@needs("mlflow")
def test_mlflow_in_a_local_file(tmp_path):
    train(tmp_path, "--report-to", "mlflow", MLFLOW_TRACKING_URI="sqlite:///curves.db")
    with sqlite3.connect(tmp_path / "curves.db") as store:
        counts = dict(store.execute("select key, count(*) from metrics group by key"))
        runs = store.execute("select name, status from runs").fetchall()
    store.close()
    assert counts["loss"] == 4 and runs == [("model", "FINISHED")]
    assert {name for name in DEV_SCORES if counts.get(f"eval_{name}") == 2} == DEV_SCORES
