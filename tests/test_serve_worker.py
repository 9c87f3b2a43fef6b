"""The model process of the service, without the service."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys

import pytest
from server_process import shared_model

from pusl.serve.worker import HEADER

PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-m", "pusl.serve.worker", sys.argv[1]])
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kills a process the POSIX way")
def test_a_worker_ends_with_its_parent_although_its_pipes_stay_open() -> None:
    settings = json.dumps({"model": str(shared_model()), "threads": 1})
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, settings], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert parent.stdin and parent.stdout
    with parent, parent.stdin, parent.stdout:
        try:
            (length,) = HEADER.unpack(parent.stdout.read(HEADER.size))
            message = b""
            while len(message) < length:
                message += parent.stdout.read(length - len(message))
            assert "ready" in json.loads(message)
        finally:
            parent.kill()
        # The worker holds the last open end of this pipe: it closes when the worker is gone.
        assert select.select([parent.stdout], [], [], 20)[0], "the worker outlived its parent"
        assert os.read(parent.stdout.fileno(), 1) == b""
