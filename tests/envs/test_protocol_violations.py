"""Servers that are lost, or that send false keys or states: such an episode never has a score."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

import pytest

from gymcp.agents.runner.rollout import Job, rollout
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs import McpEnv
from gymcp.envs.episodes.episode import Episode, open_episode
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.errors import EnvInfraError
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.outcome import Outcome
from gymcp.types import Action, EpisodeLimits, GoldTurn, Suite, Task, ToolCall, Trajectory

SERVER = r"""
import hashlib, json, os, sys
mode, count = sys.argv[1], 0
def key(state): return hashlib.sha256(json.dumps(state, separators=(",", ":")).encode()).hexdigest()
first = key({"n": 0})
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked: continue
    state, method = {"n": count}, asked["method"]
    if method == "initialize":
        answer = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
    elif method == "gymcp/setup":
        answer = {} if mode == "no key" else {"stateKey": first}
    elif method == "gymcp/state":
        answer = {"stateKey": first if mode == "always the first" else key(state), "state": state}
    elif method == "tools/list":
        answer = {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]}
    else:
        if mode == "dies": os._exit(9)
        count += 1
        claimed = key({"n": count}) if mode == "honest" else first
        meta = {} if mode == "no key later" else {"gymcp/stateKey": claimed}
        if mode == "brings another": meta["gymcp/state"] = {"n": count}
        answer = {"content": [{"type": "text", "text": str(count)}], "_meta": meta}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""
ADD = ToolCall(id="1", name="add")
TASK = Task(id="keep", prompts=("Add nothing.",), target={"n": 0}, gold=(GoldTurn(calls=(ADD,), final_text="Done."),))
FIRST = hashlib.sha256(b'{"n":0}').hexdigest()
SECOND = hashlib.sha256(b'{"n":1}').hexdigest()


def env(mode: str, **limits: int) -> LoadedEnv:
    server = ServerSpec(name="s", argv=("python3", "-c", SERVER, mode), wire="legacy", state="declared")
    spec = EnvSpec(
        name="dishonest",
        version=mode,
        servers=(server,),
        suite=Suite(name="dishonest", version="1", tasks=(replace(TASK, limits=EpisodeLimits(**limits)),)),
        grade=final_state_equals(),
    )
    return load_env(spec)


def play(mode: str, **limits: int) -> Trajectory:
    loaded = env(mode, **limits)
    job = Job(task=loaded.suite.tasks[0], trial=0, seed=0)
    return asyncio.run(rollout(loaded, get_sandbox("bwrap"), SCRIPTED["oracle"], job, timeout_s=30)).trajectory


def test_an_honest_server_of_the_same_kind_is_graded(own_home: None) -> None:
    assert (play("honest").outcome, play("honest").score) == (Outcome.SCORED, 0.0)


@pytest.mark.parametrize("mode", ["same with calls", "always the first"])
def test_a_server_that_sends_one_key_for_all_its_states_has_no_score(mode: str, own_home: None) -> None:
    for ended in (play(mode), play(mode, steps=1)):
        assert (ended.outcome, ended.score) == (Outcome.ENV_INFRA, None)
        assert ended.reason == f"server 's': gymcp/state: it claims the key {FIRST} for a state with {SECOND}"


def test_a_state_that_comes_with_a_result_must_have_its_key(own_home: None) -> None:
    ended = play("brings another")
    assert (ended.outcome, ended.score) == (Outcome.ENV_INFRA, None)
    assert ended.reason == f"server 's': tool 'add': it claims the key {FIRST} for a state with {SECOND}"


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("no key", "server 's': setup: it declares a state, but sends no stateKey"),
        ("no key later", "server 's': tool 'add': its result has no gymcp/stateKey"),
    ],
)
def test_a_server_that_declares_a_state_must_send_its_key(mode: str, said: str, own_home: None) -> None:
    ended = play(mode)
    assert (ended.outcome, ended.score) == (Outcome.ENV_INFRA, None)
    assert ended.reason.startswith(said)


def test_an_episode_that_lost_its_server_stays_broken_and_records_the_step(own_home: None) -> None:
    async def work(episode: Episode) -> None:
        messages = []
        for action in (Action(tool_calls=(ADD,)), Action(text="Done."), Action(text="Done.")):
            with pytest.raises(EnvInfraError, match="the server ended") as caught:
                await episode.step(action)
            messages.append(str(caught.value))
        assert len(set(messages)) == 1
        assert episode.trajectory is None
        (step,) = episode.record(Outcome.ENV_INFRA).steps
        assert (step.action, step.results) == (Action(tool_calls=(ADD,)), ())

    async def main() -> None:
        loaded = env("dies")
        async with open_episode(loaded, get_sandbox("bwrap"), loaded.suite.tasks[0], seed=0) as episode:
            await work(episode)

    asyncio.run(main())


def test_an_environment_that_lost_its_server_gives_no_reward_until_reset(own_home: None) -> None:
    face = McpEnv(env("dies"))
    try:
        face.reset(seed=0)
        for action in (Action(tool_calls=(ADD,)), Action(text="Done.")):
            with pytest.raises(EnvInfraError, match="the server ended"):
                face.step(action)
        assert face.trajectory is None
        face.reset(seed=0)
    finally:
        face.close()
