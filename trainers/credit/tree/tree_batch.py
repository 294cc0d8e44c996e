"""A tree as a batch of steps, on which advantage terms work, and the tree of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gymcp.agents.runner.trees.tree import NOT_REPLACED
from gymcp.envs.tool_costs import ToolCosts
from gymcp.errors import ConfigError
from gymcp.trainers.credit.step_batch import COST_COLUMNS, InnerEnds, StepBatch, has_score, make_batch
from gymcp.trainers.credit.tree.step_tree import START, StepTree, count_depth
from gymcp.trainers.settings.arrays import Floats, Ints
from gymcp.types import Task, Trajectory

MISMATCH = "mismatch"
"""Column that is 1 on the steps at which an episode's own action was replaced, or was to be and could not be undone."""
PARENT = "parent"
"""Key of a batch of trees: equal for steps that come after the same step, or that begin the same task."""


def make_tree_batch(tree: StepTree, *, tokens: Floats | None = None, **columns: Floats) -> StepBatch:
    """The batch of a tree, with the key ``parent``, and further columns [S]. `tokens` [S]: drawn in each step; None: 1.

    A trajectory is a stretch of steps each of which comes after the one before it in the arrays: an episode, or a
    branch of one without the steps that it shares. The reward of a leaf is its score. ``turn`` counts the steps from
    the start of the task. Raises ConfigError for a column of another length.
    """
    steps = tree.steps
    for name, column in {**columns, "tokens": tokens}.items():
        if column is not None and len(column) != steps:
            raise ConfigError(f"tree: {len(column)} values in the column '{name}', and {steps} steps")
    begins = tree.parent != np.arange(steps) - 1
    begins[0] = True
    starts = np.append(np.flatnonzero(begins), steps)
    zeros, ones = np.zeros(steps), np.ones(steps)
    return StepBatch(
        starts=starts,
        columns={
            "reward": np.nan_to_num(tree.score),
            "valid": ones,
            **dict.fromkeys(("calls", "errors", "cost", *COST_COLUMNS.values()), zeros),
            "tokens": ones if tokens is None else tokens,
            **columns,
        },
        keys={
            "group": tree.group,
            "trajectory": np.cumsum(begins) - 1,
            "state": np.arange(steps),
            "turn": count_depth(tree),
            PARENT: tree.places_before[:steps],
        },
        tasks=tuple(map(str, tree.group[starts[:-1]].tolist())),
    )


def join_episodes(
    records: Iterable[Trajectory],
    branches: Mapping[str, tuple[str, int]],
    tasks: Mapping[str, Task] | None = None,
    costs: ToolCosts | None = None,
) -> StepBatch:
    """The batch of recorded episodes that branched off each other, with the key ``parent``: each step is in it once.

    Each record has all steps of its path, and stands after the one that it branched off. `branches`: id of an episode
    -> id of the one that it branched off, which need not be in the batch, and the number of steps that they share. The
    trajectories of the batch have the steps that no earlier record has. Of an episode without a score, they are the
    steps from which scored ones went on; its reward is 0, and counts nowhere. A scored episode that ended where others
    went on counts by `StepBatch.inner_ends`. ``turn`` counts the steps of the path, and the column ``mismatch`` is 1 on
    steps whose own action was replaced.

    Raises ConfigError if no step is left, for an episode that branches off itself, and what `StepTree` raises.
    """
    cut = _cut_paths(list(records), branches)
    batch = make_batch(cut.owned, tasks, costs)
    steps = int(batch.starts[-1])
    parent = np.arange(steps) - 1
    parent[batch.starts[:-1]] = cut.before
    replaced = [each for record in batch.sources for each in _find_replaced(record)]
    batch = batch.with_columns(**{MISMATCH: np.array(replaced, float)})
    joined = batch.with_keys(**{PARENT: np.where(parent == START, steps + batch.keys["group"], parent)})
    joined = replace(joined, inner_ends=_find_inner_ends(joined, parent, cut.ends))
    return joined.with_keys(turn=count_depth(find_tree(joined))[:steps])


@dataclass(frozen=True, slots=True, kw_only=True)
class _CutPaths:
    """Records of a tree, each without the steps that it shares with an earlier one."""

    owned: list[Trajectory]
    before: list[int]
    """The step before the first one of each; `START`: none."""
    ends: list[tuple[int, Trajectory]]
    """The last step of the path of each scored episode, and the episode; `START`: it has none."""


