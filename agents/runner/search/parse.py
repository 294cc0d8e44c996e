"""The text form of a search, for the command line."""

from __future__ import annotations

from pathlib import Path

from gymcp.agents.runner.search.searches import SEARCHES, Search
from gymcp.agents.runner.trees.controller import TreeBudget
from gymcp.errors import ConfigError
from gymcp.evaluators.judge.rubric import load_rubric

EPISODES = 64
"""Maximum number of episodes of a search by default."""
_LIMITS = ("episodes", "tokens", "calls", "cost")


def parse_search(text: str) -> tuple[Search, TreeBudget]:
    """The search and the budget of ``NAME,width=3,episodes=20,value=clean``; a rubric is a file, a head a folder, which
    is not opened. Raises ConfigError."""
    name, *parts = (part.strip() for part in text.split(","))
    if name not in SEARCHES:
        raise ConfigError(f"--search '{text}': no search '{name}'; have {', '.join(SEARCHES)}")
    kind = SEARCHES[name]
    takes = (*kind.numbers, *_LIMITS, "value", "rubric", "votes", "head")
    numbers = {key: number for key, number in kind.numbers.items() if number is not None}
    given: set[str] = set()
    value, rubric, head = kind.values[0], None, None
    cost: float | None = None
    for part in parts:
        key, _, written = part.partition("=")
        if key not in takes or key in given:
            raise ConfigError(f"--search '{text}': cannot read '{part}'; {name} takes {', '.join(takes)}, each once")
        given.add(key)
        if key == "value":
            value = written
        elif key == "rubric":
            rubric = load_rubric(Path(written))
        elif key == "head":
            head = Path(written)
        elif key == "cost":
            cost = _read_cost(text, written)
        else:
            numbers[key] = _read_number(text, key, written)
    limits = {key: numbers.pop(key) for key in _LIMITS if key in numbers}
    search = Search(name=name, value=value, rubric=rubric, head=head, rater=None, **numbers)
    budget = TreeBudget(**{"episodes": EPISODES, **limits}, cost=cost)
    if name == "best_of_n" and search.width > budget.episodes:
        raise ConfigError(f"--search '{text}': width={search.width} needs episodes={search.width} or more")
    return search, budget


def _read_number(text: str, key: str, written: str) -> int:
    try:
        return int(written)
    except ValueError:
        raise ConfigError(f"--search '{text}': {key}='{written}' is no whole number; give such as {key}=3") from None


def _read_cost(text: str, written: str) -> float:
    try:
        return float(written)
    except ValueError:
        raise ConfigError(f"--search '{text}': cost='{written}' is no number; give such as cost=0.5") from None
