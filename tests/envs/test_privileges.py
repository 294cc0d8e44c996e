"""Rules over tool calls: the rule that decides, the conditions it may have, and the result of a forbidden call."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from shop import ENV, TASK, call

from gymcp.agents.runner.rollout import Job, Rollout, rollout
from gymcp.agents.strategies.scripted import Replay, oracle
from gymcp.envs.spec import EnvSpec, load_env
from gymcp.envs.users import ScriptedUser
from gymcp.envs.worlds.tool_listing import list_tools
from gymcp.envs.wrappers.privileges import (
    Privileges,
    check_rules,
    enforce_privileges,
    find_blocked_gold,
    parse_privileges,
    read_privileges,
)
from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import Agent
from gymcp.types import Action, Json, Task

FORBID_PAY = {"effect": "forbid", "tools": ["pay_*"]}


def rules(*rows: Json, default: str = "allow") -> Privileges:
    return parse_privileges({"default": default, "rule": list(rows)}, "test")


def forbidden(privileges: Privileges, tool: str, /, **arguments: Json) -> bool:
    return privileges.decide(TASK, TASK.prompts, call(tool), arguments) is not None


def test_a_call_that_no_rule_applies_to_gets_the_default() -> None:
    assert not forbidden(rules(FORBID_PAY), "read_note", name="bill")
    assert forbidden(rules(default="forbid"), "read_note", name="bill")


def test_the_highest_priority_decides_and_among_equals_forbid() -> None:
    allow = {"effect": "allow", "tools": ["pay_bill"]}
    assert forbidden(rules(allow, FORBID_PAY), "pay_bill", to="x", amount=1)
    assert not forbidden(rules({**allow, "priority": 1}, FORBID_PAY), "pay_bill", to="x", amount=1)


def test_an_argument_must_meet_its_schema() -> None:
    small = rules(
        FORBID_PAY,
        {"effect": "allow", "priority": 1, "tools": ["pay_bill"], "arguments": {"amount": {"maximum": 20}}},
    )
    assert not forbidden(small, "pay_bill", to="x", amount=20)
    assert forbidden(small, "pay_bill", to="x", amount=21)


@pytest.mark.parametrize(
    ("places", "value", "allowed"),
    [
        (["prompt"], "grocer", True),
        (["prompt"], "GROCER", True),
        (["prompt"], "groc", False),  # a part of a word is not what was said
        (["prompt"], "", False),
        (["prompt"], "thief", False),
        (["/known/*"], "grocer", True),
        (["/known/*"], "groce", False),
        (["/notes"], "bill", True),  # a key counts, too
        (["in /notes/*"], "euros", True),
        (["in /notes/*"], "thief", False),
        (["/nowhere/*/at/all"], "grocer", False),
    ],
)
def test_a_known_value_is_the_user_s_or_the_world_s(places: Json, value: str, allowed: bool) -> None:
    known = {"effect": "allow", "priority": 1, "tools": ["pay_bill"], "known": {"to": places}}
    assert forbidden(rules(FORBID_PAY, known), "pay_bill", to=value, amount=1) is not allowed


def test_a_rule_may_ask_for_words_of_the_user_and_for_a_task() -> None:
    assert not forbidden(rules({**FORBID_PAY, "said": "(?i)never"}), "pay_bill", to="x", amount=1)
    assert forbidden(rules({**FORBID_PAY, "said": "(?i)PAY"}), "pay_bill", to="x", amount=1)
    assert not forbidden(rules({**FORBID_PAY, "tasks": "sell_*"}), "pay_bill", to="x", amount=1)


def play(spec: EnvSpec, actions: Agent) -> Rollout:
    def make(task: Task, seed: int) -> Agent:
        return actions

    job = Job(task=TASK, trial=0, seed=0)
    return asyncio.run(rollout(load_env(spec), get_sandbox("bwrap"), make, job, timeout_s=60))


def test_a_forbidden_call_reaches_no_server_and_the_agent_reads_why() -> None:
    played = play(enforce_privileges(ENV, rules({**FORBID_PAY, "message": "Ask first."})), oracle(TASK, 0))
    first, second, _ = played.trajectory.steps
    assert [result.content for result in (*first.results, *second.results)] == [
        "12 euros. Thank you!",
        "not allowed: Ask first.",
    ]
    assert second.results[0].is_error
    assert second.world_key == first.world_key
    assert (played.trajectory.outcome, played.trajectory.score) == (Outcome.SCORED, 0.0)


def test_terminate_ends_the_episode_graded_as_it_stands() -> None:
    played = play(enforce_privileges(ENV, rules({**FORBID_PAY, "fallback": "terminate"})), oracle(TASK, 0))
    assert len(played.trajectory.steps) == 2
    assert (played.trajectory.outcome, played.trajectory.score) == (Outcome.BUDGET_EXHAUSTED, 0.0)
    assert "not allowed: the privileges forbid this call of pay_bill" in played.trajectory.reason


class Trusting(ScriptedUser):
    async def confirm(self, question: str) -> bool:
        return "pay_bill" in question and "grocer" in question


@pytest.mark.parametrize(("user", "score"), [(ScriptedUser, 0.0), (Trusting, 1.0)])
def test_ask_leaves_the_decision_to_the_user_and_is_no_if_the_user_cannot_be_asked(
    user: type[ScriptedUser], score: float
) -> None:
    asked = replace(ENV, user=lambda task: user(task.prompts))
    played = play(enforce_privileges(asked, rules({**FORBID_PAY, "fallback": "ask"})), oracle(TASK, 0))
    assert played.trajectory.score == score


def test_a_tool_s_answer_does_not_become_known() -> None:
    known = {"effect": "allow", "priority": 1, "tools": ["pay_bill"], "known": {"to": ["prompt"]}}
    actions = Replay(
        iter(
            [
                Action(tool_calls=(call("pay_bill", 1, to="Nothing", amount=1),)),
                Action(tool_calls=(call("read_note", 2, name="other"),)),
                Action(tool_calls=(call("pay_bill", 3, to="Nothing", amount=1),)),
            ]
        )
    )
    steps = play(enforce_privileges(ENV, rules(FORBID_PAY, known)), actions).trajectory.steps
    assert [step.results[0].is_error for step in steps[:3]] == [True, False, True]


def test_blocked_gold_is_found_without_running_anything() -> None:
    assert [made.name for _, made in find_blocked_gold([TASK], rules(FORBID_PAY))] == ["pay_bill"]
    assert list(find_blocked_gold([TASK], rules())) == []


def test_rules_over_unknown_tools_arguments_or_tasks_are_refused() -> None:
    tools = asyncio.run(list_tools(load_env(ENV), get_sandbox("bwrap")))
    check_rules(rules({**FORBID_PAY, "known": {"to": ["prompt"]}, "tasks": "pay_*"}), tools, [TASK])
    with pytest.raises(ConfigError, match=r"rule 2: no tool 'send_\*'; have pay_bill, read_note"):
        check_rules(rules(FORBID_PAY, {"effect": "forbid", "tools": ["send_*"]}), tools, [TASK])
    with pytest.raises(ConfigError, match=r"tool 'pay_\*' has no argument 'iban'; have amount, to"):
        check_rules(rules({**FORBID_PAY, "arguments": {"iban": {}}}), tools, [TASK])
    with pytest.raises(ConfigError, match=r"rule 1: no task 'buy_\*'; the ids look like pay_the_grocer"):
        check_rules(rules({**FORBID_PAY, "tasks": "buy_*"}), tools, [TASK])


A_RULE = "[[rule]]\neffect = 'forbid'\ntools = ['a']\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rule = 3", "must be an array of tables"),
        ("[[rule]\n", "is not TOML"),
        ("[[rule]]\neffect = 'deny'\ntools = ['a']", "rule 1: effect must be one of allow, forbid, not 'deny'"),
        ("[[rule]]\neffect = 'forbid'", "rule 1: tools must be a list"),
        ("[[rule]]\neffect = 'forbid'\ntools = ['a']\nwhen = 1", "no key 'when'; have arguments, effect"),
        ("[[rule]]\neffect = 'forbid'\ntools = ['a']\narguments.x = {type = 'text'}", "arguments.x: not a JSON Schema"),
        (f"{A_RULE}arguments.x = {{ maximun = 5 }}", "arguments.x: not a JSON Schema: Unevaluated properties"),
        (f"{A_RULE}arguments.x = {{ anyOf = [{{ maximun = 5 }}] }}", "('maximun' was unexpected)"),
        (f"{A_RULE}arguments.x = {{ '$ref' = '#/nowhere' }}", "arguments.x: not a JSON Schema: $ref: it must stand by"),
        (f"{A_RULE}arguments.x = {{ items = {{ '$ref' = 'http://127.0.0.1/x' }} }}", "$ref: it must stand by itself"),
        (f"{A_RULE}arguments.x = {{ pattern = '(' }}", "arguments.x: not a JSON Schema: '(' is not a 'regex'"),
        (f"{A_RULE}arguments.x = {{ format = 'phone' }}", "arguments.x: not a JSON Schema: 'phone' is not one of"),
        (f"{A_RULE}arguments.x = {{ const = 2026-01-01 }}", "arguments.x: not a JSON Schema: Object of type date"),
        (f"{A_RULE}arguments.x = {{ maximum = nan }}", "arguments.x: not a JSON Schema: Out of range float"),
        ("", "has no rule, and allows what no rule applies to"),
        ("[[rule]]\neffect = 'forbid'\ntools = ['a']\nknown.x = ['results']", "'prompt', '/pointer'"),
        ("[[rule]]\neffect = 'forbid'\ntools = ['a']\nsaid = '('", "said: not a regular expression"),
        ("[[rule]]\neffect = 'forbid'\ntools = ['a']\npriority = 'high'", "priority must be a whole number"),
    ],
)
def test_an_invalid_file_is_refused_with_its_fault(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"rules\.toml") as refused:
        read_privileges(path)
    assert complaint in str(refused.value)


def test_a_format_is_a_condition() -> None:
    safe = rules({"effect": "forbid", "tools": ["pay_bill"], "arguments": {"to": {"not": {"format": "email"}}}})
    decided = [safe.decide(TASK, (), call("pay_bill", to=to), {"to": to}) is None for to in ("a@b.eu", "thief")]
    assert decided == [True, False]


def test_rules_survive_the_record_of_a_run() -> None:
    some = rules({**FORBID_PAY, "known": {"to": ["prompt"]}, "said": "x", "priority": 3, "fallback": "ask"})
    assert parse_privileges(some.to_row(), "run.json") == some
