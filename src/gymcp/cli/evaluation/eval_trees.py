"""Trees of ``gymcp eval``: branches of episodes, and searches among them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gymcp.agents.runner.scheduler import Schedule
from gymcp.agents.runner.search.parse import parse_search
from gymcp.agents.runner.trees.branch_steps import parse_branches
from gymcp.cli.configs import EvalConfig
from gymcp.errors import ConfigError
from gymcp.evaluators.names import UPPER_BOUND_KEY
from gymcp.store import TrajectoryStore
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
    """Print the number of branches; of a search, how many episodes stand behind the figures."""
    with TrajectoryStore.open(folder) as store:
        firsts, others = store.summaries(), [row.episode for row in store.branches()]
    if search is not None:
        solved = sum(row.success or False for row in firsts)
        seconds = sum(row.usage.wall_s for row in firsts)
        print(
            f"search {search.partition(',')[0]}: {solved} of {len(firsts)} solved by the episode that was chosen, in"
            f" {len(firsts) + len(others)} episodes of {seconds:.1f} s together; calls, tokens, cost and time count all"
        )
        return
    scored = sum(row.score is not None for row in others)
    succeeded = sum(row.success or False for row in others)
    print(f"branches: {len(others)}, {scored} scored, {succeeded} succeeded; the figures above count none of them")
