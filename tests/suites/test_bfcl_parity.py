"""Our grader over the record against upstream's checker over the calls: the same verdicts."""

from __future__ import annotations

import random

from bfcl_played import ToolsByClass, alter, gold_calls, play
from upstream import upstream_verdicts

from gymcp.envs.suites.bfcl import BfclFiles, grade
from gymcp.paths import gymcp_home
from gymcp.types import Suite

IMPERFECT = 300


def test_gold_scores_one_on_all_800_and_imperfect_episodes_as_upstream_says(
    suite: Suite, files: BfclFiles, tools: ToolsByClass
) -> None:
    rng = random.Random(0)
    cases = [(task, gold_calls(task)) for task in suite.tasks]
    cases += [(task, alter(task, tools, rng)) for task in rng.sample(suite.tasks, IMPERFECT)]
    trajectories, states = play(files, cases, tools)
    verdicts = upstream_verdicts(gymcp_home(), files, trajectories)
    ours = [
        grade(task, trajectory, states.__getitem__).value == 1
        for (task, _), trajectory in zip(cases, trajectories, strict=True)
    ]
    upstream = [verdict["valid"] for verdict in verdicts]
    differ = [(task.id, calls) for (task, calls), a, b in zip(cases, ours, upstream, strict=True) if a != b]
    print(f"gold: {sum(ours[:800])}/800 here, {sum(upstream[:800])}/800 upstream")
    print(f"imperfect: {IMPERFECT - len(differ)}/{IMPERFECT} agree; {sum(upstream[800:])} of them are valid")
    assert sum(ours[:800]) == 800
    assert differ == []
    assert 0 < sum(upstream[800:]) < IMPERFECT
