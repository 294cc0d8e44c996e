"""Options and verbs under their old spelling: a usage error names the new one."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from gymcp.cli.app import app
from gymcp.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "new"),
    [
        (("train", "--dry-run", "runs/mine"), "--dry-run: has been replaced by: gymcp credit RUN"),
        (("train", "--dry-run", "runs/mine", "--preset", "grpo", "--save"), "gymcp credit RUN"),
        (("train", "recipes/tiny.toml", "--preset", "grpo"), "--set credit.preset=NAME, or gymcp credit RUN --preset"),
        (("train", "recipes/tiny.toml", "--env", "x.py"), "--set env=FILE, or gymcp credit RUN --env FILE"),
        (("train", "recipes/tiny.toml", "--save"), "gymcp credit RUN --save"),
        (("judge", "runs/mine", "--beside"), "--beside: has been replaced by: --as-component"),
        (("new", "mine", "--name", "clock"), "--name: has been replaced by: --server-name"),
    ],
)
def test_an_old_spelling_is_an_error_that_names_the_new_one(words: tuple[str, ...], new: str) -> None:
    result = CliRunner().invoke(app, list(words))
    assert isinstance(result.exception, ConfigError)
    assert new in str(result.exception)


@pytest.mark.parametrize("verb", ["train", "judge run", "new"])
def test_the_help_does_not_show_replaced_options(verb: str) -> None:
    text = CliRunner().invoke(app, [*verb.split(), "--help"], env={"COLUMNS": "200"}).output
    assert not {"--dry-run", "--beside", "--name"} & set(text.split())


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (("judge",), "judge run"),
        (("judge", "--policy", "tiny"), "judge run"),
        (("judge", "run"), "judge run"),
        (("judge", "agreement"), "judge agreement"),
        (("judge", "runs/mine", "other"), "judge run"),
    ],
)
def test_judge_runs_its_default_command_unless_the_first_word_is_a_command(words: tuple[str, ...], usage: str) -> None:
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    assert (result.exit_code, f"{usage} [OPTIONS]" in result.output) == (2, True)
