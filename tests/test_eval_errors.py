"""Memory that a machine does not have is one line, whoever asks for it."""

from __future__ import annotations

import pytest

from pusl_eval.errors import exit_code


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 512000000000 bytes"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_too_little_memory_is_one_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        raise error

    assert exit_code(command, "pusl") == 1
    assert capsys.readouterr().err.startswith("pusl: out of memory")


def test_other_errors_of_a_library_stay_what_they_are() -> None:
    def command() -> int:
        raise RuntimeError("a mistake of ours")

    with pytest.raises(RuntimeError, match="a mistake of ours"):
        exit_code(command, "pusl")
