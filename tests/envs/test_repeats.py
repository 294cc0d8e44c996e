"""Gold that is played twice, and answers of two fresh starts: differences are found, volatile parts told apart."""

from __future__ import annotations

import pytest
from records import SEARCH, episode

from gymcp.agents.runner.tool_trials import Ending, ToolTrial, UnusedTools
from gymcp.cli.servers.tool_checks import judge_answers
from gymcp.envs.audit.repeats import AnswerDifference, AnswerPair, compare_plays, find_difference
from gymcp.mcp_servers.spec import FileState, ServerSpec

OPAQUE = ServerSpec(name="web")
FILES = ServerSpec(name="kv", state=FileState())


def differ(first: str, second: str) -> AnswerDifference | None:
    return find_difference(AnswerPair(tool="look", first=first, second=second))


@pytest.mark.parametrize(
    ("first", "second", "part"),
    [
        ("now 2026-11-23T04:40:01+00:00", "now 2026-11-23T04:40:09+00:00", "a time (2026-11-23T04:40:01+00:00)"),
        ("Mon Nov 23 04:32:15 UTC", "Mon Nov 23 04:32:59 UTC", "a time (04:32:15)"),
        ("it is 04:32", "it is 04:33", "a time (04:32)"),
        ("at 1763872801", "at 1763872809", "a time (1763872801)"),
        ("took 3.2 ms", "took 12 ms", "a duration (3.2 ms)"),
        ("in /tmp/tmpab12/x", "in /tmp/tmpcd34/x", "a temporary path (/tmp/tmpab12/x)"),
        ("<X at 0x7f01aa>", "<X at 0x7f02bb>", "a random id (0x7f01aa)"),
        (
            "id 123e4567-e89b-42d3-a456-426614174000",
            "id 123e4567-e89b-42d3-a456-42661417400f",
            "a random id (123e4567-e89b-42d3-a456-426614174000)",
        ),
    ],
)
def test_a_part_that_differs_at_any_time_is_named(first: str, second: str, part: str) -> None:
    assert differ(first, second) == AnswerDifference(tool="look", text=part, volatile=True)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ("visitor 1", "visitor 2", "'visitor 1', then 'visitor 2'"),
        ("", "late", "'', then 'late'"),
        ("a at 04:32:15", "b at 04:32:16", "'a at <a time>', then 'b at <a time>'"),
        ("x" * 50 + "yes" + "z" * 50, "x" * 50 + "no", f"'...{'x' * 30}yes{'z' * 27}...', then '...{'x' * 30}no'"),
    ],
)
def test_any_other_difference_is_quoted(first: str, second: str, text: str) -> None:
    assert differ(first, second) == AnswerDifference(tool="look", text=text, volatile=False)


def test_equal_answers_do_not_differ() -> None:
    assert differ("took 3 ms", "took 3 ms") is None


def test_two_plays_are_compared_by_score_and_end() -> None:
    states = {"one": {"cart": ["shoes"], "paid": False}, "two": {"cart": ["shoes"], "paid": True}}
    first = [
        episode("same", final_key="k"),
        episode("other", final_key="k1", final_state="one"),
        episode("worse", final_key="k"),
        episode("lost", final_key="k"),
        episode("alone"),
    ]
    second = [
        episode("same", final_key="k"),
        episode("other", final_key="k2", final_state="two"),
        episode("worse", final_key="k", score=0.5, reason="too dear"),
        episode("lost", score=None, outcome="env_infra", reason="it died"),
    ]
    found = compare_plays(first, second, states)
    assert (found.tasks, found.other_ends) == (
        4,
        (
            "lost: env_infra: it died",
            "other: paid is false, then true",
            "worse: scored 1, then 0.5: too dear",
        ),
    )
    assert found.answers[:2] == (
        AnswerPair(tool=SEARCH.name, first="found 0", second="found 0"),
        AnswerPair(tool=SEARCH.name, first="found 1", second="found 1"),
    )


def trial(tool: str, ending: Ending, text: str, again: str | None) -> ToolTrial:
    return ToolTrial(tool=tool, ending=ending, text=text, again=again)


def test_a_server_that_shows_no_state_is_judged_by_its_answers() -> None:
    unused = UnusedTools(
        servers={"get": "web", "roll": "web", "now": "web", "put": "kv"},
        trials=(
            trial("roll", "answered", "6", "3"),
            trial("now", "answered", "at 04:32:15", "at 04:32:16"),
            trial("put", "answered", "stored", None),
        ),
    )
    gold = (AnswerPair(tool="get", first="x", second="x"), AnswerPair(tool="put", first="1", second="2"))
    verdict = judge_answers((OPAQUE, FILES), gold, unused)
    assert (verdict.passed, verdict.applies) == (False, True)
    assert verdict.detail == (
        "2/3 calls of web had the same answer on two fresh starts; not of roll; first: roll: '6', then '3'; "
        "not compared: now: a time (04:32:15)"
    )


def test_answers_are_not_judged_if_every_server_shows_its_state_or_nothing_was_called() -> None:
    unused = UnusedTools(servers={"put": "kv", "get": "web"}, trials=(trial("get", "not called", "no", None),))
    seen = judge_answers((FILES,), (AnswerPair(tool="put", first="1", second="2"),), unused)
    silent = judge_answers((OPAQUE,), (), unused)
    assert [(each.passed, each.applies, each.detail) for each in (seen, silent)] == [
        (True, False, "not applicable: every server shows its state"),
        (True, False, "not applicable: no call of web was made"),
    ]
