"""Processors that name AMX without being able to use it; real products in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pusl.process import LIMIT, OLDER_LIMIT, avoid_half_amx, half_amx

PRODUCTS = """
import torch
from pusl.decoding.cpu.linear import QuantizedLinear
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
    monkeypatch.setenv(LIMIT, "")  # oneDNN takes an empty one for none
    avoid_half_amx(path)
    assert bool(os.environ[LIMIT]) is half
    monkeypatch.setenv(LIMIT, "AVX2")
    avoid_half_amx(path)
    assert os.environ[LIMIT] == "AVX2", "what a user asked for stays"
    monkeypatch.setenv(LIMIT, "")
    monkeypatch.setenv(OLDER_LIMIT, "AVX2")
    avoid_half_amx(path)
    assert not os.environ[LIMIT], "under its older name too"


def test_other_systems_have_no_such_file(tmp_path):
    assert not half_amx(tmp_path / "nothing")
    (tmp_path / "arm").write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert not half_amx(tmp_path / "arm")


@pytest.mark.slow
def test_this_processor_multiplies_bytes_and_bfloat16():
    own = {name: value for name, value in os.environ.items() if name not in (LIMIT, OLDER_LIMIT)}
    done = subprocess.run([sys.executable, "-c", PRODUCTS], env=own, capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)
