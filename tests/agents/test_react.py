"""The ReAct agent in real episodes: over tiny random models, prepared samples, and chat endpoints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_server import Answer, Reply, chat_server, says
from generate_policy import load
from spelled_policy import PAY, Spelled

from gymcp.agents.policies.chat_adapter import as_chat
from gymcp.agents.policies.models import MIN_ANSWER_TOKENS, ChatModel, Model, TokenModel
from gymcp.agents.policies.openai.client import Endpoint, Retries, open_endpoint
from gymcp.agents.policies.prices import Price
from gymcp.agents.policies.tiny_model import STYLES, Style, TinySize, make_tiny_model
from gymcp.agents.prompts.context import DROPPED
from gymcp.agents.runner.rollout import Job, rollout
from gymcp.agents.strategies.budgets import Budget
from gymcp.agents.strategies.react import REFILL_SHARE, ReactSettings, react
from gymcp.agents.strategies.scripted import Replay
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.envs.wrappers.simulated_user import simulate_user
from gymcp.errors import ConfigError
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import UserView
from gymcp.store import TrajectoryStore
from gymcp.types import Action, EpisodeLimits, Sampled, Sampling, Suite, Trajectory

BANK = load_env(load_spec(str(Path(__file__).parents[2] / "examples" / "bank.py")))
TASK = BANK.suite.tasks[0]


def play(model: Model, settings: ReactSettings, env: LoadedEnv = BANK, seed: int = 1) -> Trajectory:
    job = Job(task=env.suite.tasks[0], trial=0, seed=seed)
    return asyncio.run(rollout(env, get_sandbox("bwrap"), react(model, settings), job, timeout_s=120)).trajectory


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Style], Path]:
    @cache
    def make(style: Style) -> Path:
        return make_tiny_model(tmp_path_factory.mktemp(style), style, size=TinySize(hidden=64, layers=2))

    return make


def speaking(folder: Path, *texts: str) -> tuple[TokenModel, Spelled]:
    model = load(folder)
    policy = Spelled(model, texts)
    return replace(model, policy=policy), policy


@pytest.mark.parametrize("style", STYLES)
def test_a_model_that_solves_the_task_gets_the_score(style: Style, folders: Callable[[Style], Path]) -> None:
    model, _ = speaking(folders(style), PAY[style], "Bob has his money.")
    found = play(replace(model, price=Price(prompt=1, completion=1000)), ReactSettings())
    assert (found.outcome, found.score, found.reason) == (Outcome.SCORED, 1.0, found.reason)
    first, second = found.steps
    assert first.sampled is not None
    assert second.sampled is not None
    context = first.sampled.prompt_ids + first.sampled.ids
    assert second.sampled.prompt_ids[: len(context)] == context
    drawn = len(first.sampled.ids) + len(second.sampled.ids)
    read = len(first.sampled.prompt_ids) + len(second.sampled.prompt_ids)
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (read, drawn)
    assert found.usage.cost == pytest.approx((read + 1000 * drawn) / 1e6)
    assert found.usage.models["tiny"]["requests"] == 2
    assert {name: use["calls"] for name, use in found.usage.tools.items()} == {"transfer": 1}


@pytest.mark.parametrize("style", STYLES)
def test_the_samples_of_a_random_model_are_recorded_exactly(
    style: Style, folders: Callable[[Style], Path], tmp_path: Path
) -> None:
    """Each prompt begins with the tokens of the turn before, and a plain forward pass gives the same logprobs."""
    model = load(folders(style))
    settings = ReactSettings(sampling=Sampling(max_tokens=8), budget=Budget(turns=4))
    env = replace(BANK, spec=replace(BANK.spec, user=lambda task: Talker()))
    found = play(model, settings, env)
    assert found.outcome is Outcome.BUDGET_EXHAUSTED
    assert found.score is not None
    assert "4 answers" in found.reason
    assert len(found.steps) == 4
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(found, {})
        assert store.load(found.id) == found
    context: tuple[int, ...] = ()
    for step in found.steps:
        assert step.sampled is not None
        assert step.sampled.prompt_ids[: len(context)] == context
        context = step.sampled.prompt_ids + step.sampled.ids
        whole: Any = model.policy
        with torch.no_grad():
            logits = whole.model(torch.tensor([context])).logits[0].float().log_softmax(-1)
        start = len(step.sampled.prompt_ids)
        plain = [float(logits[start + n - 1, id]) for n, id in enumerate(step.sampled.ids)]
        assert step.sampled.logprobs == pytest.approx(plain, abs=1e-4)


class Talker:
    """A user who always has another question."""

    async def reply(self, view: UserView) -> Action:
        return Action(text="And then?")


def make_simulated_bank(model: TokenModel) -> LoadedEnv:
    """The bank in which only the user can transfer money, and a model plays the user."""
    bank = simulate_user(BANK, as_chat(model), Sampling(max_tokens=6))
    return replace(bank, spec=replace(bank.spec, user_tools=frozenset({"transfer"})))


@pytest.mark.parametrize("style", STYLES)
def test_a_model_plays_the_user_and_calls_tools_that_the_agent_does_not_have(
    style: Style, folders: Callable[[Style], Path]
) -> None:
    model, _ = speaking(folders(style), "I owe Bob five.", PAY[style], "Bob has his money.", "###STOP###")
    env = make_simulated_bank(replace(model, price=Price(prompt=1)))
    agent = Replay(iter([Action(text="Then transfer them."), Action(text="Good.")]))
    job = Job(task=TASK, trial=0, seed=1)
    found = asyncio.run(rollout(env, get_sandbox("bwrap"), lambda task, seed: agent, job, timeout_s=120)).trajectory
    assert (found.outcome, found.score, len(found.steps)) == (Outcome.SCORED, 1.0, 2)
    (act,) = found.steps[0].user_acts
    assert [(made.id, made.name) for made in act.calls] == [("user_1", "transfer")]
    assert [m.content for m in found.steps[1].observation.messages] == ["Bob has his money."]
    assert found.usage.user_cost > 0
    assert found.usage.models == {}


def test_two_random_models_talk_to_each_other(folders: Callable[[Style], Path]) -> None:
    model = load(folders("compact"))
    found = play(
        model, ReactSettings(sampling=Sampling(max_tokens=8), budget=Budget(turns=3)), make_simulated_bank(model)
    )
    assert found.outcome is Outcome.BUDGET_EXHAUSTED
    assert found.score is not None
    assert len(found.steps) == 3


def test_the_agent_reads_the_handbook_under_the_system_prompt(folders: Callable[[Style], Path]) -> None:
    model, _ = speaking(folders("qwen"), "Done.")
    task = replace(TASK, handbook="Pay only what is owed.")
    env = replace(BANK, suite=replace(BANK.suite, tasks=(task,)))
    (step,) = play(model, ReactSettings(system="Be kind."), env).steps
    assert [message.role for message in step.observation.messages] == ["system", "user"]
    assert step.sampled is not None
    prompt = model.renderer.tokenizer.decode(step.sampled.prompt_ids)
    assert prompt.count("Be kind.\n\nPay only what is owed.") == 1


def test_the_same_seed_gives_the_same_samples(folders: Callable[[Style], Path]) -> None:
    model = load(folders("compact"))
    settings = ReactSettings(sampling=Sampling(max_tokens=6), budget=Budget(turns=1))
    one, two, other = (play(model, settings, seed=seed).steps[0].sampled for seed in (7, 7, 8))
    assert one == two
    assert one != other


@pytest.mark.parametrize(
    ("budget", "why"),
    [
        (Budget(turns=1), "1 answers"),
        (Budget(tokens=10), "10 tokens"),
        (Budget(cost=0.001), "0.001 of money"),
    ],
)
def test_an_exhausted_budget_ends_the_episode_which_is_graded(
    budget: Budget, why: str, folders: Callable[[Style], Path]
) -> None:
    model, _ = speaking(folders("compact"), PAY["compact"], "Bob has his money.")
    found = play(replace(model, price=Price(completion=1000)), ReactSettings(budget=budget))
    assert (found.outcome, found.score) == (Outcome.BUDGET_EXHAUSTED, 1.0)
    assert f"out of budget ({why}" in found.reason


class Silent:
    """A policy that never answers."""

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        await asyncio.Event().wait()
        raise AssertionError


def test_an_exhausted_time_budget_ends_an_answer_under_way(folders: Callable[[Style], Path]) -> None:
    model = replace(load(folders("compact")), policy=Silent())
    found = play(model, ReactSettings(budget=Budget(seconds=0.05)))
    assert (found.outcome, found.score, found.steps) == (Outcome.BUDGET_EXHAUSTED, 0.0, ())
    assert "out of budget (0.05 s of the agent's time)" in found.reason


def test_an_answer_is_not_longer_than_the_token_budget(folders: Callable[[Style], Path]) -> None:
    model, policy = speaking(folders("compact"), PAY["compact"], "Done.")
    play(model, ReactSettings(sampling=Sampling(max_tokens=30), budget=Budget(tokens=20)))
    first, second = policy.sampling
    assert first.max_tokens == 20
    assert second.max_tokens < 20
    assert first.seed != second.seed


def test_a_model_that_is_never_usable_is_an_agent_error(folders: Callable[[Style], Path]) -> None:
    model, _ = speaking(folders("qwen"), "", "<think>hm", "<tool_call>pay!</tool_call>", "Done.")
    found = play(model, ReactSettings())
    assert (found.outcome, found.score) == (Outcome.AGENT_ERROR, 0.0)
    assert "nothing usable in 3 answers one after another" in found.reason
    assert [step.valid for step in found.steps] == [False] * 3
    assert ["no tool call" in step.results[0].content for step in found.steps] == [True] * 3


def test_a_model_that_recovers_is_graded(folders: Callable[[Style], Path]) -> None:
    model, _ = speaking(folders("compact"), "", "<|c|>", PAY["compact"], "Done.")
    found = play(model, ReactSettings())
    assert (found.outcome, found.score) == (Outcome.SCORED, 1.0)
    assert [step.valid for step in found.steps] == [False, False, True, True]


def small(tmp_path: Path, context: int) -> Path:
    return make_tiny_model(tmp_path / "small", "compact", size=TinySize(context=context))


LOOK = "<|c|>balance<|v|>ann"


def test_a_full_context_ends_the_episode(tmp_path: Path) -> None:
    model, _ = speaking(small(tmp_path, 128), PAY["compact"], *[LOOK] * 20)
    found = play(model, ReactSettings(sampling=Sampling(max_tokens=16)))
    assert (found.outcome, found.score) == (Outcome.BUDGET_EXHAUSTED, 1.0)
    assert "out of budget (context: " in found.reason
    assert "no room for an answer among 128" in found.reason


class Library:
    """A server whose results together exceed a small context."""

    def __init__(self, read: int) -> None:
        self.read = read

    def page(self) -> str:
        """The next page."""
        self.read += 1
        return f"page {self.read}: " + "word " * 50


def library(pages: int) -> LoadedEnv:
    task = replace(TASK, initial_state={"read": 0}, target={"read": pages}, last_necessary=None, gold=())
    suite = Suite(name="library", version="1", tasks=(task,))
    server = native_server("library", Library)
    return load_env(EnvSpec(name="library", servers=(server,), suite=suite, grade=final_state_equals()))


def test_a_full_context_can_drop_old_results(tmp_path: Path) -> None:
    model, _ = speaking(small(tmp_path, 1024), *["<|c|>page"] * 16, "Done.")
    found = play(model, ReactSettings(overflow="drop", sampling=Sampling(max_tokens=32)), library(16))
    assert (found.outcome, found.score) == (Outcome.SCORED, 1.0)
    prompts = [step.sampled for step in found.steps if step.sampled]
    texts = [model.renderer.decode(prompt.prompt_ids) for prompt in prompts]
    seen = [[page for page in range(1, 17) if f"page {page}:" in text] for text in texts]
    dropped = [text.count(DROPPED) for text in texts]
    assert seen == [list(range(gone + 1, answers + 1)) for answers, gone in enumerate(dropped)], "the oldest went first"
    assert all(seen[1:]), "the newest is always there"
    assert found.reason.endswith(f"{dropped[-1]} old tool results were dropped")
    grows = [b.prompt_ids[: len(a.prompt_ids + a.ids)] == a.prompt_ids + a.ids for a, b in pairwise(prompts)]
    assert grows == [before == after for before, after in pairwise(dropped)], "it only grows where nothing is dropped"
    assert 1 <= grows.count(False) < len(grows) / 2, "several are dropped at a time"
    for grew, prompt in zip(grows, prompts[1:], strict=True):
        assert len(prompt.prompt_ids) <= (1024 - MIN_ANSWER_TOKENS) * (1 if grew else REFILL_SHARE)
    assert all(prompt.prompt_ids[: len(first)] == first for first in [prompts[0].prompt_ids] for prompt in prompts)


def test_a_budget_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="budget of tokens: must be more than 0, not 0"):
        Budget(tokens=0)


def play_chat(
    answer: Answer, settings: ReactSettings, env: LoadedEnv = BANK
) -> tuple[Trajectory, list[dict[str, Any]]]:
    async def main(url: str) -> Trajectory:
        to = Endpoint(
            url=url, model="m", price=Price(prompt=1, completion=2), retries=Retries(attempts=2, first_pause_s=0.01)
        )
        async with open_endpoint(to) as policy:
            make = react(ChatModel(name="m", policy=policy), settings)
            return (
                await rollout(env, get_sandbox("bwrap"), make, Job(task=TASK, trial=0, seed=1), timeout_s=60)
            ).trajectory

    with chat_server(answer) as server:
        return asyncio.run(main(server.url)), server.requests


PAY_CALL = ("transfer", json.dumps({"source": "ann", "target": "bob", "amount": 5}))


def test_an_endpoint_plays_with_native_calls() -> None:
    replies = [says("", PAY_CALL, ("balance", '{"owner": "bob"}')), says("Bob has his money.")]
    found, requests = play_chat(lambda number, body: replies[number], ReactSettings(system="Be brief."))
    assert (found.outcome, found.score) == (Outcome.SCORED, 1.0)
    assert found.usage.models == {"m": {"requests": 2, "prompt_tokens": 20, "completion_tokens": 10, "cost": 4e-05}}
    assert {name: use["calls"] for name, use in found.usage.tools.items()} == {"transfer": 1, "balance": 1}
    roles = [message["role"] for message in requests[1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool"]
    assert {call["function"]["name"] for call in requests[0]["tools"]} == {"balance", "transfer"}
    assert all(step.sampled is None for step in found.steps)


def test_an_endpoint_that_fails_gives_no_score() -> None:
    replies = [says("", PAY_CALL), Reply(status=500)]
    found, _ = play_chat(lambda number, body: replies[min(number, 1)], ReactSettings())
    assert (found.outcome, found.score) == (Outcome.POLICY_INFRA, None)
    assert "no answer in 2 attempts" in found.reason
    assert found.usage.completion_tokens == 5


def test_a_full_context_of_an_endpoint_drops_old_results_or_stops() -> None:
    def answer(number: int, body: dict[str, Any]) -> Reply:
        if len(json.dumps(body["messages"])) > 2600:
            return Reply(status=400, body=b"This model's maximum context length is 500 tokens")
        return says("", PAY_CALL if number == 0 else ("balance", json.dumps({"owner": "n" * 300})))

    env = replace(BANK, spec=replace(BANK.spec, limits=EpisodeLimits(steps=5)))
    stopped, _ = play_chat(answer, ReactSettings(), env)
    assert (stopped.outcome, stopped.score) == (Outcome.BUDGET_EXHAUSTED, 1.0)
    assert "out of budget (context: This model's maximum" in stopped.reason
    dropped, requests = play_chat(answer, ReactSettings(overflow="drop"), env)
    assert (dropped.outcome, dropped.score) == (Outcome.BUDGET_EXHAUSTED, 1.0)
    assert "5 steps" in dropped.reason
    assert "old tool results were dropped" in dropped.reason
    assert DROPPED in json.dumps(requests[-1])
