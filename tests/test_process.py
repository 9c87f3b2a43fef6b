"""What a process of ours sets at its start, and that nothing else sets it; real products in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pusl.catalog.processes import run_tasks
from pusl.decoding.cpu.linear import QuantizedLinear, make_linear
from pusl.process import (
    OLD_ONEDNN_LIMIT,
    ONEDNN_LIMIT,
    avoid_half_amx,
    half_amx,
    prepare_process,
    torch_threads,
)  # fmt: skip
from pusl_eval.files import InputError

TESTS = Path(__file__).resolve().parent

PRODUCTS = """
import torch
from pusl.catalog.processes import run_tasks
from pusl.decoding.cpu.linear import QuantizedLinear
from pusl.process import prepare_process
prepare_process()
ten = torch.randn(64, 512)
assert (ten.bfloat16() @ ten.bfloat16().T).shape == (64, 64)
assert QuantizedLinear(torch.randn(512, 512))(ten).shape == (64, 512)
"""


def cpuinfo(path, level, flags):
    path.write_text(f"processor\t: 0\ncpuid level\t: {level}\nflags\t\t: fpu {flags} sse\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("level", "flags", "half"),
    [
        (28, "amx_bf16 amx_tile", True),
        (29, "amx_tile amx_int8", False),
        (32, "amx_tile", False),
        (28, "avx512f", False),
    ],
)
def test_amx_without_its_tiles_is_left_alone(tmp_path, monkeypatch, level, flags, half):
    path = cpuinfo(tmp_path / "cpuinfo", level, flags)
    assert half_amx(path) is half
    monkeypatch.setenv(ONEDNN_LIMIT, "")  # oneDNN takes an empty one for none
    avoid_half_amx(path)
    assert bool(os.environ[ONEDNN_LIMIT]) is half
    monkeypatch.setenv(ONEDNN_LIMIT, "AVX2")
    avoid_half_amx(path)
    assert os.environ[ONEDNN_LIMIT] == "AVX2", "what a user asked for stays"
    monkeypatch.setenv(ONEDNN_LIMIT, "")
    monkeypatch.setenv(OLD_ONEDNN_LIMIT, "AVX2")
    avoid_half_amx(path)
    assert not os.environ[ONEDNN_LIMIT], "under its older name too"


def test_other_systems_have_no_such_file(tmp_path):
    assert not half_amx(tmp_path / "nothing")
    (tmp_path / "arm").write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert not half_amx(tmp_path / "arm")


@pytest.mark.slow
def test_this_processor_multiplies_bytes_and_bfloat16():
    own = {name: value for name, value in os.environ.items() if name not in (ONEDNN_LIMIT, OLD_ONEDNN_LIMIT)}
    done = subprocess.run([sys.executable, "-c", PRODUCTS], env=own, capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)


UNTOUCHED = """
import os, sys
environment = dict(os.environ)
import pusl
assert dict(os.environ) == environment, "importing pusl sets no variable"
assert "torch" not in sys.modules
import torch
import pusl.process
def never(*_):
    raise AssertionError("a library call changed the process")
pusl.process.prepare_process = pusl.process.keep_freed_memory = never
from transformers import T5ForConditionalGeneration  # torch's compiler sets a variable of its own
torch.set_num_threads(3)
environment = dict(os.environ)
from decoding_models import checkpoint, documents
from pusl.training.objective import with_loss
one = checkpoint("pusl")
kind = type(one.model)
for precision in ("fp32", "int8"):
    for strategy in ("sequence", "beam"):
        assert pusl.KeyphraseGenerator(one, precision=precision).generate(documents(2), 3, strategy=strategy)
