"""A vLLM server killed in the middle of a run and started again: no episode is lost or scored differently."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from generate_policy import load

from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model
from gymcp.agents.policies.vllm.client import GENERATE, VllmSettings, open_vllm
from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.react import ReactSettings, react
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import load_env
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome

BANK = load_env(load_spec(str(Path(__file__).parents[2] / "examples" / "bank.py")))
PAY, DONE = "<|c|>transfer<|v|>5<|v|>ann<|v|>bob", "Bob has his money."
TRIALS, KILLED_AT = 6, 5
WAIT_S = 120.0


class DyingServer:
    """A server with vLLM's API whose model pays back 5. It dies at its n-th answer; started again, it stays alive."""

    def __init__(self, pay: list[int], done: list[int]) -> None:
        self.port = 0
        self._pay, self._done = pay, done
        self._answers = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def kill(self) -> None:
        """Close the port and every connection, as the kernel does for a killed process."""
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while head := await reader.readline():
                size = 0
                while (line := await reader.readline()).strip():
                    name, _, value = line.decode().partition(":")
                    size = int(value) if name.lower() == "content-length" else size
                path, body = head.decode().split()[1], json.loads(await reader.readexactly(size) or b"null")
                self._answers += path == GENERATE and bool(body["token_ids"])
                if self._answers == KILLED_AT:
                    self._answers += 1
                    self.kill()
                    return
                answer = json.dumps(self._answer(path, body)).encode()
                writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(answer)}\r\n\r\n".encode() + answer)
        finally:
            self._open.discard(writer)
            writer.close()

    def _answer(self, path: str, body: Any) -> Any:
        if path != GENERATE:
            return {"data": [{"id": "tiny", "max_model_len": 2048}]}
        ids = self._done if contains(body["token_ids"], self._pay) else self._pay
        content = [{"logprob": 0.0} for _ in ids]
        return {"choices": [{"token_ids": ids, "logprobs": {"content": content}, "finish_reason": "stop"}]}


def contains(whole: list[int], part: list[int]) -> bool:
    return any(whole[at : at + len(part)] == part for at in range(len(whole)))


def test_no_episode_is_lost_if_the_server_is_killed_and_restarted(tmp_path: Path) -> None:
    known = load(make_tiny_model(tmp_path, "compact", size=TinySize(hidden=32, layers=1, heads=2)))
    end = min(known.renderer.end_ids)
    server = DyingServer(*([*known.renderer.tokenizer.encode(text), end] for text in (PAY, DONE)))
    jobs = [Job(task=BANK.suite.tasks[0], trial=trial, seed=trial) for trial in range(TRIALS)]
    played: list[Rollout] = []

    async def main() -> None:
        restarts: list[asyncio.Task[None]] = []

        def keep(rollout: Rollout, last: bool) -> None:
            played.append(rollout)
            if rollout.trajectory.outcome is Outcome.POLICY_INFRA and not restarts:
                restarts.append(asyncio.create_task(server.start()))

        await server.start()
        settings = VllmSettings(attempts=3, backoff_s=0.001)
        async with asyncio.timeout(WAIT_S), open_vllm(f"http://127.0.0.1:{server.port}", "tiny", settings) as policy:
            make = react(replace(known, policy=policy), ReactSettings())
            await run_jobs(BANK, get_sandbox("bwrap"), make, jobs, Schedule(concurrency=2), keep)
        await asyncio.gather(*restarts)
        server.kill()

    asyncio.run(main())
    found = [rollout.trajectory for rollout in played]
    lost = [trajectory for trajectory in found if trajectory.outcome is Outcome.POLICY_INFRA]
    assert lost
    assert {trajectory.score for trajectory in lost} == {None}
    assert all("vllm: http://127.0.0.1:" in trajectory.reason for trajectory in lost)
    scored = Counter(trajectory.trial for trajectory in found if trajectory.outcome is Outcome.SCORED)
    assert scored == dict.fromkeys(range(TRIALS), 1)
    assert {trajectory.score for trajectory in found if trajectory not in lost} == {1.0}
