"""Options and verbs under their old spelling, or under that of another framework: a usage error names the one here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gymcp.cli.app import app, run
from gymcp.cli.known_names import FOREIGN_OPTIONS
from gymcp.cli.lazy_verbs import load_command
from gymcp.cli.verbs import VERBS
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
        (("judge", "runs/mine", "--run", "x"), "--run: has been replaced by: gymcp judge agreement LABELS --run RUN"),
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
    assert not {"--dry-run", "--beside", "--name", "--run"} & set(text.split())


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


def test_a_folder_with_the_name_of_the_default_command_is_told_how_to_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gymcp", "judge", "run", "--policy", "tiny"])
    for hint in ("", "if the folder 'run' is meant, write ./run; "):
        with pytest.raises(SystemExit):
            run()
        assert f"judge run: missing argument 'run'; {hint}see gymcp" in capsys.readouterr().err
        (tmp_path / "run").mkdir(exist_ok=True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("eval", "bfcl", "--models", "x"), "no such option: --models; here it is --policy; see"),
        (("eval", "bfcl", "-m", "x"), "no such option: -m; here it is --policy; see"),
        (
            ("eval", "bfcl", "--max_connections=8"),
            "no such option: --max-connections; here it is --concurrency; see",
        ),
        (
            ("eval", "bfcl", "--timeout", "9"),
            "no such option: --timeout; here it is --max-episode-seconds or --request-timeout; see",
        ),
        (("judge", "run", "runs/x", "--model", "x"), "no such option: --model; here it is --policy; see"),
        (
            ("--model", "x"),
            "no such option: --model; here it is --policy, an option of eval, judge run, stress, learn; see",
        ),
        (("--trials", "3", "eval", "bfcl"), "no such option: --trials; it is an option of eval; see"),
        (("--json",), "no such option: --json; it is an option of eval, suites, grade, judge run and "),
        (("doctor", "--model", "x"), "no such option: --model (Possible options: --help); see"),
    ],
)
def test_an_option_of_another_framework_is_an_error_that_names_the_one_here(
    words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gymcp", *words])
    with pytest.raises(SystemExit) as ended:
        run()
    printed = capsys.readouterr().err
    assert (ended.value.code, says in printed, "; see gymcp" in printed) == (2, True, True)


def test_every_option_in_place_of_one_of_another_framework_exists() -> None:
    parameters = load_command(next(verb for verb in VERBS if verb.name == "eval")).params
    options = {name for each in parameters if not each.hidden for name in each.opts}
    assert {here for names in FOREIGN_OPTIONS.values() for here in names} <= options
    assert not set(FOREIGN_OPTIONS) & options
