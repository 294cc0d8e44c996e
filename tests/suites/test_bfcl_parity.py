"""Our grader over the record against upstream's checker over the calls: the same verdicts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from bfcl_replay import ToolsByClass, alter, gold_calls, play
from upstream import upstream_verdicts

from gymcp.envs.suites.bfcl.suite import grade
from gymcp.envs.suites.upstream.file_layout import SuiteFiles
from gymcp.paths import gymcp_home
from gymcp.types import Score, Suite

IMPERFECT = 300


def test_gold_scores_one_on_all_800_and_imperfect_episodes_as_upstream_says(
    suite: Suite, files: SuiteFiles, tools: ToolsByClass, record_property: Callable[[str, object], None]
) -> None:
    rng = random.Random(0)
    cases = [(task, gold_calls(task)) for task in suite.tasks]
    cases += [(task, alter(task, tools, rng)) for task in rng.sample(suite.tasks, IMPERFECT)]
    trajectories, states = play(files, cases, tools)
    verdicts = upstream_verdicts(gymcp_home(), files, trajectories)
    ours = [
        _error_type(grade(task, trajectory, states.__getitem__))
        for (task, _), trajectory in zip(cases, trajectories, strict=True)
    ]
    upstream = [verdict["error_type"].removeprefix("multi_turn:") for verdict in verdicts]
    differ = [(task.id, calls, a, b) for (task, calls), a, b in zip(cases, ours, upstream, strict=True) if a != b]
    record_property("BFCL, gold", f"{ours[:800].count('')}/800 pass here, {upstream[:800].count('')}/800 upstream")
    agreement = f"{IMPERFECT - len(differ)}/{IMPERFECT} verdicts agree; upstream: {dict(Counter(upstream[800:]))}"
    record_property("BFCL, imperfect replayed episodes against upstream's checker", agreement)
    assert ours[:800] == [""] * 800
    assert differ == []
    assert len(set(upstream[800:])) == 4


def _error_type(score: Score) -> str:
    """Upstream's name for the error; empty for a pass."""
    if score.value == 1:
        return ""
    if score.reason.endswith("no tool was called"):
        return "empty_turn_model_response"
    return "execution_response_mismatch" if "no call has answered" in score.reason else "instance_state_mismatch"
