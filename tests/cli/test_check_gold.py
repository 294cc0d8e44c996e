"""`gymcp check` fails an environment if no gold call of a task succeeds, though the grader is content."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runner import gymcp
from own_programs import write_kv
from records import episode, step

from gymcp.cli.servers.tool_checks import judge_gold
from gymcp.types import Step, Suite, Task, ToolResult

SEATS = '''
from wire import serve


def book(seat):
    """Book a seat."""
    assert seat in ("12A", "12B"), f"no seat {seat}"
    return "booked"


serve(book)
'''
SHOP = '''
from gymcp.envs import EnvSpec
from gymcp.evaluators.graders import answer_equals
from gymcp.mcp_servers.native.runtime import ToolError
from gymcp.mcp_servers.native.server import native_server
from gymcp.types import GoldTurn, Suite, Task, ToolCall


class Shop:
    def __init__(self, prices: dict[str, int]) -> None:
        self.prices = prices

    def price(self, article: str) -> int:
        """The price of an article."""
        if article not in self.prices:
            raise ToolError(f"no article '{article}'")
        return self.prices[article]


CALL = ToolCall(id="call_1", name="price", arguments={"article": "bred"})
TASK = Task(
    id="bread",
    prompts=("What does bread cost?",),
    initial_state={"prices": {"bread": 3}},
    target="3",
    gold=(GoldTurn(calls=(CALL,), final_text="3"),),
    last_necessary=(0, 1),
)
ENV = EnvSpec(
    name="shop",
    servers=(native_server("shop", Shop),),
    suite=Suite(name="shop", version="1", tasks=(TASK,)),
    grade=answer_equals(),
)
'''
WORKS = step(0)
FAILS = replace(step(1), results=(ToolResult(call_id="c1", content="no shoes", is_error=True),))
TASKS = (Task(id="a", prompts=("?",)), Task(id="b", prompts=("?",)))


def test_a_first_task_whose_call_fails_does_not_pass(tmp_path: Path) -> None:
    write_kv(tmp_path)
    (tmp_path / "seat_server.py").write_text(SEATS)
    made = gymcp("new", "seats", "--server", "python seat_server.py", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    done = gymcp("check", "seats.py", "--json", cwd=tmp_path)
    checks = json.loads(done.stdout)["checks"]
    failed = [name for name, check in checks.items() if not check["passed"]]
    assert (done.returncode, failed) == (1, ["oracle", "gold"]), done.stdout
    assert 'first: first: book({"seat": ' in checks["gold"]["detail"]
    assert "AssertionError('no seat " in checks["gold"]["detail"]


def test_gold_that_a_grader_does_not_look_at_is_judged_by_its_answers(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(SHOP)
    done = gymcp("check", file, "--json")
    checks = json.loads(done.stdout)["checks"]
    assert (done.returncode, [name for name, check in checks.items() if not check["passed"]]) == (1, ["gold"])
    assert checks["gold"]["detail"] == (
        "0/1 gold calls succeeded, in 1 of 1 tasks none; "
        'first: bread: price({"article": "bred"}): no article \'bred\'; '
        "give the task a call that succeeds or, if its calls are meant to fail, name it in Suite(gold_fails=...)"
    )
    file.write_text(SHOP.replace("tasks=(TASK,)", 'tasks=(TASK,), gold_fails=frozenset({"bread"})'))
    declared = gymcp("check", file)
    assert declared.returncode == 0, declared.stdout + declared.stderr


@pytest.mark.parametrize(
    ("a", "gold_fails", "passed", "detail"),
    [
        ((WORKS, step(1)), (), True, "3/3 gold calls succeeded"),
        ((WORKS, FAILS), (), True, '2/3 gold calls succeeded; first error: a: search({"q": "shoes 1"}): no shoes'),
        ((FAILS,), ("a",), True, '1/2 gold calls succeeded; first error: a: search({"q": "shoes 1"}): no shoes'),
        ((FAILS,), ("b",), False, '1/2 gold calls succeeded, in 1 of 2 tasks none; first: a: search({"q": "shoes 1"})'),
        ((WORKS,), ("a",), False, "2/2 gold calls succeeded; a is in Suite(gold_fails=...), and a call of its gold"),
        ((), (), True, "1/1 gold calls succeeded"),
    ],
)
def test_one_gold_call_of_each_task_succeeds_or_the_suite_says_that_none_does(
    a: tuple[Step, ...], gold_fails: tuple[str, ...], passed: bool, detail: str
) -> None:
    suite = Suite(name="s", version="1", tasks=TASKS, gold_fails=frozenset(gold_fails))
    plays = [replace(episode("a"), steps=a), replace(episode("b"), steps=(WORKS,))]
    verdict = judge_gold(suite, plays)
    assert (verdict.passed, verdict.detail[: len(detail)]) == (passed, detail)


def test_gold_without_calls_and_episodes_without_a_score_say_nothing() -> None:
    lost = replace(episode("a"), steps=(FAILS,), score=None)
    quiet = replace(episode("b"), steps=())
    assert not judge_gold(Suite(name="s", version="1", tasks=TASKS), [lost, quiet]).applies
