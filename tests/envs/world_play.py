"""Files of a world and a play of it, for tests."""

from __future__ import annotations

import asyncio

from gymcp.agents.runner.rollout import Job, Rollout, rollout
from gymcp.agents.strategies.scripted import Replay
from gymcp.envs.spec import LoadedEnv
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.workspaces.seeds import seed_folder
from gymcp.types import Action, Json

FILES = {"files": {"a": "1", "folder/b": {"text": "2", "mode": "600"}, "empty": None, "link": {"target": "a"}}}


def play(env: LoadedEnv, *actions: Action, sandbox: str = "bwrap") -> Rollout:
    job = Job(task=env.suite.tasks[0], trial=0, seed=1)
    agent = Replay(iter(actions))
    return asyncio.run(rollout(env, get_sandbox(sandbox), lambda task, seed: agent, job, timeout_s=60))


def seed_bytes(state: Json) -> dict[str, str]:
    folder = asyncio.run(seed_folder(state, get_sandbox("bwrap")))
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
