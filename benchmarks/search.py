"""Search at test time against independent tries at as many calls: a policy whose gain is known beforehand, and `tiny`.

The scripted policy presses the keys of a dial, each right with probability 1 - ERROR; a wrong key is like no other. A
dial either says that a key is wrong, or takes it and never opens. Success is compared with its formula, and with that
of as many independent tries as the search's calls pay for, the best of which a verdict picks.

`lookahead` and `dfsdt` are also compared with a `best_of_n` that is played: of the same value, with as many tries as
their measured calls pay for, rounded to a whole number, at least one.

For a trained head the same policy writes its keys in the tokens of `tiny`, on dials that are silent. A wrong key has
more digits, so the tokens tell it from a right one, and a head can learn that from the scores of trees on other dials.
The formulas are those of a head that is never wrong.
"""

from __future__ import annotations

import asyncio
import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from report_table import Result, options, show

from gymcp.agents import ModelOptions, Plan, ReactSettings, Schedule, open_model, parse_policy, react, run_plan
from gymcp.agents.policies.models import Model, TokenModel
from gymcp.agents.runner.run import select_tasks
from gymcp.agents.runner.search.parse import parse_search
from gymcp.agents.runner.trees.branch_steps import BranchSteps
from gymcp.agents.runner.trees.controller import TreeBudget
from gymcp.envs import EnvSpec, load_env, load_spec
from gymcp.envs.spec import LoadedEnv
from gymcp.evaluators.graders import final_state_equals
from gymcp.evaluators.statistics.intervals import wilson
from gymcp.mcp_servers.native.runtime import ToolError
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.protocols import Agent, AgentFactory
from gymcp.store import TrajectoryStore
from gymcp.trainers import StepValues, fit_step_values
from gymcp.types import Action, Decision, GiveUp, GoldTurn, Observation, Sampled, Sampling, Step, Suite, Task, ToolCall

KEYS, ERROR = 4, 0.3
RIGHT = 1 - ERROR
TASKS, TASKS_QUICK = 100, 12
OF_TINY, OF_TINY_QUICK = 40, 4
LEARNT, LEARNT_QUICK = 60, 10
"""Dials from whose scores a head learns."""
LEARNT_BY_TINY, LEARNT_BY_TINY_QUICK = 200, 20
"""Tasks of the back office from whose scores a head learns."""
TREE_EPISODES = 8
WRONG_KEYS = 10**6


class Dial:
    """Opens once its keys have been pressed in their order."""

    def __init__(self, keys: list[int], speaks: bool) -> None:
        self.keys = keys
        self.speaks = speaks
        self.pressed: list[int] = []

    def press(self, key: int) -> str:
        """Press a key."""
        at = len(self.pressed)
        if self.speaks and (at == len(self.keys) or self.keys[at] != key):
            raise ToolError("wrong key")
        self.pressed.append(key)
        return "pressed"


def make_dials(count: int, *, speaks: bool, first: int = 0) -> LoadedEnv:
    """An environment with so many tasks; `speaks`: a wrong key is an error of the tool, and changes nothing."""
    tasks = []
    for number in range(first, first + count):
        keys = random.Random(f"dial {number}").sample(range(10), KEYS)
        calls = tuple(ToolCall(id=f"call_{n}", name="press", arguments={"key": key}) for n, key in enumerate(keys))
        begin = {"keys": keys, "speaks": speaks}
        tasks.append(
            Task(
                id=f"dial_{number}",
                prompts=("Open the dial.",),
                initial_state=begin,
                target={**begin, "pressed": keys},
                gold=(GoldTurn(calls=calls, final_text="It is open."),),
            )
        )
    suite = Suite(name="dials", version="1", tasks=tuple(tasks))
    server = native_server("dial", Dial, start="fork")
    return load_env(EnvSpec(name="dials", servers=(server,), suite=suite, grade=final_state_equals()))


class Presser:
    """Presses each key in its turn, whatever it is told; right with probability `RIGHT`."""

    def __init__(self, task: Task, seed: int) -> None:
        self._keys = [call.arguments["key"] for call in task.gold[0].calls if not isinstance(call.arguments, str)]
        self._random = random.Random(seed)
        self._number = 0

    def resume(self, steps: Sequence[Step]) -> None:
        self._number = len(steps)

    async def act(self, observation: Observation) -> Action:
        if self._number == len(self._keys):
            return Action(text="It is open.")
        right = self._random.random() < RIGHT
        key = self._keys[self._number] if right else 10 + self._random.randrange(WRONG_KEYS)
        self._number += 1
        return Action(tool_calls=(ToolCall(id=f"call_{self._number}", name="press", arguments={"key": key}),))