assert type(with_loss(one.model)) is not kind
assert type(one.model) is kind, "a user's model keeps its class"
assert torch.get_num_threads() == 3
assert dict(os.environ) == environment
"""

TRAINING = """
import os, sys, torch
from pusl.training import TrainConfig, train
from pusl.catalog.run import generate_catalog
ours = lambda: {name: os.environ.get(name) for name in ("OMP_WAIT_POLICY", "ONEDNN_MAX_CPU_ISA", "OMP_NUM_THREADS")}
torch.set_num_threads(3)
before = ours()
train(TrainConfig(paradigm="pusl", model="scratch:tiny", train="items.jsonl", out="model", max_steps=2))
generate_catalog("model", "items.jsonl", "out.jsonl", 2, workers=1, threads=1, progress=False)
assert torch.get_num_threads() == 3 and ours() == before
"""


def run_python(code, *words, folder=None, **variables):
    unset = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", ONEDNN_LIMIT, OLD_ONEDNN_LIMIT, "RAY_USAGE_STATS_ENABLED")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    paths = [str(TESTS), str(TESTS.parent), str(TESTS.parent / "eval")]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, env={**environment, **variables}, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_importing_and_generating_leave_the_process_as_it_was():
    run_python(UNTOUCHED)


@pytest.mark.slow
def test_training_and_a_catalog_leave_the_process_as_it_was(tmp_path):
    rows = [{"id": str(i), "text": f"a red drone {i}", "keyphrases": ["drone", "red drone"]} for i in range(20)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_python(TRAINING, folder=tmp_path)


def test_the_command_line_sets_what_its_process_needs(tmp_path):
    code = "import os; from pusl.cli import main; main(['--version']); print(os.environ.get('OMP_WAIT_POLICY'))"
    assert run_python(code).split()[-1] == "PASSIVE"
    assert run_python(code, OMP_WAIT_POLICY="ACTIVE").split()[-1] == "ACTIVE", "what the user set stays"


def settings_of(_task):
    return os.environ.get("OMP_WAIT_POLICY"), torch.get_num_threads()


def start_reporting():
    return settings_of


@pytest.mark.slow
def test_workers_set_what_their_process_needs(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    before = torch.get_num_threads()
    assert list(run_tasks(start_reporting, ["task"], 1, threads=3)) == [("task", ("PASSIVE", 3))]
    assert "OMP_WAIT_POLICY" not in os.environ and torch.get_num_threads() == before


def test_threads_are_bounded_and_restored():
    before = torch.get_num_threads()
    with torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    for wrong in (0, -1, 100_000):
        with pytest.raises(InputError, match=f"threads is {wrong}; expected 1 to 1024"):
            prepare_process(wrong)
    assert torch.get_num_threads() == before


def test_int8_is_refused_where_it_would_end_the_process(monkeypatch):
    monkeypatch.setattr("pusl.decoding.cpu.linear.half_amx", lambda: True)
    monkeypatch.setenv(ONEDNN_LIMIT, "")
    monkeypatch.setenv(OLD_ONEDNN_LIMIT, "")
    with pytest.raises(InputError, match="prepare_process"):
        make_linear("int8", torch.device("cpu"))
    monkeypatch.setenv(ONEDNN_LIMIT, "AVX512_CORE_FP16")
    assert make_linear("int8", torch.device("cpu")) is QuantizedLinear


@pytest.mark.skipif(os.name != "posix", reason="parents are known on POSIX only")
def test_a_command_that_another_one_started_ends_with_it():
    """The inner process is what `pusl demo` starts for a training. When its parent is gone, it gets a SIGTERM."""
    inner = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('stopped', flush=True), sys.exit()))\n"
        "from pusl.process import end_with_command\n"
        "end_with_command(); time.sleep(60)"
    )
    outer = (
        "import os, subprocess, sys\n"
        "environment = {**os.environ, 'PUSL_PARENT': str(os.getpid())}\n"
        f"subprocess.Popen([sys.executable, '-c', {inner!r}], env=environment); os._exit(9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # The inner process has the outer one's stdout, so this returns when both have ended.
    done = subprocess.run([sys.executable, "-c", outer], env=environment, stdout=subprocess.PIPE, timeout=50)
    assert done.returncode == 9 and done.stdout == b"stopped\n"
