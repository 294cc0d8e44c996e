"""The start of the command: what it may import before a verb runs, and the options before the verb."""

from __future__ import annotations

import gc
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cli_runner import BANK, gymcp
from stderr_lines import errors

from gymcp import __version__
from gymcp.cli.app import app
from gymcp.cli.lazy_verbs import import_place, load_command
from gymcp.cli.verbs import VERBS

HEAVY = {
    "mcp", "mcp_types", "httpx", "httpx2", "httpcore", "torch", "transformers", "numpy", "scipy", "matplotlib",
    "gymnasium", "docker", "jsonschema", "starlette", "uvicorn", "anyio", "re2", "sqlite3", "asyncio", "urllib.request",
}  # fmt: skip
"""Modules that take long to import, or that only a run needs."""
ROOMS = ("envs", "mcp_servers", "evaluators", "trainers", "store", "exchange", "agents.runner", "agents.policies")
"""Packages of gymcp that the help of a verb has no need of."""


Started = Mapping[tuple[str, ...], tuple[set[str], str]]
STARTED = pytest.mark.xdist_group("started")
BAD_RUN = ("report", "nowhere")
BAD_RECIPE = ("train", "nowhere.toml", "--check")
COMMANDS: Mapping[tuple[str, ...], str] = {
    ("--help",): "Servers and environments",
    ("--version",): f"gymcp {__version__}",
    ("--no-such-option",): "no such option",
    ("evl",): "did you mean 'eval'; see gymcp --help",
    ("eval", "--no-such-option"): "eval: no such option",
    ("train", "--no-such-option"): "train: no such option",
    **{(verb.name, "--help"): "Examples:" for verb in VERBS},
    BAD_RUN: "run folder nowhere: no such folder",
    BAD_RECIPE: "recipe 'nowhere.toml': not found",
}
"""Words after ``gymcp`` -> a part of what is printed."""
RUN_EACH = """
import atexit, json, os, sys
import gymcp.cli.app, rich.console, rich.panel, rich.table, rich.markdown
from gymcp.cli.main import main
for number, words in enumerate(json.loads(sys.argv[1])):
    child = os.fork()
    if child == 0:
        printed = os.open(f"{number}.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        atexit.register(lambda: json.dump(sorted(sys.modules), open(f"{number}.json", "w")))
        sys.argv = ["gymcp", *words]
        main()
        sys.exit()
    os.waitpid(child, 0)
"""
"""Program that imports what every command imports first, and then runs each in a fork."""


def imports_of(
    commands: Iterable[tuple[str, ...]], folder: Path, env: Mapping[str, str] | None = None
) -> dict[tuple[str, ...], tuple[set[str], str]]:
    """Words of each command -> (modules that it has imported when it ends, what it printed)."""
    all_words = list(commands)
    code = [sys.executable, "-c", RUN_EACH, json.dumps(all_words)]
    subprocess.run(code, cwd=folder, env={**os.environ, **(env or {})}, check=True)
    return {
        words: (set(json.loads((folder / f"{number}.json").read_text())), (folder / f"{number}.txt").read_text())
        for number, words in enumerate(all_words)
    }


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Started:
    return imports_of(COMMANDS, tmp_path_factory.mktemp("started"))


def heavy(modules: set[str]) -> set[str]:
    """Modules among them that the start of the command must not import."""
    rooms = {name for name in modules if any(f"{name}.".startswith(f"gymcp.{room}.") for room in ROOMS)}
    return (modules & HEAVY) | rooms


@STARTED
def test_help_and_wrong_options_import_nothing_that_runs(started: Started, subtests: pytest.Subtests) -> None:
    for words, said in COMMANDS.items():
        modules, printed = started[words]
        with subtests.test(" ".join(words)):
            assert said in printed
            assert words in (BAD_RUN, BAD_RECIPE) or heavy(modules) == set()


@STARTED
@pytest.mark.parametrize("words", [("--help",), ("--version",)], ids=" ".join)
def test_the_first_page_imports_no_verb(words: tuple[str, ...], started: Started) -> None:
    modules, _ = started[words]
    page = {"gymcp.cli.help", "gymcp.cli.help.page", "gymcp.cli.help.parameters"} if words == ("--help",) else set()
    assert {name for name in modules if name.startswith("gymcp.cli.")} == page | {
        "gymcp.cli.app",
        "gymcp.cli.exit_codes",
        "gymcp.cli.known_names",
        "gymcp.cli.lazy_verbs",
        "gymcp.cli.main",
        "gymcp.cli.output",
        "gymcp.cli.verbs",
    }
    assert "pydantic" not in modules