def _cut_paths(records: Sequence[Trajectory], branches: Mapping[str, tuple[str, int]]) -> _CutPaths:
    paths = [[(_find_owner(record.id, n, branches), n) for n in range(len(record.steps))] for record in records]
    scored = {key for record, path in zip(records, paths, strict=True) if has_score(record) for key in path}
    places: dict[tuple[str, int], int] = {}
    cut = _CutPaths(owned=[], before=[], ends=[])
    for record, path in zip(records, paths, strict=True):
        until = next((step for step, key in enumerate(path) if key not in scored), len(path))
        shared = next((step for step, key in enumerate(path) if key not in places), len(path))
        if shared < until:
            cut.before.append(places[path[shared - 1]] if shared else START)
            places |= {key: len(places) + step for step, key in enumerate(path[shared:until])}
            cut.owned.append(_cut_out(record, shared, until))
        if has_score(record):
            cut.ends.append((places[path[-1]] if path else START, record))
    return cut


def _find_inner_ends(batch: StepBatch, parent: Ints, ends: Sequence[tuple[int, Trajectory]]) -> InnerEnds:
    """The scored episodes that ended at a step after which others went on, at one that another episode played or also
    ended at, or before any step.

    `parent` [S]: the step before each. An episode of a group without a step is left out.
    """
    starts = batch.starts[:-1]
    owners = [batch.sources[number].id for number in batch.keys["trajectory"].tolist()]
    groups = dict(zip((record.group for record in batch.sources), batch.keys["group"][starts].tolist(), strict=True))
    inner, ends_at = {START, *parent.tolist()}, Counter(step for step, _ in ends)
    found = [
        (step, groups[record.group], record.score or 0.0)
        for step, record in ends
        if record.group in groups and (step in inner or ends_at[step] > 1 or owners[step] != record.id)
    ]
    columns = np.array(found, float).reshape(-1, 3).T
    return InnerEnds(steps=columns[0].astype(np.int64), groups=columns[1].astype(np.int64), scores=columns[2])


def join_trees(
    records: Iterable[Trajectory],
    branches: Mapping[str, tuple[str, int]],
    tasks: Mapping[str, Task] | None = None,
    costs: ToolCosts | None = None,
) -> StepBatch:
    """`join_episodes`, with the column ``trunk``: 1 on the steps of first episodes, 0 on those of branches."""
    batch = join_episodes(records, branches, tasks, costs)
    first = np.array([record.id not in branches for record in batch.sources], float)
    return batch.with_columns(trunk=np.repeat(first, batch.lengths))


def _find_owner(id: str, step: int, branches: Mapping[str, tuple[str, int]]) -> str:
    """Id of the episode that played this step of the path of another one."""
    seen = {id}
    while id in branches and step < branches[id][1]:
        id = branches[id][0]
        if id in seen:
            raise ConfigError(f"tree: episode {id!r:.80} branches off itself, by way of its parents")
        seen.add(id)
    return id


def _cut_out(record: Trajectory, shared: int, until: int) -> Trajectory:
    """The record with its steps from `shared` to `until` alone, and the side answers that led to them."""
    if until == len(record.steps):
        until += 1  # answers after the last step
    answers = (replace(each, step=each.step - shared) for each in record.side_answers if shared <= each.step < until)
    provenance = record.provenance
    if NOT_REPLACED in provenance:
        kept = [step - shared for step in _list_not_replaced(record) if shared <= step < until]
        provenance = {**provenance, NOT_REPLACED: kept}
    return replace(
        record,
        steps=record.steps[shared:until],
        side_answers=tuple(answers),
        provenance=provenance,
    )


def _list_not_replaced(record: Trajectory) -> list[int]:
    """Numbers of the steps that stayed though they were to be replaced. The record may be of others."""
    found = record.provenance.get(NOT_REPLACED)
    return [each for each in found if isinstance(each, int)] if isinstance(found, list | tuple) else []


def _find_replaced(record: Trajectory) -> list[bool]:
    """[T]: true for a step at which the model's own action was replaced, or was to be."""
    replaced = {answer.step for answer in record.side_answers if answer.replaced} | {*_list_not_replaced(record)}
    return [step in replaced for step in range(len(record.steps))]


def find_tree(batch: StepBatch) -> StepTree:
    """The tree of a batch before any filter: its [S] steps, then its [E] inner ends, as leaves of their own.

    Without the key ``parent`` no episode forks, and each is a path by itself. The score of a leaf is its reward;
    rewards of other steps are not read. Raises what `StepTree` raises.
    """
    parent, ends = _find_parents(batch), batch.inner_ends
    is_inner = np.zeros(len(parent), bool)
    for before in (parent, ends.steps):
        is_inner[before[before != START]] = True
    score = np.where(is_inner, np.nan, np.nan_to_num(batch.column("reward")))
    return StepTree(
        parent=np.concatenate((parent, ends.steps)),
        score=np.concatenate((score, ends.scores)),
        group=np.concatenate((batch.keys["group"], ends.groups)),
    )


def _find_parents(batch: StepBatch) -> Ints:
    steps = int(batch.starts[-1])
    if PARENT in batch.keys:
        return np.where(batch.keys[PARENT] >= steps, START, batch.keys[PARENT])
    parent = np.arange(steps) - 1
    parent[batch.starts[:-1]] = START
    return parent
