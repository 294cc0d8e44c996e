"""The same work in other frameworks, each in a virtualenv of its own, with the counter as a tool of the framework.

That is the lightest tool each of them has, a function in the framework's process: no server, no sandbox, no recorded
state. An MCP server per episode would cost them 0.5 s of CPU for each start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gymcp.paths import gymcp_home

INSPECT = """
import sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool
from inspect_ai.util import store

url, episodes, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]

@tool
def add():
    async def execute(number: int) -> str:
        '''Add a number to the total.

        Args:
            number: What is added.
        '''
        store().set("total", store().get("total", 0) + number)
        return str(store().get("total"))
    return execute

task = Task(dataset=[Sample(input="Count.", target="All is counted.")], solver=[use_tools(add()), generate()],
            scorer=includes())
log, = eval(task, model="openai-api/stub/stub", model_base_url=url, epochs=episodes, max_samples=episodes,
            max_connections=episodes, display="none", log_dir=folder)
assert log.status == "success", log.error
assert log.results.scores[0].metrics["accuracy"].value == 1.0
"""

VERIFIERS = """
import asyncio, sys
import verifiers as vf
from datasets import Dataset
from openai import AsyncOpenAI

url, episodes = sys.argv[1], int(sys.argv[2])

def add(number: int) -> str:
    '''Add a number to the total.

    Args:
        number: What is added.
    '''
    return str(number)

def counted(completion, **rest) -> float:
    return float("All is counted." in str(completion[-1]["content"]))

rows = Dataset.from_dict({"question": ["Count."], "answer": ["All is counted."]})
env = vf.ToolEnv(tools=[add], max_turns=100, dataset=rows, rubric=vf.Rubric(funcs=[counted]))

async def main():
    client = AsyncOpenAI(base_url=url, api_key="none")
    done = await env.evaluate(client, "stub", num_examples=1, rollouts_per_example=episodes, max_concurrent=episodes)
    assert list(done["reward"]) == [1.0] * episodes, done["reward"]

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    name: str
    packages: tuple[str, ...]
    program: str
    """Source of the program; its arguments are the policy's address, the number of episodes, and an output folder."""


PEERS = (
    Peer(name="inspect_ai 0.3.285", packages=("inspect_ai==0.3.285", "openai"), program=INSPECT),
    # the last release line whose environments run in the process that plays them
    Peer(name="verifiers 0.1.8", packages=("verifiers==0.1.8",), program=VERIFIERS),
)


def install(peer: Peer) -> Path:
    """The interpreter of the peer's virtualenv in gymcp's cache; makes it if it is missing."""
    folder = gymcp_home() / "benchmarks" / peer.name.replace(" ", "-")
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.exists():
        uv = [sys.executable, "-m", "uv", "--quiet"]
        subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, str(folder)], check=True, timeout=120)
        subprocess.run([*uv, "pip", "install", "--python", str(python), *peer.packages], check=True, timeout=900)
        ready.touch()
    return python


def play(peer: Peer, python: Path, url: str, episodes: int, timeout_s: float) -> None:
    """Play all episodes to their end. Raises CalledProcessError if one did not count to the end."""
    with tempfile.TemporaryDirectory() as folder:
        environment: Mapping[str, str] = {**os.environ, "STUB_API_KEY": "none", "HOME": folder}
        subprocess.run(
            [str(python), "-c", peer.program, url, str(episodes), folder],
            check=True,
            timeout=timeout_s,
            env=environment,
            stdout=subprocess.DEVNULL,
            cwd=folder,
        )
