"""The baseline of a recipe's policy that learns nothing: the nearest of the warm start's demonstrations.

It reads results as a policy does, on the same held-out tasks. `tiny.py` has the baseline of supervised learning alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from learning import environment
from report_table import Result, options, show

from gymcp.agents.runner.rollout import Job
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.nearest_demonstration import nearest
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.cli.training.train import parse_settings
from gymcp.envs.spec import LoadedEnv
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.protocols import AgentFactory
from gymcp.trainers.recipe.load import load_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curriculum import demonstration_tasks, heldout_tasks
from gymcp.types import Task, Trajectory

TINY = Path(__file__).parents[1] / "recipes" / "tiny.toml"


async def play(env: LoadedEnv, recipe: Recipe, agent: AgentFactory, tasks: Sequence[Task]) -> list[Trajectory]:
    """The scored records of one episode of each task, in the order in which they ended."""
    records: list[Trajectory] = []
    async with open_warm_sandbox(get_sandbox(recipe.rollout.sandbox)) as warm:
        jobs = [Job(task=task, trial=0, seed=0) for task in tasks]
        await run_jobs(env, warm, agent, jobs, Schedule(), lambda done, last: records.append(done.trajectory))
    return [record for record in records if record.outcome.has_score]


def nearest_template(recipe: Recipe) -> Iterator[Result]:
    """Success by split, and by level within it, of the nearest among the demonstrations of the warm start."""
    env = environment(recipe.env)
    shown = asyncio.run(play(env, recipe, SCRIPTED["oracle"], demonstration_tasks(env, recipe)))
    agent = nearest([record for record in shown if record.success])
    rule = recipe.evaluation
    for split in rule.final_splits or rule.splits:
        tasks = heldout_tasks(env, recipe, split, rule.final_tasks or rule.tasks)
        solved = {record.task: bool(record.success) for record in asyncio.run(play(env, recipe, agent, tasks))}
        yield _rate(split, len(shown), solved, tasks)
        for level in sorted({task.tags[1] for task in tasks}):
            yield _rate(f"{split}, {level}", len(shown), solved, [task for task in tasks if task.tags[1] == level])


def _rate(what: str, shown: int, solved: dict[str, bool], tasks: Sequence[Task]) -> Result:
    values = [solved[task.id] for task in tasks if task.id in solved]
    metric = f"nearest of {shown} demonstrations: {what}, {len(values)} tasks"
    return Result(metric=metric, value=float(np.mean(values)), unit="success")


def main() -> None:
    parser = options(__doc__, "16 demonstrations, 8 tasks: that it works")
    parser.add_argument("recipe", type=Path, nargs="?", default=TINY)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of gymcp train")
    asked = parser.parse_args()
    settings = list(parse_settings(asked.set).items())
    if asked.quick:
        settings += [("warm_start.tasks", 16), ("evaluation.tasks", 8), ("evaluation.final_tasks", 8)]
    show("baselines", list(nearest_template(load_recipe(asked.recipe, settings))), as_json=asked.json)


if __name__ == "__main__":
    main()
