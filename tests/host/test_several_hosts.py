"""`examples/hosts.py`: a client of several hosts, one of which is killed while it plays."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest
from cli_runner import BANK, GYMCP, TIMEOUT_S, gymcp
from free_ports import refusing_port

from gymcp.store import TrajectoryStore

_SPEC = importlib.util.spec_from_file_location("hosts_example", BANK.with_name("hosts.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
hosts = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(hosts)

PLACES = 2 * hosts.PER_HOST
DEBTS = tuple(range(1, PLACES + hosts.PER_HOST + 1))
"""One task each: all places are taken, and as many tasks wait as a host has places."""
TASKS = tuple(f"pay_back_{debt}" for debt in DEBTS)
CallTool = Callable[..., Awaitable[str]]


@contextlib.contextmanager
def serving(folder: Path, out: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of `gymcp host`, and its address; at the end it is ended, if it has not been before."""
    command = [str(GYMCP), "host", "debts.py", "--port", "0", "--out", out]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as host:
        try:
            assert host.stdout is not None
            yield host, host.stdout.readline().strip()
        finally:
            host.terminate()
            host.wait(TIMEOUT_S)


def test_episodes_of_a_killed_host_start_again_on_the_other_and_each_task_counts_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "debts.py").write_text(BANK.read_text().replace("(5, 30, 100)", repr(DEBTS)))
    with serving(tmp_path, "first") as (_, first), serving(tmp_path, "second") as (victim, second):
        scores, begun = asyncio.run(play(victim, first, second))
    assert gymcp("clean").returncode == 0  # removes the leftovers of the killed host
    assert scores == dict.fromkeys(TASKS, 1.0)
    assert begun == len(TASKS) + hosts.PER_HOST
    assert capsys.readouterr().err.count(f"no score from {second}") == hosts.PER_HOST
    with TrajectoryStore.open(tmp_path / "first" / "bank-payer") as store:
        assert sorted(row.task for row in store.summaries(latest=False)) == sorted(TASKS)


def test_tasks_end_without_a_score_if_no_host_answers() -> None:
    async def ask(port: int) -> dict[str, float]:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            return dict(await hosts.play_all([client], "bank", TASKS, hosts.answer_user))

    with refusing_port() as port:
        assert asyncio.run(ask(port)) == {}


async def play(victim: subprocess.Popen[str], *addresses: str) -> tuple[dict[str, float], int]:
    """The scores of all tasks, and the number of episodes that began; the victim is killed once all places play."""
    begun, places = 0, asyncio.Barrier(PLACES)

    async def pay(message: str, call: CallTool) -> str:
        nonlocal begun
        begun += 1
        if begun <= PLACES:
            assert await call("balance", owner="ann") == "100"
            if await places.wait() == 0:
                victim.kill()
                victim.wait(TIMEOUT_S)
            await places.wait()
        return str(await hosts.answer_user(message, call))

    async with contextlib.AsyncExitStack() as stack:
        clients = [httpx.AsyncClient(base_url=address, timeout=TIMEOUT_S) for address in addresses]
        for client in clients:
            await stack.enter_async_context(client)
        scores = await hosts.play_all(clients, "bank", TASKS, pay)
    return scores, begun
