"""`gymcp check` calls the tools that no gold calls: a defect in one of them shows in no gate."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp
from stderr_lines import errors

from gymcp.agents.runner.tool_trials import try_unused_tools
from gymcp.cli.servers.tool_checks import judge_unused_tools
from gymcp.cli.servers.verdicts import Verdict
from gymcp.envs import EnvSpec, load_env, load_spec
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.spec import FileState, Mask
from gymcp.mcp_servers.workspaces.digester import find_unused_masks
from gymcp.types import Suite, Task

TOOL = "\n    def {}\n\n    def transfer("
"""A further tool of the bank, before its last one."""


class Diary:
    """Writes the time into a file, as some programs do."""

    def note(self) -> str:
        """Note the time."""
        Path("day.log").write_text(str(time.time()))
        return "noted"


def bank_with(*tools: str, folder: Path) -> Path:
    file = folder / "shop.py"
    text = BANK.read_text()
    for tool in tools:
        text = text.replace("\n    def transfer(", TOOL.format(tool))
    file.write_text(text)
    return file


def tools_check(file: object, *options: str) -> tuple[int, bool, str]:
    done = gymcp("check", file, "--json", *options)
    check = json.loads(done.stdout)["checks"]["tools"]
    return done.returncode, check["passed"], check["detail"]


def judge_tools(file: Path) -> Verdict:
    """The verdict on the tools alone, without the other checks of the command."""
    return judge_unused_tools(asyncio.run(try_unused_tools(load_env(load_spec(str(file))), get_sandbox("bwrap"))))


def test_a_tool_without_gold_is_named_and_called_once(tmp_path: Path) -> None:
    file = bank_with("total(self) -> int:\n        return sum(self.accounts.values())", folder=tmp_path)
    code, passed, detail = tools_check(file)
    assert (code, passed) == (0, True), detail
    assert detail.startswith("gold never calls 2 of 3 tools: balance, total; called once each: ")
    assert judge_tools(file).detail == detail  # seeded


def test_a_tool_with_a_defect_fails_the_command(tmp_path: Path) -> None:
    code, passed, detail = tools_check(bank_with("total(self) -> int:\n        return self.accountz", folder=tmp_path))
    assert (code, passed) == (1, False)
    assert detail.startswith("1 have a defect: total: AttributeError: ")


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        (
            "total(self) -> int:\n        return sum(self.accountz.values())",
            "total: AttributeError: 'Bank' object has no attribute 'accountz'",
        ),
        ("total(self) -> int:\n        return totl", "total: NameError: name 'totl' is not defined"),
        ("total(self, least: int) -> int:\n        return 'x' + least", "total: TypeError: can only concatenate str"),
        (
            "total(self) -> int:\n        __import__('gymcp_no_such_package')\n        return 1",
            "total: ModuleNotFoundError: No module named 'gymcp_no_such_package'",
        ),
        ("total(self) -> int:\n        return 'many'", "total: Tool 'total' returned something else than it declares"),
        ("total(self) -> int:\n        import os\n        os._exit(3)", "total: server 'bank': tool 'total': "),
    ],
)
def test_a_tool_with_a_defect_fails_the_check(tool: str, says: str, tmp_path: Path) -> None:
    verdict = judge_tools(bank_with(tool, folder=tmp_path))
    assert not verdict.passed
    assert verdict.detail.startswith(f"1 have a defect: {says}")
    assert "gold never calls 2 of 3 tools: balance, total" in verdict.detail


@pytest.mark.parametrize(
    "tool",
    [
        "total(self, owner: str) -> int:\n        return self.accounts[owner + '?']",
        "total(self) -> int:\n        raise ToolError('the bank is closed')",
    ],
)
def test_an_answer_that_made_up_arguments_may_cause_is_no_defect(tool: str, tmp_path: Path) -> None:
    verdict = judge_tools(bank_with(tool, folder=tmp_path))
    assert verdict.passed
    assert "answered with an error, such as " in verdict.detail


def test_nothing_is_called_without_a_sandbox(tmp_path: Path) -> None:
    file = bank_with("total(self) -> int:\n        return self.accountz", folder=tmp_path)
    code, passed, detail = tools_check(file, "--sandbox", "none")
    assert (code, passed) == (0, True)
    assert detail == "gold never calls 2 of 3 tools: balance, total; 2 not called: nothing is confined"


def test_a_class_that_imports_a_package_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    text = BANK.read_text().replace("return self.accounts[owner]", "return int(numpy.int64(self.accounts[owner]))")
    file.write_text(text.replace("from gymcp.envs", "import numpy\nfrom gymcp.envs", 1))
    done = gymcp("check", file)
    assert (done.returncode, done.stdout, len(errors(done.stderr))) == (2, "", 1), done.stderr
    assert "shop.py:" in done.stderr
    assert "class 'Bank' imports numpy, and a native server has only Python's standard library and the " in done.stderr
    assert "native_server(..., packages=locked_packages(NAME, 'PACKAGE==VERSION', lock=LOCK))" in done.stderr


def test_a_mask_of_what_only_such_a_tool_writes_is_known_to_have_an_effect() -> None:
    """Otherwise `gymcp check` would have the author remove a mask that the world needs."""
    mask = Mask(files="*.log", kind="regex", pattern="[0-9]+")
    state = FileState(masks=(mask, "*.tmp"))
    server = replace(native_server("diary", Diary), state=state)
    suite = Suite(name="diary", version="1", tasks=(Task(id="rest", prompts=("Do nothing.",)),))
    env = load_env(EnvSpec(name="diary", servers=(server,), suite=suite, grade=final_state_equals()))
    found = asyncio.run(try_unused_tools(env, get_sandbox("bwrap")))
    assert [trial.ending for trial in found.trials] == ["answered"]
    assert find_unused_masks("diary", state) == ["'*.tmp' (ignore)"]
