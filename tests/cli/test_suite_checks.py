"""`gymcp suites --check` before any gate is played."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cli_runner import BANK

from gymcp.cli.evaluation import suites
from gymcp.envs import load_env, load_spec
from gymcp.envs.spec import EnvSpec, LoadedEnv
from gymcp.errors import UsageError
from gymcp.types import GoldTurn, Suite, ToolCall


def test_an_unloadable_suite_ends_the_check_before_an_hour_of_results_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(spec: EnvSpec) -> LoadedEnv:
        if spec.name == "looks":
            raise UsageError("looks: needs Java")
        return load_env(spec)

    def play(*_: Any, **__: Any) -> None:
        raise AssertionError("gates were played")

    monkeypatch.setattr(suites, "load_env", load)
    monkeypatch.setattr(suites, "play_gates", play)
    with pytest.raises(UsageError, match="looks: needs Java"):
        suites.check_gates(["rounds", "looks"], "none", limit=1, as_json=False)


@pytest.mark.parametrize(("calls", "tasks"), [(50, 4), (51, 3), (66, 3), (67, 2), (1000, 2)])
def test_a_sample_has_fewer_tasks_if_their_gold_is_long(calls: int, tasks: int) -> None:
    gold = (GoldTurn(calls=tuple(ToolCall(id=f"{n}", name="pay") for n in range(calls)), final_text="Done."),)
    suite = load_spec(str(BANK)).suite
    assert isinstance(suite, Suite)
    long = replace(suite, tasks=tuple(replace(suite.tasks[0], id=f"{n}", gold=gold) for n in range(12)))
    assert suites.size_sample(long) == tasks