class KeyWriter:
    """Policy in the place of a model's that writes the presser's next key, or in the end a text, in its tokens."""

    def __init__(self, model: TokenModel, task: Task) -> None:
        self._renderer = model.renderer
        self._keys = [call.arguments["key"] for call in task.gold[0].calls if not isinstance(call.arguments, str)]
        self.number = 0
        """Answers so far."""

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        rng = random.Random(sampling.seed)
        text = "It is open."
        if self.number < len(self._keys):
            right = rng.random() < RIGHT
            key = self._keys[self.number] if right else 10 + rng.randrange(WRONG_KEYS)
            text = f"<|c|>press<|v|>{key}"
        ids = (*self._renderer.tokenizer.encode(text), min(self._renderer.end_ids))
        return Sampled(
            prompt_ids=tuple(prompt_ids), ids=ids, logprobs=(0.0,) * len(ids), versions=(("0", 0, len(ids)),)
        )


class WritingPresser:
    """The agent of a `KeyWriter`."""

    def __init__(self, model: TokenModel, task: Task, seed: int) -> None:
        self._writer = KeyWriter(model, task)
        self._agent: Agent = react(replace(model, policy=self._writer), ReactSettings())(task, seed)

    def resume(self, steps: Sequence[Step]) -> None:
        self._agent.resume(steps)  # type: ignore[attr-defined]
        self._writer.number = len(steps)

    async def act(self, observation: Observation) -> Action | Decision | GiveUp:
        decision = await self._agent.act(observation)
        self._writer.number += 1
        return decision


def best_by_verdict(tries: float) -> float:
    """Success of the best of so many independent tries."""
    return 1 - math.pow(1 - RIGHT**KEYS, tries)


def best_by_agreement(tries: int) -> float:
    """Success of the most frequent end, if no two wrong ends are alike: two right ones, or one that comes first."""
    one = RIGHT**KEYS
    none, single = (1 - one) ** tries, tries * one * (1 - one) ** (tries - 1)
    return 1 - none - single + single / tries


def depth_first(width: int, left: int = KEYS) -> tuple[float, float]:
    """(success, calls) of `dfsdt` with so many keys left, on a dial that speaks.

    A way from a point succeeds if its key is right and the rest succeeds; ways are tried until one does.
    """
    if left == 0:
        return 1.0, 0.0
    below, calls = depth_first(width, left - 1)
    way = RIGHT * below
    tries = sum((1 - way) ** number for number in range(width))
    return 1 - (1 - way) ** width, tries * (1 + RIGHT * calls)


def look_ahead(width: int, left: int = KEYS, fresh: int | None = None) -> float:
    """Success of `lookahead` to the end with verdicts: one of the candidates opens the dial, or the first goes on.

    The first one has failed, so its next key is right with a smaller probability; it is one of the next candidates.
    """
    if left == 0:
        return 0.0
    whole: float = RIGHT**left
    missed = (1 - whole) ** (width if fresh is None else fresh)
    still_right = (RIGHT - whole) / (1 - whole)
    return 1 - missed + missed * still_right * look_ahead(width, left - 1, width - 1)


def beam_by_steps(ways: int) -> float:
    """Success of a beam of one path whose head sees each wrong key: a right one is among the ways at every step."""
    whole: float = (1 - ERROR**ways) ** KEYS
    return whole


def learn_head(env: LoadedEnv, agents: AgentFactory, runner: asyncio.Runner, tree: TreeBudget) -> StepValues:
    """A head over `tiny`, from a tree of each task; a tree of one episode is a try."""
    controller = BranchSteps(depth=KEYS)
    schedule = Schedule(concurrency=4, controller=controller, tree=tree) if tree.episodes > 1 else Schedule()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with TrajectoryStore.open(folder, write=True) as store:
            run_plan(env, get_sandbox("bwrap"), Plan(agent="mine"), store, schedule, make_agent=agents, runner=runner)
        return fit_step_values(folder, "tiny")


