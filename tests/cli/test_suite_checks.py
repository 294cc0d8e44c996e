"""`gymcp suites --check` before any gate is played."""

from __future__ import annotations

from typing import Any

import pytest

from gymcp.cli.evaluation import suites
from gymcp.envs import load_env
from gymcp.envs.spec import EnvSpec, LoadedEnv
from gymcp.errors import UsageError


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
