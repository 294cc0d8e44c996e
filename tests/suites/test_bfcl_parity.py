"""Our grader over the record against upstream's checker over the calls: the same verdicts.

Of a sample here; `benchmarks/full_tests.py` compares them for all 800 tasks and for 300 imperfect episodes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from bfcl_replay import ToolsByClass, alter, gold_calls, play
from length import IS_FULL, take_spread
from upstream import upstream_verdicts

from gymcp.envs.suites.bfcl.suite import grade
from gymcp.envs.suites.upstream.file_layout import SuiteFiles
from gymcp.paths import gymcp_home
from gymcp.types import Score, Suite

GOLD, IMPERFECT = (800, 300) if IS_FULL else (100, 60)
"""Tasks whose gold is played, and imperfect episodes."""


def test_gold_scores_one_and_imperfect_episodes_as_upstream_says(
    suite: Suite, files: SuiteFiles, tools: ToolsByClass, record_property: Callable[[str, object], None]
) -> None:
    rng = random.Random(0)
    cases = [(task, gold_calls(task)) for task in take_spread(suite.tasks, GOLD)]
    cases += [(task, alter(task, tools, rng)) for task in rng.sample(suite.tasks, IMPERFECT)]
    trajectories, states = play(files, cases, tools)
    verdicts = upstream_verdicts(gymcp_home(), files, trajectories)
    ours = [
        _error_type(grade(task, trajectory, states.__getitem__))
        for (task, _), trajectory in zip(cases, trajectories, strict=True)
    ]
    upstream = [verdict["error_type"].removeprefix("multi_turn:") for verdict in verdicts]
    differ = [(task.id, calls, a, b) for (task, calls), a, b in zip(cases, ours, upstream, strict=True) if a != b]
    passed = f"{ours[:GOLD].count('')}/{GOLD} pass here, {upstream[:GOLD].count('')}/{GOLD} upstream"
    record_property("BFCL, gold", passed)
    agreement = f"{IMPERFECT - len(differ)}/{IMPERFECT} verdicts agree; upstream: {dict(Counter(upstream[GOLD:]))}"
    record_property("BFCL, imperfect replayed episodes against upstream's checker", agreement)
    assert len(cases) == GOLD + IMPERFECT
    assert ours[:GOLD] == [""] * GOLD
    assert differ == []
    assert len(set(upstream[GOLD:])) == 4


def _error_type(score: Score) -> str:
    """Upstream's name for the error; empty for a pass."""
    if score.value == 1:
        return ""
    if score.reason.endswith("no tool was called"):
        return "empty_turn_model_response"
    return "execution_response_mismatch" if "no call has answered" in score.reason else "instance_state_mismatch"