def play(
    env: LoadedEnv,
    text: str | None,
    agents: AgentFactory,
    runner: asyncio.Runner,
    limit: int,
    head: StepValues | None = None,
) -> tuple[int, ...]:
    """(solved, tasks, calls, completion tokens, milliseconds of episodes) of a search; None: one try at each task."""
    search, tree = parse_search(text) if text is not None else (None, TreeBudget())
    if search is not None and head is not None:
        search = replace(search, rater=head)
    schedule = Schedule(concurrency=4, search=search, tree=tree)
    with tempfile.TemporaryDirectory() as folder, TrajectoryStore.open(Path(folder), write=True) as store:
        plan = Plan(agent="mine", limit=limit)
        run_plan(env, get_sandbox("bwrap"), plan, store, schedule, make_agent=agents, runner=runner)
        rows = store.summaries()
    return (
        sum(row.success or False for row in rows),
        len(rows),
        sum(row.usage.tool_calls for row in rows),
        sum(row.usage.completion_tokens for row in rows),
        round(1000 * sum(row.usage.wall_s for row in rows)),
    )


def report_success(name: str, solved: int, tasks: int, baseline: str, expected: float) -> Result:
    """The share of solved tasks, with its interval in the name, beside the expected one."""
    bounds = wilson(solved, tasks)
    ends = f" ({100 * bounds.low:.0f} to {100 * bounds.high:.0f})" if bounds is not None else ""
    share = solved / tasks
    ratio = share / expected if expected else None
    return Result(
        metric=f"{name}: solved{ends}",
        value=100 * share,
        unit="%",
        baseline=f"{baseline} {100 * expected:.1f}",
        baseline_value=100 * expected,
        ratio=ratio,
    )


def name_rival(text: str, calls: float, calls_of_a_try: float) -> str:
    """The `best_of_n` by the value of the search `text`, with as many tries as these calls pay for, rounded."""
    tries = max(1, round(calls / calls_of_a_try))
    return f"best_of_n,width={tries},value={parse_search(text)[0].value}"


def measure_presser(runner: asyncio.Runner, tasks: int) -> list[Result]:
    """The scripted policy: every search with the formula of its success, and with tries at as many calls."""
    silent, speaking = make_dials(tasks, speaks=False), make_dials(tasks, speaks=True)
    work = [
        (silent, None, RIGHT**KEYS),
        (silent, "best_of_n,width=8,value=agreement", best_by_agreement(8)),
        (silent, "best_of_n,width=8,value=verdict", best_by_verdict(8)),
        (silent, "lookahead,width=3,value=verdict", look_ahead(3)),
        (speaking, "dfsdt,width=2", depth_first(2)[0]),
        (speaking, "dfsdt,width=3", depth_first(3)[0]),
    ]
    results = []
    for env, text, expected in work:
        solved, count, calls, _, ms = play(env, text, Presser, runner, 0)
        name = text or "one try"
        tries = calls / count / KEYS
        results += [
            report_success(name, solved, count, "formula", expected),
            report_success(name, solved, count, f"best of {tries:.2f} tries", best_by_verdict(tries)),
            Result(metric=f"{name}: calls for a task", value=calls / count, unit=""),
            Result(metric=f"{name}: time of a task's episodes", value=ms / count, unit="ms"),
        ]
        if text is not None and text.startswith("dfsdt"):
            foreseen = depth_first(parse_search(text)[0].width)[1]
            results.append(Result(metric=f"{name}: calls by its formula", value=foreseen, unit=""))
        if text is not None and not text.startswith("best_of_n"):
            rival = name_rival(text, calls / count, KEYS)
            won, count, rival_calls, _, _ = play(env, rival, Presser, runner, 0)
            beside = f"{rival} at the calls of {name}"
            # without a failed call all keys are right, so `clean` picks as a verdict does
            formula = best_by_verdict(parse_search(rival)[0].width)
            results += [
                report_success(beside, won, count, "formula", formula),
                report_success(name, solved, count, rival, won / count),
                Result(metric=f"{beside}: calls for a task", value=rival_calls / count, unit=""),
            ]
    return results


