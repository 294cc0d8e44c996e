"""A real host on a port of the loopback, in a thread, for the duration of a block."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from gymcp.aio import BackgroundLoop
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import EnvSpec, load_env
from gymcp.errors import ConfigError
from gymcp.host.host import HostLimits
from gymcp.host.runs import Runs, RunSettings, ServedEnvironment
from gymcp.host.serve import Place, listen, serve_host
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.types import Json, Suite, Task

TOKEN = "a-token-of-the-host-for-tests"
BANK = load_spec(str(Path(__file__).parents[2] / "examples" / "bank.py"))
assert isinstance(BANK.suite, Suite)


class Closed:
    """A server that does not open."""

    def __init__(self, key: str) -> None:
        raise OSError("closed today")

    def knock(self) -> str:
        """Knock."""
        return ""


def make_debts(
    split: str, *, families: Sequence[str] | None, levels: Sequence[int] | None, count: int, first: int
) -> Iterator[Task]:
    """Debts of 1, 2, ... euros at level 1, and of 51, 52, ... at level 2."""
    assert isinstance(BANK.suite, Suite)
    if split != "train":
        raise ConfigError(f"debts: no split '{split}'; have train")
    if families:
        raise SystemExit("debts have no families")
    for number in range(first, first + count):
        for level in levels or (1, 2):
            debt = number + 1 + 50 * (level - 1)
            target = {"accounts": {"ann": 100 - debt, "bob": 20 + debt}}
            yield replace(BANK.suite.tasks[0], id=f"{split}-{level}-{number}", split=split, target=target)


TWO_TURNS = replace(
    BANK,
    name="two_turns",
    suite=replace(
        BANK.suite,
        tasks=(replace(BANK.suite.tasks[0], prompts=(*BANK.suite.tasks[0].prompts, "Anything else?"), gold=()),),
    ),
)
CLOSED = EnvSpec(
    name="closed",
    servers=(native_server("closed", Closed),),
    suite=Suite(name="closed", version="1", tasks=(Task(id="enter", prompts=("Enter.",), initial_state={"key": ""}),)),
    grade=BANK.grade,
)
DEBTS = replace(BANK, name="debts", more_tasks=make_debts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosted:
    """A running host, and a client of it."""

    address: str
    client: httpx.Client
    out: Path

    def get(self, path: str, token: str | None = TOKEN) -> httpx.Response:
        return self.client.get(path, headers=bearer(token))

    def post(self, path: str, body: Json = None, token: str | None = TOKEN) -> httpx.Response:
        return self.client.post(path, json={} if body is None else body, headers=bearer(token))

    def delete(self, path: str, token: str | None = TOKEN) -> httpx.Response:
        return self.client.delete(path, headers=bearer(token))

    def start(self, environment: str, task: str | None, **fields: Any) -> dict[str, Json]:
        """The answer to the start of an episode."""
        answer = self.post("/v1/episodes", {"environment": environment, "task": task, **fields})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def ask(self, episode: Mapping[str, Json], what: str, **body: Any) -> dict[str, Json]:
        """The answer to ``say``, ``call`` or ``finish``."""
        answer = self.post(f"/v1/episodes/{episode['id']}/{what}", body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def status(self, episode: Mapping[str, Json]) -> dict[str, Json]:
        return dict(self.get(f"/v1/episodes/{episode['id']}").json())


def bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


@contextlib.contextmanager
def hosting(
    *specs: EnvSpec, out: Path, resume: bool = False, agent_s: float | None = None, **limits: Any
) -> Iterator[Hosted]:
    """A host of the environments in bubblewrap; `limits`: of `HostLimits`. Its reports are written at the end."""
    sandbox = get_sandbox("bwrap")
    served = [ServedEnvironment(spec=spec, source=spec.name, env=load_env(spec)) for spec in specs]
    runs = Runs(served, RunSettings(out=out, sandbox=sandbox, agent_s=agent_s, resume=resume))

    @contextlib.asynccontextmanager
    async def serve() -> AsyncIterator[str]:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        work = serve_host(runs, sandbox, HostLimits(**limits), listening, TOKEN, ready.set_result)
        serving = asyncio.create_task(work)
        either: tuple[asyncio.Future[Any], ...] = (ready, serving)
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        try:
            yield ready.result()
        finally:
            serving.cancel()
            await asyncio.wait([serving])
            runs.close()

    with listen(Place()) as listening:
        background = BackgroundLoop("host", serve())
        try:
            with httpx.Client(base_url=background.resource, timeout=60) as client:
                yield Hosted(address=background.resource, client=client, out=out)
        finally:
            background.end()
