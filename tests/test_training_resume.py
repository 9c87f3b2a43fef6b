"""Kill -9, Ctrl-C and several processes: the same curve and the same weights as one quiet run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file
from test_training import catalog

from pusl.cli import main

pytestmark = pytest.mark.slow

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Sums are split by threads: runs in this process and in others must have the same number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return catalog(tmp_path_factory.mktemp("data") / "train.jsonl", 64)


@pytest.fixture(scope="module")
def quiet(data, tmp_path_factory):
    """The uninterrupted run all others are compared with. Dropout is on: its masks have to agree, too."""
    out = tmp_path_factory.mktemp("quiet") / "model"
    assert main(["train", *flags(data, out)]) == 0
    return out


def flags(data, out, *more):
    return [
        "--paradigm", "pusl", "--model", "scratch:tiny", "--vocab-size", "330", "--train", data, "--out", str(out),
        "--max-steps", "24", "--batch-size", "6", "--save-every", "6", "--log-every", "4", *more,
    ]  # fmt: skip


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "pusl", *arguments], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )


def wait_for(path, process):
    deadline = time.monotonic() + 240
    while not path.exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def curve(out):
    record = json.loads((out / "run.json").read_text())
    return [(point["step"], point["loss"]) for point in record["history"] if "loss" in point]


def assert_same_weights(out, quiet):
    found, expected = load_file(out / "model.safetensors"), load_file(quiet / "model.safetensors")
    assert found.keys() == expected.keys()
    different = [name for name in found if not torch.equal(found[name], expected[name])]
    assert not different, "weights must be the same bit by bit"


def test_kill_and_resume_equals_an_uninterrupted_run(data, quiet, tmp_path, capsys):
    out = tmp_path / "model"
    process = start("train", *flags(data, out))
    wait_for(out / "training" / "checkpoint-6" / "complete", process)
    process.kill()
    process.wait()
    process.stderr.close()
    assert not (out / "pusl.json").exists()
    assert main(["train", *flags(data, out)]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(["train", "--resume", "--out", str(out), "--lr", "0.5"]) == 2
    assert "--lr is 0.5, but the run" in capsys.readouterr().err
    # A checkpoint that the kill left half-written is passed over.
    (out / "training" / "checkpoint-23").mkdir()
    (out / "training" / "checkpoint-23" / "trainer_state.json").write_text("{")
    assert main(["train", "--resume", "--out", str(out)]) == 0
    assert curve(out) == curve(quiet)
    assert_same_weights(out, quiet)


def test_control_c_saves_and_says_how_to_go_on(data, quiet, tmp_path):
    out = tmp_path / "model"
    process = start("train", *flags(data, out))
    wait_for(out / "training" / "checkpoint-6" / "complete", process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    if process.returncode == 0:
        pytest.skip("the run was over before the signal came")
    assert process.returncode == 130 and f"pusl train --resume --out {out}" in said and "Traceback" not in said
    record = json.loads((out / "run.json").read_text())
    assert record["status"] == "stopped" and record["steps"] < 24
    assert (out / "training" / f"checkpoint-{record['steps']}" / "complete").exists()
    assert main(["train", "--resume", "--out", str(out)]) == 0
    assert_same_weights(out, quiet)


def test_two_processes_equal_one_with_twice_the_accumulation(data, tmp_path):
    common = ["--max-steps", "4", "--log-every", "1", "--dev", data, "--dev-items", "5", "--eval-every", "4"]
    assert main(["train", *flags(data, tmp_path / "one", *common, "--accumulation", "2")]) == 0
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    two = subprocess.run(
        [*launch, "-m", "pusl", "train", *flags(data, tmp_path / "two", *common)],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert two.returncode == 0, two.stderr
    assert two.stdout.count("4 steps, best at step 4") == 1, "only one process speaks"
    record, alone = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("two", "one"))
    assert record["processes"] == 2 and record["best"] == alone["best"]
    for (step, loss), (other_step, other_loss) in zip(curve(tmp_path / "one"), curve(tmp_path / "two"), strict=True):
        assert step == other_step and abs(loss - other_loss) < 1e-5
    found, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("two", "one"))
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)
