"""The searches: each decides from the episodes so far which one is played next, and which one is the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gymcp.agents.runner.search.moves import End, Leaf, Move, Moves
from gymcp.agents.runner.search.values import JUDGE, STEP_VALUE, VALUES, VERDICT, StepRater
from gymcp.errors import ConfigError
from gymcp.evaluators.judge.rubric import Rubric

EXPLORATION = math.sqrt(2)
"""Weight of the term for rarely tried steps in the UCB1 rule of `mcts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search with its numbers. Raises ConfigError for numbers or a value that it cannot use."""

    name: str
    """Key of `SEARCHES`."""
    width: int
    """Episodes of `best_of_n`; paths that `beam` keeps; steps that the others try at one point."""
    ways: int = 1
    """Continuations of each path in `beam`."""
    depth: int | None = None
    """Steps of a level of `beam`; steps that `lookahead` looks ahead, None: to the end."""
    rollouts: int = 1
    """Episodes of `mcts`; episodes by which `lookahead` judges a step."""
    value: str = "agreement"
    """Key of `VALUES`."""
    rubric: Rubric | None = None
    """Rubric by which a model judges each episode, with the value `JUDGE` alone."""
    votes: int = 1
    """Times that the judge is asked about one episode."""
    head: Path | None = None
    """Folder of the trained head, for the command line, which loads `rater` from it; None without one."""
    rater: StepRater | None = None
    """The trained head that values each episode, with the value `STEP_VALUE` alone."""

    def __post_init__(self) -> None:
        if self.name not in SEARCHES:
            raise ConfigError(f"no search '{self.name}'; have {', '.join(SEARCHES)}")
        for number in ("width", "ways", "depth", "rollouts", "votes"):
            given = getattr(self, number)
            if given is not None and given < 1:
                raise ConfigError(f"search {self.name}: {number} must be 1 or more, not {given}")
        values = SEARCHES[self.name].values
        if self.value not in values:
            raise ConfigError(f"search {self.name}: no value '{self.value}'; have {', '.join(values)}")
        if (self.value == JUDGE) != (self.rubric is not None):
            raise ConfigError(f"search {self.name}: value={JUDGE} and a rubric go together; give both, or neither")
        if self.value != STEP_VALUE and (self.head is not None or self.rater is not None):
            raise ConfigError(f"search {self.name}: a trained head is for value={STEP_VALUE}, not value={self.value}")
        if self.rubric is None and self.votes > 1:
            raise ConfigError(f"search {self.name}: votes={self.votes} are of a judge; give value={JUDGE}, too")
        if self.name == "lookahead" and self.depth == 1 and self.rollouts > 1:
            raise ConfigError(
                "search lookahead: with depth=1 nothing is left to roll out; give rollouts=1, or more depth"
            )

    @property
    def sees_verdicts(self) -> bool:
        """True if the search is shown what graders say, so that its success is an upper bound."""
        return self.value == VERDICT

    @property
    def seeks_full(self) -> bool:
        """True if a value of 1 says that the task is solved, so that there is nothing more to look for."""
        return self.value in (VERDICT, JUDGE)

    @property
    def forks(self) -> bool:
        """True if episodes go on from steps of others, so that the agent must be able to resume."""
        return self.name != "best_of_n"

    def moves(self) -> Moves:
        """The search of one tree."""
        return SEARCHES[self.name].begin(self)

    def worth(self, leaf: Leaf, among: Sequence[Leaf]) -> float:
        """Value of one of these episodes."""
        return VALUES[self.value](leaf, among)

    def rank(self, leaves: Sequence[Leaf]) -> list[Leaf]:
        """The episodes from the best to the worst: a lost one after all others, the earlier of two equals first."""
        worth = {leaf: self.worth(leaf, leaves) for leaf in leaves}
        return sorted(leaves, key=lambda leaf: (leaf.end is End.LOST, -worth[leaf], leaf.number))

    def find_best_so_far(self, leaves: Sequence[Leaf]) -> Leaf:
        """The answer of a search that its budget has cut: the best episode of those that came furthest.

        Values of episodes that stand at different steps say little: a first step without an error is worth as much as a
        whole episode without one. So an episode that has come to its end goes before all others, then the deepest of
        those that are paused. A verdict is of the episode as it is recorded, so it decides before that.
        """
        if self.sees_verdicts:
            best = self.worth(self.rank(leaves)[0], leaves)
            leaves = [leaf for leaf in leaves if self.worth(leaf, leaves) == best]
        furthest = min(map(_measure_remoteness, leaves))
        return self.rank([leaf for leaf in leaves if _measure_remoteness(leaf) == furthest])[0]

    def find_answer(self, played: Sequence[Leaf]) -> Leaf:
        """The answer of a search that has followed its paths to their ends: the best of the episodes that were not
        paused, on those paths or beside them. If all of those are lost, a paused one is the answer.
        """
        # a verdict is of an episode as it stands, so it counts for a paused one, too
        ended = [leaf for leaf in played if self.sees_verdicts or leaf.end is not End.PAUSED]
        return self.find_best_so_far(played if all(leaf.end is End.LOST for leaf in ended) else ended)


def _measure_remoteness(leaf: Leaf) -> tuple[int, int]:
    """Distance from an answer: least for an episode that has come to its end, and the less, the deeper a paused one."""
    if leaf.end is End.FINISHED:
        return 0, 0
    return (3 if leaf.end is End.LOST else 1 if leaf.end is End.PAUSED else 2), -leaf.steps


def best_of_n(search: Search) -> Moves:
    """Whole episodes from the start, `width` of them."""
    leaves: list[Leaf] = []
    for _ in range(search.width):
        leaves.append((yield Move()))
    return search.rank(leaves)[0]


def beam(search: Search) -> Moves:
    """Level by level: every path that is kept goes on in several ways, and the best `width` of all are kept.

    The answer is the best of all episodes that have come to an end, also of those that were not kept: a path that was
    better at the time can end worse.
    """
    kept: list[Leaf | None] = [None]
    played: list[Leaf] = []
    while True:
        grown: list[Leaf] = []
        for start in kept:
            if start is not None and start.end is not End.PAUSED:
                grown.append(start)
                continue
            for _ in range(search.ways):
                at = 0 if start is None else start.steps
                grown.append((yield Move(start=start, at=at, steps=search.depth)))
                played.append(grown[-1])
        best = search.rank(grown)[: search.width]
        if best[0].end is End.LOST:
            return search.find_best_so_far(played)
        if all(leaf.end is not End.PAUSED for leaf in best):
            return search.find_answer(played)
        kept = list(best)


@dataclass(slots=True)
class _Point:
    """A point of the tree from which episodes go on."""

    start: Leaf | None = None
    at: int = 0
    tried: int = 0
    """Ways that have been tried from here."""


def dfsdt(search: Search) -> Moves:
    """The path is followed until a call fails; then the deepest point that has a way left is gone on from.

    The first path that comes to its end is the answer: with `verdict` and `judge`, the first of full value.

    Source: arXiv:2307.16789, with failures as the sign to go back.
    """
    points, leaves = [_Point()], list[Leaf]()
    while points:
        point = points[-1]
        if point.tried >= search.width:
            points.pop()
            continue
        point.tried += 1
        leaf = yield Move(start=point.start, at=point.at, keeps=True, until_failure=True)
        leaves.append(leaf)
        if leaf.end is End.FINISHED and (not search.seeks_full or search.worth(leaf, leaves) >= 1.0):
            return leaf
        if leaf.end is not End.LOST:
            points += [_Point(leaf, at, tried=1) for at in range(point.at + 1, leaf.steps)]
    return search.rank(leaves)[0]


@dataclass(slots=True)
class _Node:
    """A step of the tree of `mcts`, that after which its children go on."""

    start: Leaf | None = None
    at: int = 0
    is_closed: bool = False
    """True if no episode can go on from here."""
    children: list[_Node] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    """Episodes that have passed it."""


def mcts(search: Search) -> Moves:
    """Monte-Carlo tree search: `rollouts` episodes, each of which goes on from a point that UCB1 selects.

    A point has up to `width` children, and every step of an episode is a point. The answer is the best of all episodes.
    """
    root, leaves = _Node(), list[Leaf]()
    while len(leaves) < search.rollouts and not root.is_closed:
        path = _select(root, search, leaves)
        node = path[-1]
        leaf = yield Move(start=node.start, at=node.at, keeps=True)
        leaves.append(leaf)
        last = node.at + 1 if leaf.end is End.LOST else leaf.steps
        for at in range(node.at + 1, last + 1):
            path[-1].children.append(_Node(leaf, at, is_closed=at == last))
            path.append(path[-1].children[-1])
        for each in reversed(path):
            each.leaves.append(leaf)
            if len(each.children) >= search.width:
                each.is_closed = all(below.is_closed for below in each.children)
    return search.rank(leaves)[0]


def _select(root: _Node, search: Search, among: Sequence[Leaf]) -> list[_Node]:
    """The path down to a node that has room for another child."""
    path = [root]
    while len(path[-1].children) >= search.width:
        node = path[-1]
        open_children = [child for child in node.children if not child.is_closed]
        path.append(max(open_children, key=lambda child: _bound(child, len(node.leaves), search, among)))
    return path


def _bound(node: _Node, visits: int, search: Search, among: Sequence[Leaf]) -> float:
    """UCB1: the mean value of the node's episodes, and more the fewer they are."""
    count = len(node.leaves)
    mean = sum(search.worth(leaf, among) for leaf in node.leaves) / count
    return mean + EXPLORATION * math.sqrt(math.log(visits) / count)


def lookahead(search: Search) -> Moves:
    """At every step: `width` candidates are tried on copies of the world and played on; the best is taken for good.

    Episodes that have already gone on from the step that was taken, to their end, are candidates at the next one: the
    best `width` of them. Each candidate is judged by `rollouts` episodes, of which such an episode is one.

    The answer is not always the episode of the steps that were taken: the mean of a candidate can hide its best one.
    """
    start: Leaf | None = None
    at, begun, played = 0, list[Leaf](), dict[int, Leaf]()
    while True:
        candidates: list[list[Leaf]] = []
        for number in range(search.width):
            known = begun[number] if number < len(begun) else None
            candidates.append((yield from _try_step(search, start, at, known)))
        among = [leaf for episodes in candidates for leaf in episodes]
        played |= {leaf.number: leaf for leaf in among}
        best = _pick(search, candidates, among)
        first = best[0]
        if first.end is End.LOST or (first.end is not End.PAUSED and first.steps <= at + 1):
            return search.find_answer(list(played.values()))
        start, at = first, at + 1
        begun = [leaf for leaf in search.rank(among) if leaf in best and leaf.end not in (End.PAUSED, End.LOST)]


def _try_step(search: Search, start: Leaf | None, at: int, known: Leaf | None) -> Generator[Move, Leaf, list[Leaf]]:
    """`rollouts` episodes through one candidate, a step after the first `at` of `start`; the first one chose it.

    `known`: an episode that has played the step already; None: it is drawn anew.
    """
    first = known
    if first is None:
        first = yield Move(start=start, at=at, steps=search.depth, keeps=True)
    episodes = [first]
    can_go_on = first.end is not End.LOST and first.steps > at + 1
    for _ in range(search.rollouts - 1 if can_go_on else 0):
        left = None if search.depth is None else search.depth - 1
        episodes.append((yield Move(start=first, at=at + 1, steps=left, keeps=True)))
    return episodes


def _pick(search: Search, candidates: Sequence[Sequence[Leaf]], among: Sequence[Leaf]) -> Sequence[Leaf]:
    """The candidate with the highest mean value; the first of several, one that is lost only if all are.

    `among`: the episodes of all candidates.
    """

    def rate(episodes: Sequence[Leaf]) -> tuple[bool, float]:
        mean = sum(search.worth(leaf, among) for leaf in episodes) / len(episodes)
        return episodes[0].end is not End.LOST, mean

    return max(candidates, key=rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of search."""

    begin: Callable[[Search], Moves]
    numbers: Mapping[str, int | None]
    """Numbers that it takes, with their defaults."""
    values: tuple[str, ...] = tuple(VALUES)
    """Values that it can use; the first is its default."""


SEARCHES: Mapping[str, Kind] = {
    "best_of_n": Kind(begin=best_of_n, numbers={"width": 4}),
    "beam": Kind(begin=beam, numbers={"width": 2, "ways": 2, "depth": 1}),
    "dfsdt": Kind(begin=dfsdt, numbers={"width": 2}, values=("clean", JUDGE, VERDICT)),
    "mcts": Kind(begin=mcts, numbers={"width": 3, "rollouts": 8}),
    "lookahead": Kind(begin=lookahead, numbers={"width": 3, "rollouts": 1, "depth": None}),
}
"""The searches by name."""
