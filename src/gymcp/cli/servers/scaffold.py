"""Environments over a Python class: the file that `gymcp new NAME` writes without a server, and its test."""

from __future__ import annotations

import keyword
from pathlib import Path

from gymcp.atomic import create_atomically
from gymcp.errors import ConfigError

_ENVIRONMENT = '''\
"""{name}: tasks over a class of one's own. Try: gymcp check {file}"""

from gymcp import GoldTurn, Suite, Task, ToolCall
from gymcp.envs import EnvSpec
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers import ToolError, native_server


class {cls}:
    """The server: public methods are its tools, public attributes its state. Only this class enters the sandbox."""

    def __init__(self, items: dict[str, bool]) -> None:
        self.items = items

    def list_items(self) -> dict[str, bool]:
        """All items, and whether each is done."""
        return self.items

    def add_item(self, text: str) -> str:
        """Put a new item on the list."""
        if text in self.items:
            raise ToolError(f"{{text}} is on the list already")
        self.items[text] = False
        return "added"

    def finish_item(self, text: str) -> str:
        """Mark an item of the list as done."""
        if text not in self.items:
            raise ToolError(f"{{text}} is not on the list; have {{', '.join(self.items)}}")
        self.items[text] = True
        return "done"


START = {{"water the plants": False, "call Ann": True}}


def add(text: str) -> Task:
    """The user wants one more item on the list."""
    return Task(
        id=f"add_{{text.replace(' ', '_')}}",
        prompts=(f"Please put '{{text}}' on my list.",),
        initial_state={{"items": START}},
        target={{"items": {{**START, text: False}}}},
        gold=(GoldTurn(calls=(call("add_item", text),), final_text="It is on your list."),),
        last_necessary=(0, 0),
    )


def finish(text: str) -> Task:
    """The user has done an item of the list."""
    return Task(
        id=f"finish_{{text.replace(' ', '_')}}",
        prompts=(f"I have done '{{text}}'. Please mark it.",),
        initial_state={{"items": START}},
        target={{"items": {{**START, text: True}}}},
        gold=(GoldTurn(calls=(call("finish_item", text),), final_text="It is marked as done."),),
        last_necessary=(0, 0),
    )


def call(tool: str, text: str) -> ToolCall:
    return ToolCall(id="call_1", name=tool, arguments={{"text": text}})


ENV = EnvSpec(
    name="{name}",
    description="A list of things to do.",
    servers=(native_server("{server}", {cls}),),
    suite=Suite(name="{name}", version="1", tasks=(add("buy milk"), add("write to Bob"), finish("water the plants"))),
    grade=final_state_equals(),
)
'''
_TEST = '''\
"""Tests of the environment in {file}: its class, and the checks of gymcp."""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from {module} import ENV, {cls}  # noqa: E402


def test_an_item_is_added_and_finished() -> None:
    world = {cls}(items={{}})
    world.add_item("buy milk")
    world.finish_item("buy milk")
    assert world.items == {{"buy milk": True}}


def test_every_task_has_gold() -> None:
    assert [task.id for task in ENV.suite.tasks if not task.gold] == []


def test_the_environment_can_be_trusted() -> None:
    """Gold scores 1, no action scores 0, every reset is clean, and no server sees the gold."""
    command = [sys.executable, "-m", "gymcp.cli", "check", str(Path(__file__).with_name("{file}"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
'''


def write_scaffold(name: str, file: Path) -> tuple[str, ...]:
    """Write an environment over a class, and its test beside it; return what was written, in words.

    Raises ConfigError if the test is there already.
    """
    module = file.stem
    if not module.isidentifier() or keyword.iskeyword(module):
        raise ConfigError(
            f"new: name '{name}': without a server it names a Python module too: letters, digits and _ only, no digit "
            "first; or give a server: --server LINE"
        )
    test = file.with_name(f"test_{file.name}")
    if test.exists():
        raise ConfigError(f"new: {test} is there already; choose another name, or remove it")
    words = {"name": name, "file": file.name, "module": module, "cls": class_name(module), "server": name}
    create_atomically(file, _ENVIRONMENT.format(**words).encode())
    create_atomically(test, _TEST.format(**words).encode())
    return (f"wrote {file} and {test}: a class with 3 tools, 3 tasks and a test",)


def class_name(module: str) -> str:
    """Name for a class: ``todo_list`` is ``TodoList``."""
    name = "".join(part[:1].upper() + part[1:] for part in module.split("_"))
    reserved = {"EnvSpec", "GoldTurn", "Suite", "Task", "ToolCall", "ToolError"}
    return f"{name}World" if name in reserved or not name.isidentifier() or keyword.iskeyword(name) else name
