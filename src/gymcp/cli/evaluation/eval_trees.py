"""Trees of ``gymcp eval``: branches of episodes, and searches among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gymcp.agents.runner.scheduler import Schedule
from gymcp.agents.runner.search.parse import parse_search
from gymcp.agents.runner.trees.branch_steps import parse_branches
from gymcp.cli.configs import EvalConfig
from gymcp.errors import ConfigError
from gymcp.evaluators.names import UPPER_BOUND_KEY
from gymcp.store import TrajectoryStore
from gymcp.store.rows import EpisodeRow
from gymcp.types import Json

SAW_VERDICTS = "the search saw the verdicts of its episodes"


def plan_schedule(config: EvalConfig) -> Schedule:
    """The limits of the run with its controller or search. Raises ConfigError for one that cannot be read."""
    schedule = Schedule(concurrency=config.concurrency, max_cost=config.max_cost, agent_s=config.model.budget.seconds)
    if config.branch is not None and config.search is not None:
        raise ConfigError("--branch and --search: a search decides itself which episodes branch; give one of them")
    if config.branch is not None:
        controller, tree = parse_branches(config.branch)
        return replace(schedule, controller=controller, tree=tree)
    if config.search is not None:
        search, tree = parse_search(config.search)
        return replace(schedule, search=search, tree=tree)
    return schedule


def describe_trees(config: EvalConfig) -> dict[str, Json]:
    """Entries of the run's config; empty without trees."""
    if config.branch is not None:
        return {"branch": config.branch}
    if config.search is None:
        return {}
    search, _ = parse_search(config.search)
    marks = {UPPER_BOUND_KEY: SAW_VERDICTS} if search.sees_verdicts else {}
    return {"search": config.search, "search_value": search.value, **marks}


def print_trees(folder: Path, search: str | None) -> None:
    """Print the number of branches; of a search, what all its episodes have used for the tasks that it has solved."""
    with TrajectoryStore.open(folder) as store:
        firsts, others = store.summaries(), [row.episode for row in store.branches()]
    if search is not None:
        print(_describe_search(search.partition(",")[0], firsts, others))
        return
    scored = sum(row.score is not None for row in others)
    succeeded = sum(row.success or False for row in others)
    print(f"branches: {len(others)}, {scored} scored, {succeeded} succeeded; the figures above count none of them")


def _describe_search(name: str, firsts: Sequence[EpisodeRow], others: Sequence[EpisodeRow]) -> str:
    used = [row.usage for row in (*firsts, *others)]
    solved = sum(row.success or False for row in firsts)
    seconds = sum(each.wall_s for each in used)
    return (
        f"search {name}: {solved} of {len(firsts)} solved by the chosen episodes, out of {len(used)} played, which took"
        f" {sum(each.tool_calls for each in used):,} tool calls, {sum(each.prompt_tokens for each in used):,} tokens"
        f" read, {sum(each.completion_tokens for each in used):,} written, cost {sum(each.cost for each in used):.4f},"
        f" {seconds:.1f} s of episodes; the figures above count the chosen ones"
    )