@STARTED
def test_a_verb_imports_only_its_own_part(started: Started) -> None:
    modules, _ = started[BAD_RUN]
    assert "gymcp.cli.runs.report" in modules
    assert {"gymcp.cli.evaluation.eval_run", "gymcp.cli.servers.check"} & modules == set()


@STARTED
def test_a_recipe_is_refused_before_torch_is_imported(started: Started) -> None:
    modules, _ = started[BAD_RECIPE]
    assert "gymcp.trainers.recipe.load" in modules
    assert {"torch", "transformers", "gymcp.cli.training.train_forecast"} & modules == set()


def find_deferred() -> Iterator[tuple[str, Any]]:
    """(words, function) of each verb whose work is imported when it runs."""
    for verb in VERBS:
        command = load_command(verb)
        for name, each in {"": command, **getattr(command, "commands", {})}.items():
            function = (
                inspect.unwrap(each.callback, stop=lambda f: hasattr(f, "deferred_to")) if each.callback else None
            )
            if hasattr(function, "deferred_to"):
                yield f"{verb.name} {name}".strip(), function


def test_the_work_of_a_verb_takes_the_options_of_the_verb() -> None:
    faces = dict(find_deferred())
    assert len(faces) >= 17
    for words, face in faces.items():
        wanted = [name for name in inspect.signature(face).parameters if not name.startswith("old_")]
        assert list(inspect.signature(import_place(face.deferred_to)).parameters) == wanted, words


def test_an_error_is_one_line_and_debug_shows_its_traceback_and_the_log(tmp_path: Path) -> None:
    plain = gymcp("report", "nowhere", cwd=tmp_path)
    assert (plain.returncode, plain.stderr) == (2, "gymcp: run folder nowhere: no such folder\n")
    debugged = gymcp("--debug", "report", "nowhere", cwd=tmp_path)
    assert debugged.returncode == 2
    assert "Traceback" in debugged.stderr
    assert "gymcp.cli.lazy_verbs: imported gymcp.cli.runs.report in" in debugged.stderr
    assert debugged.stderr.splitlines()[-1] == plain.stderr.strip()


def test_an_error_in_a_file_of_the_user_names_debug_which_shows_the_line(tmp_path: Path) -> None:
    (tmp_path / "boom.py").write_text("x = 1\n\nraise RuntimeError('boom')\n")
    plain = gymcp("eval", "boom.py", cwd=tmp_path)
    assert plain.returncode == 2
    assert len(errors(plain.stderr)) == 1
    assert plain.stderr.rstrip().endswith("RuntimeError: boom; gymcp --debug shows where")
    debugged = gymcp("--debug", "eval", "boom.py", cwd=tmp_path)
    assert 'boom.py", line 3, in <module>' in debugged.stderr
    assert "--debug shows" not in debugged.stderr


def test_environment_variables_are_documented() -> None:
    help_text = gymcp("--help", env={"COLUMNS": "200"}).stdout
    for variable in ("GYMCP_HOME", "OPENAI_API_KEY", "VLLM_API_KEY", "DOCKER_HOST", "GYMCP_ENGINE_FORWARD", "NO_COLOR"):
        assert f"{variable}: " in help_text


def test_the_version_is_the_package_s() -> None:
    done = gymcp("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"gymcp {__version__}\n", "")


def test_the_app_lists_its_verbs_in_the_order_of_the_table() -> None:
    text = gymcp("--help", env={"COLUMNS": "100"}).stdout
    places = [text.index(f"  {verb.name} ") for verb in VERBS]
    assert places == sorted(places)
    assert app.info.name == "gymcp"


def test_policy_implies_react(tmp_path: Path) -> None:
    done = gymcp("eval", BANK, "--policy", "nope", cwd=tmp_path)
    assert (done.returncode, "no policy 'nope'; write tiny" in done.stderr) == (2, True)


def test_a_command_that_is_imported_already_leaves_the_garbage_of_others_to_be_found() -> None:
    import_place("evaluation.eval_run:execute")
    before = gc.get_freeze_count()
    import_place("evaluation.eval_run:execute")
    assert gc.get_freeze_count() <= before