def measure_head(runner: asyncio.Runner, model: Model, tasks: int, learnt: int) -> list[Result]:
    """The scripted policy in tokens, with a head that learnt from other dials: each search with the formula of a head
    that sees every wrong key, and with tries at as many calls."""
    assert isinstance(model, TokenModel)
    writing = model

    def make(task: Task, seed: int) -> Agent:
        return WritingPresser(writing, task, seed)

    others = make_dials(learnt, speaks=False, first=tasks)
    head = learn_head(others, make, runner, TreeBudget(episodes=TREE_EPISODES))
    env = make_dials(tasks, speaks=False)
    results = [Result(metric=f"head of {learnt} dials: explains", value=100 * head.explained, unit="%")]
    for text, expected in (
        ("beam,width=1,ways=2,value=q", beam_by_steps(2)),
        ("beam,width=1,ways=3,value=q", beam_by_steps(3)),
        ("best_of_n,width=4,value=q", best_by_verdict(4)),
        ("best_of_n,width=4,value=agreement", best_by_agreement(4)),
    ):
        solved, count, calls, _, ms = play(env, text, make, runner, 0, head if "value=q" in text else None)
        tries = calls / count / KEYS
        results += [
            report_success(text, solved, count, "formula", expected),
            report_success(text, solved, count, f"best of {tries:.2f} tries", best_by_verdict(tries)),
            Result(metric=f"{text}: calls for a task", value=calls / count, unit=""),
            Result(metric=f"{text}: time of a task's episodes", value=ms / count, unit="ms"),
        ]
    return results


def measure_tiny(runner: asyncio.Runner, model: Model, tasks: int, learnt: int) -> list[Result]:
    """The shipped policy on the back office: what each search solves, and what it takes. A head learns from one try at
    each of some other tasks."""
    env = load_env(load_spec("backoffice"))
    agents = react(model, ReactSettings(sampling=Sampling(temperature=1.0)))
    searched = {task.id for task in select_tasks(env.suite, Plan(agent="react", limit=tasks))}
    others = [task for task in env.suite.tasks if task.id not in searched]
    learning = replace(env, suite=replace(env.suite, tasks=tuple(others[:: max(1, len(others) // learnt)][:learnt])))
    head = learn_head(learning, agents, runner, TreeBudget(episodes=1))
    results = [Result(metric=f"tiny, head of {learnt} tasks: explains", value=100 * head.explained, unit="%")]

    def measure(text: str | None, beside: str = "") -> float:
        """Calls for a task of the search; None: of one try."""
        has_head = text is not None and text.endswith("value=q")
        solved, count, calls, tokens, ms = play(env, text, agents, runner, tasks, head if has_head else None)
        name = f"tiny, {text or 'one try'}{beside}"
        bounds = wilson(solved, count)
        ends = f" ({100 * bounds.low:.0f} to {100 * bounds.high:.0f})" if bounds is not None else ""
        results.extend(
            [
                Result(metric=f"{name}: solved{ends}", value=100 * solved / count, unit="%"),
                Result(metric=f"{name}: calls for a task", value=calls / count, unit=""),
                Result(metric=f"{name}: tokens for a task", value=tokens / count, unit=""),
                Result(metric=f"{name}: time of a task's episodes", value=ms / count, unit="ms"),
            ]
        )
        return calls / count

    calls_of_a_try = measure(None)
    for text in ("best_of_n,width=3", "best_of_n,width=3,value=verdict", "best_of_n,width=3,value=q"):
        measure(text)
    for text in ("dfsdt", "lookahead,width=2"):
        measure(name_rival(text, measure(text), calls_of_a_try), f" at the calls of {text}")
    return results


def main() -> None:
    parser = options(__doc__, f"{TASKS_QUICK} dials and {OF_TINY_QUICK} tasks of the back office")
    parser.add_argument("--only", choices=("scripted", "head", "tiny"), help="one of the three parts")
    args = parser.parse_args()
    results = []
    dials = TASKS_QUICK if args.quick else TASKS
    with asyncio.Runner() as runner:
        if args.only in (None, "scripted"):
            results += measure_presser(runner, dials)
        if args.only != "scripted":
            opened = open_model(parse_policy("tiny"), ModelOptions())
            model = runner.run(opened.__aenter__())
            try:
                if args.only != "tiny":
                    results += measure_head(runner, model, dials, LEARNT_QUICK if args.quick else LEARNT)
                if args.only != "head":
                    sizes = (OF_TINY_QUICK, LEARNT_BY_TINY_QUICK) if args.quick else (OF_TINY, LEARNT_BY_TINY)
                    results += measure_tiny(runner, model, *sizes)
            finally:
                runner.run(opened.__aexit__(None, None, None))
    show("search", results, as_json=args.json, title="Search at test time")


if __name__ == "__main__":
    main()
