"""The end of a vLLM server, with a program that holds what vLLM holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gymcp.agents.policies.vllm.server import stop_group

HOLDER = """
import multiprocessing, time
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
time.sleep(600)
"""
"""A semaphore with a name, which Python's resource tracker, a process of its own, removes when its owner has ended."""


def test_a_server_that_is_stopped_leaves_no_semaphore() -> None:
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        semaphore = Path("/dev/shm", f"sem.{process.stdout.readline().decode().strip().lstrip('/')}")
        try:
            assert semaphore.exists()
        finally:
            stop_group(process)
    assert not semaphore.exists()
