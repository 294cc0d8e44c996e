"""The configs behind ``gymcp eval`` and ``gymcp judge``: a Python user gets the same defaults and the same run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from cli_runner import BANK

from gymcp.agents.runner.run import RunEnd
from gymcp.cli.configs import EvalConfig, JudgeConfig, ModelConfig
from gymcp.cli.evaluation import eval, judge
from gymcp.cli.evaluation.eval_run import run_eval
from gymcp.errors import ConfigError
from gymcp.store import open_run
from gymcp.types import Sampling

OPTION_NAMES = {"request_timeout_s": "request_timeout", "stress": "stress", "stop": "stop"}
"""Field -> parameter of the command, for those whose names differ or whose empty value is None in the command."""


@pytest.mark.parametrize(
    ("config", "command"),
    [
        (EvalConfig, eval.command),
        (ModelConfig, eval.command),
        (Sampling, eval.command),
        (JudgeConfig, judge.judge_run),
    ],
)
def test_a_config_has_the_defaults_of_its_command(config: Any, command: Callable[..., None]) -> None:
    parameters = inspect.signature(command).parameters
    compared = 0
    for field in fields(config):
        parameter = parameters.get(OPTION_NAMES.get(field.name, field.name))
        if parameter is not None and field.default is not MISSING and field.name != "seed":
            assert (parameter.default or None) == (field.default or None), field.name
            compared += 1
    assert compared >= 5


def test_run_eval_records_a_run_and_returns_its_summary(tmp_path: Path) -> None:
    result = run_eval(EvalConfig(env=str(BANK), out=tmp_path / "run"))
    assert (result.ended, result.summary["success"], result.folder) == (RunEnd.FINISHED, 1.0, tmp_path / "run")
    assert {"run.json", "summary.json", "report.html"} <= {file.name for file in result.folder.iterdir()}


def test_the_coverage_floor_of_a_run_is_recorded_only_if_it_is_asked_for(tmp_path: Path) -> None:
    for name, floor in (("plain", None), ("strict", 1.0)):
        result = run_eval(EvalConfig(env=str(BANK), out=tmp_path / name, limit=1, min_coverage=floor))
        assert open_run(result.folder).config.get("min_coverage") == floor
        assert result.summary["min_coverage"] == (floor or 0.95)


def test_run_eval_refuses_a_wrong_option_before_it_makes_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no agent 'oracel'; have oracle"):
        run_eval(EvalConfig(env=str(BANK), agent="oracel", out=tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []
