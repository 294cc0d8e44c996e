"""`gymcp check` calls the tools that no gold calls: a defect in one of them shows in no gate."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp
from said import errors

TOOL = "\n    def {}\n\n    def transfer("
"""A further tool of the bank, before its last one."""


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


def test_a_tool_without_gold_is_named_and_called_once(tmp_path: Path) -> None:
    file = bank_with("total(self) -> int:\n        return sum(self.accounts.values())", folder=tmp_path)
    code, passed, detail = tools_check(file)
    assert (code, passed) == (0, True), detail
    assert detail.startswith("gold never calls 2 of 3 tools: balance, total; called once each: ")
    assert tools_check(file) == (code, passed, detail)  # seeded


DEFECTS = {
    "attribute(self) -> int:\n        return sum(self.accountz.values())": (
        "attribute: AttributeError: 'Bank' object has no attribute 'accountz'"
    ),
    "exits(self) -> int:\n        import os\n        os._exit(3)": "exits: server 'bank': tool 'exits': ",
    "misspelt(self) -> int:\n        return totl": "misspelt: NameError: name 'totl' is not defined",
    "module(self) -> int:\n        __import__('gymcp_no_such_package')\n        return 1": (
        "module: ModuleNotFoundError: No module named 'gymcp_no_such_package'"
    ),
    "text(self, least: int) -> int:\n        return 'x' + least": "text: TypeError: can only concatenate str",
    "undeclared(self) -> int:\n        return 'many'": (
        "undeclared: Tool 'undeclared' returned something else than it declares"
    ),
}
"""Tool -> how the check names its defect."""


def test_tools_with_defects_fail_the_check(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """The server that a tool ends is lost to none of the tools after it."""
    code, passed, detail = tools_check(bank_with(*DEFECTS, folder=tmp_path))
    assert (code, passed) == (1, False)
    assert "gold never calls 7 of 8 tools: attribute, balance, exits, misspelt, module, text, undeclared" in detail
    assert detail.startswith("6 have a defect: ")
    for says in DEFECTS.values():
        with subtests.test(says):
            assert re.search(rf"(defect: |; ){re.escape(says)}", detail)


def test_an_answer_that_made_up_arguments_may_cause_is_no_defect(tmp_path: Path) -> None:
    key = "key(self, owner: str) -> int:\n        return self.accounts[owner + '?']"
    closed = "closed(self) -> int:\n        raise ToolError('the bank is closed')"
    code, passed, detail = tools_check(bank_with(key, closed, folder=tmp_path))
    assert (code, passed) == (0, True)
    assert "2 answered with an error, such as closed: " in detail


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
