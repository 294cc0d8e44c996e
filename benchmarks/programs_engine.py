"""Agent programs of all kits over the embedded engine: every answer that it draws is recorded, token by token.

The policy is `tiny`, which the package brings, on tasks of `backoffice`. It was trained for agent `react`: instructions
of a kit's own are left out of its prompts. Exit code 1 if tokens are not recorded as they were drawn, an episode was
lost, or anything is left.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from leftovers import count_resources, how_many_more
from program_kits import Kit, choose_kits, play_all
from report_table import Result, options, show

from gymcp.agents.policies.models import TokenModel
from gymcp.agents.policies.specs import TRAINED, ModelOptions, open_model, parse_policy
from gymcp.agents.strategies.budgets import Budget
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.envs.suites.backoffice import make_tasks
from gymcp.outcome import Outcome
from gymcp.protocols import Policy
from gymcp.types import Sampled, Sampling, Task, Trajectory

ENV, LEVEL = "backoffice", 2
CONTEXT = 8_192
"""Tokens that the policy may read: an episode in which a kit asks again and again has more than the 1,024 that it was
trained with."""
_SYSTEM = "{{- '<|s|>' + message.content }}"
"""Part of its chat template that writes a system message."""
SAMPLING = Sampling(max_tokens=32, temperature=0.8)
BUDGET = Budget(turns=12)
AT_ONCE = 4


class Noting:
    """A policy that notes what another one draws."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.drawn: list[Sampled] = []

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        sampled = await self._policy.sample(prompt_ids, sampling)
        self.drawn.append(sampled)
        return sampled


def main() -> None:
    parser = options(__doc__, "one task, and kits of Python only")
    parser.add_argument("--kits", default="", help="names of kits, with commas; default: all but Claude Code and Codex")
    args = parser.parse_args()
    env = load_env(load_spec(ENV))
    tasks = list(make_tasks("seeds", levels=[LEVEL], count=1))[: 1 if args.quick else None]
    chosen = choose_kits(args.kits)
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        adapt_model(TRAINED, Path(folder) / "tiny")
        for kit in chosen:
            if not (args.quick and kit.is_node):
                results += measure_kit(env, kit, tasks, Path(folder) / "tiny")
    show("programs_engine", results, as_json=args.json)
    lost = [result for result in results if result.metric.endswith(("lost", "left", "otherwise")) and result.value]
    sys.exit(bool(lost))


def adapt_model(model: Path, target: Path) -> None:
    """Copy the model's folder; the copy may read `CONTEXT` tokens, and its prompts have no system message."""
    shutil.copytree(model, target)
    template = target / "chat_template.jinja"
    template.write_text(template.read_text().replace(_SYSTEM, ""))
    config = target / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": CONTEXT}))


def measure_kit(env: LoadedEnv, kit: Kit, tasks: Sequence[Task], model: Path) -> list[Result]:
    """Ends of the episodes of the kit's program, and the share of what the model drew that is in their records."""
    print(f"programs_engine: {kit.name}", file=sys.stderr, flush=True)
    program = replace(kit.install(), sampling=SAMPLING, budget=BUDGET)

    async def run() -> tuple[list[Trajectory], list[Sampled], dict[str, int]]:
        async with open_model(parse_policy(f"local:{model}"), ModelOptions(slots=AT_ONCE, device="cpu")) as opened:
            assert isinstance(opened, TokenModel)
            await play_all(env, program, tasks[:1], opened, concurrency=1)  # makes what is made once
            before, noting = count_resources(), Noting(opened.policy)
            ended = await play_all(env, program, tasks, replace(opened, policy=noting), concurrency=AT_ONCE)
            return ended, noting.drawn, how_many_more(before, count_resources())

    ended, drawn, left = asyncio.run(run())
    for episode in ended:
        if episode.outcome is not Outcome.SCORED:
            print(f"programs_engine: {kit.name}: {episode.task}: {episode.outcome}: {episode.reason}", file=sys.stderr)
    steps = [step for episode in ended for step in episode.steps]
    with_tokens = sum(step.sampled is not None for step in steps)
    outcomes = Counter(episode.outcome for episode in ended)
    return [
        Result(metric=f"{kit.name}: steps with sampled tokens", value=with_tokens, unit=f"of {len(steps)}"),
        Result(metric=f"{kit.name}: answers of the engine", value=len(drawn), unit="answers"),
        Result(metric=f"{kit.name}: recorded otherwise", value=count_differences(drawn, ended), unit="answers"),
        *(
            Result(metric=f"{kit.name}: ended as {name}", value=outcomes[name], unit=f"of {len(tasks)}")
            for name in outcomes
        ),
        Result(metric=f"{kit.name}: lost", value=sum(not name.has_score for name in outcomes), unit="episodes"),
        Result(metric=f"{kit.name}: left", value=sum(left.values()), unit="things"),
    ]


def count_differences(drawn: Sequence[Sampled], ended: Sequence[Trajectory]) -> int:
    """Number of answers that are recorded not at all, otherwise than drawn, twice, or without a version."""
    recorded = [step.sampled for episode in ended for step in episode.steps if step.sampled is not None]
    recorded += [answer.sampled for episode in ended for answer in episode.side_answers if answer.sampled is not None]
    wanted, found = Counter(drawn), Counter(recorded)
    broken = [sampled for sampled in recorded if not is_whole(sampled)]
    return ((wanted - found) + (found - wanted)).total() + len(broken)


def is_whole(sampled: Sampled) -> bool:
    """True if every token drawn has its log-probability and the version of the weights."""
    versioned = [place for _, start, end in sampled.versions for place in range(start, end)]
    return len(sampled.logprobs) == len(sampled.ids) > 0 and versioned == list(range(len(sampled.ids)))


if __name__ == "__main__":
    main()
