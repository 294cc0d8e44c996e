"""Trees on the toy: for each task two first episodes of three steps, the first with branches after steps 1 and 2."""

from __future__ import annotations

import torch
from toy import GROUPS, TOKENS, draw_tokens, make_step
from transformers import PreTrainedModel

from gymcp.outcome import Outcome
from gymcp.types import Step, Trajectory

STEPS = 3
SHARED = {"first": 0, "after 1": 1, "after 2": 2, "second": 0}
"""Episodes of each task, and the number of steps that each shares with ``first``."""


def grow_trees(model: PreTrainedModel, seed: int) -> tuple[list[Trajectory], dict[str, tuple[str, int]]]:
    """Records in the order in which they branched, and `Rollouts.forks`. An episode with an odd last answer fails."""
    draw = torch.Generator().manual_seed(seed)
    records, forks = list[Trajectory](), dict[str, tuple[str, int]]()
    for task in range(GROUPS):
        first: list[Step] = []
        for name, shared in SHARED.items():
            steps = _play(model, task, first[:shared], draw)
            first = first or steps
            id = f"{task} {name}"
            if shared:
                forks[id] = (f"{task} first", shared)
            records.append(
                Trajectory(
                    id=id,
                    env="toy",
                    task=str(task),
                    group=f"toy/{task}",
                    trial=int(name == "second"),
                    steps=tuple(steps),
                    score=float(_is_even(steps[-1])),
                    outcome=Outcome.SCORED,
                )
            )
    return records, forks


def _play(model: PreTrainedModel, task: int, shared: list[Step], draw: torch.Generator) -> list[Step]:
    context, steps = [10 + task, 20, 21, 22], list(shared)
    if shared and shared[-1].sampled is not None:
        context = [*shared[-1].sampled.prompt_ids, *shared[-1].sampled.ids, 5, 30 + len(shared), 7]
    for at in range(len(shared), STEPS):
        prompt, drawn = tuple(context), []
        for _ in range(TOKENS):
            ((_, token, logprob),) = draw_tokens(model, [0], [context], draw)
            context.append(token)
            drawn.append((token, logprob))
        steps.append(make_step(prompt, drawn, at, task, at, is_right=drawn[0][0] % 2 == 0))
        context += [5, 31 + at, 7]
    return steps


def _is_even(step: Step) -> bool:
    return step.sampled is not None and step.sampled.ids[0] % 2 == 0
