from __future__ import annotations

from collections import Counter

import pytest

from gymcp.envs import load_env
from gymcp.envs.catalog.backoffice import ENV
from gymcp.envs.suites.backoffice import FAMILIES, HELD_OUT_FAMILIES, LEVELS, SPLITS, make_suite, make_tasks
from gymcp.envs.suites.backoffice.wordings import VERBS, wordings
from gymcp.mcp_servers.native.runtime import ToolError
from gymcp.mcp_servers.programs.backoffice.company import HELD_OUT_LAST, POLICIES, make_tables
from gymcp.mcp_servers.programs.backoffice.server import Backoffice
from gymcp.types import Task

SUITE = make_suite()


def split_of(task: Task) -> str:
    return task.tags[2].removeprefix("split ")


def test_there_are_ten_families_at_five_levels_in_four_splits() -> None:
    cells = Counter(task.tags for task in SUITE.tasks)
    assert (len(FAMILIES), len(HELD_OUT_FAMILIES), LEVELS) == (8, 2, (1, 2, 3, 4, 5))
    assert {split for _, _, split in cells} == {f"split {split}" for split in SPLITS}
    assert set(cells.values()) == {4, 8}


def test_the_same_arguments_make_the_same_tasks() -> None:
    again = {task.id: task for task in make_suite().tasks}
    assert {task.id: task for task in SUITE.tasks} == again


def test_there_is_no_last_task() -> None:
    (late,) = make_tasks("train", families=["refund"], levels=[5], count=1, first=12_345)
    (early,) = make_tasks("train", families=["refund"], levels=[5], count=1)
    assert late.initial_state != early.initial_state


def test_no_test_split_shares_a_company_with_training() -> None:
    trained = {task.initial_state["seed"] for task in make_tasks("train", count=30)}
    assert not trained & {task.initial_state["seed"] for task in SUITE.tasks}


@pytest.mark.parametrize("family", VERBS)
def test_a_family_has_thirty_wordings_of_which_eight_are_held_out(family: str) -> None:
    seen, unseen = ({*wordings(family, 1, held_out=held_out)} for held_out in (False, True))
    assert len(seen | unseen) >= 30
    assert len(unseen) >= 8
    assert not seen & unseen


def test_only_the_split_of_values_asks_about_held_out_people() -> None:
    for task in [*SUITE.tasks, *make_tasks("train", count=10)]:
        named = any(f" {name}" in task.prompts[0].split("\n")[-1] for name in HELD_OUT_LAST)
        assert not named or split_of(task) == "values"


def test_tables_have_hundreds_of_rows() -> None:
    tables = make_tables(7)
    assert {
        name: len(rows) >= 100 for name, rows in tables.items() if name not in ("policies", "notes")
    } == dict.fromkeys(
        ("customers", "products", "employees", "articles", "orders", "items", "payments", "shipments", "tickets"), True
    )
    assert set(tables["policies"]) == set(POLICIES)


def test_no_answer_that_is_always_given_is_right_often() -> None:
    """An agent that never reads can at best do nothing and say the commonest answer: that must solve less than 5 %."""
    idle = Counter(task.target["answer"] for task in SUITE.tasks if not task.target["state"]["changes"])
    assert idle.most_common(1)[0][1] < 0.05 * len(SUITE.tasks)


def test_levels_ask_for_more_and_more() -> None:
    calls = {
        level: sum(len(task.gold[0].calls) for task in SUITE.tasks if task.tags[1] == f"level {level}")
        for level in LEVELS
    }
    words = {
        level: sum(len(task.prompts[0]) for task in SUITE.tasks if task.tags[1] == f"level {level}") for level in LEVELS
    }
    assert sorted(calls, key=lambda level: calls[level]) == [1, 2, 3, 4, 5]
    assert words[1] < words[3] < words[4] < words[5]


def test_the_prompt_does_not_contain_the_answer() -> None:
    for task in SUITE.tasks:
        answer = task.target["answer"]
        if task.tags[0] in ("contact", "amount", "parcel") and answer != "done":
            assert answer not in task.prompts[0]


def test_a_change_that_is_undone_is_no_difference() -> None:
    office = Backoffice(3)
    before = make_tables(3)["customers"]["C001"]["city"]
    office.set_city("C001", "Elsewhere")
    assert set(office.changes) == {"customers/C001"}
    office.set_city("C001", before)
    assert office.changes == {}


@pytest.mark.parametrize(
    ("call", "arguments", "says"),
    [
        ("get_order", {"order": "O999"}, "no order O999"),
        ("set_tier", {"customer": "C001", "tier": "iron"}, "a tier is bronze, silver or gold"),
        ("add_credit", {"customer": "C001", "amount": 0}, "the amount must be positive"),
        ("get_payment", {"order": ""}, "no payment Y"),
    ],
)
def test_an_impossible_call_is_a_tool_error(call: str, arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ToolError, match=says):
        getattr(Backoffice(3), call)(**arguments)


def test_the_environment_offers_between_15_and_25_tools() -> None:
    tools = [name for name, part in vars(Backoffice).items() if callable(part) and not name.startswith("_")]
    assert 15 <= len(tools) <= 25
    assert load_env(ENV).suite.name == "backoffice"
