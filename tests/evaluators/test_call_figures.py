"""Figures on tool calls, and the metrics computed from them."""

from __future__ import annotations

import pytest
from trajectories import call, call_step, near, text_step

from gymcp.evaluators.metrics import CallFigures, CallRates, GoldFigures, Mean, examine, measure
from gymcp.evaluators.metrics.measure import axes_of
from gymcp.evaluators.report.sections import effort_rows
from gymcp.evaluators.statistics import mean_ci95, wilson
from gymcp.outcome import Outcome
from gymcp.store import EpisodeRow
from gymcp.types import GoldTurn, Json, Step, Task, Tool, ToolCall, Trajectory, Usage

PAY = Tool(
    name="pay",
    input_schema={
        "properties": {"order": {"type": "integer"}, "by": {"type": ["string", "null"]}, "note": {"enum": ["x"]}},
        "required": ["order"],
        "additionalProperties": False,
    },
)
ANYTHING = Tool(name="look", input_schema={"properties": "none", "required": 7})
TOOLS = (PAY, ANYTHING)
GOLD = Task(
    id="a",
    prompts=("go", "on"),
    gold=(GoldTurn(calls=(call("find", id=7), call("pay", order=7, by="card"))), GoldTurn(calls=(call("end"),))),
)


def episode(*steps: Step, id: str = "1") -> Trajectory:
    return Trajectory(id=id, env="e", task="a", steps=steps)


@pytest.mark.parametrize(
    ("made", "invalid"),
    [
        (call("pay", order=7), False),
        (call("pay", order=7.0, by=None, note=1), False),
        (call("pay", order=7.5), True),
        (call("pay", order=True), True),
        (call("pay", order="7"), True),
        (call("pay", by="card"), True),
        (call("pay", order=7, tip=1), True),
        (call("pay", order=7, by=1), True),
        (call("look", anything=[1]), False),
        (call("fly"), True),
        (ToolCall(id="1", name="pay", arguments='{"order": 7}'), False),
        (ToolCall(id="1", name="pay", arguments='{"order": 7'), True),
        (ToolCall(id="1", name="pay", arguments={"order": 7}, parse_error="no closing tag"), True),
    ],
)
def test_invalid_calls_are_those_that_no_world_could_serve(made: ToolCall, invalid: bool) -> None:
    assert examine(episode(call_step(made, tools=TOOLS))).invalid == invalid


def test_a_redundant_call_was_made_before_in_the_same_world() -> None:
    look, pay = call("look", "1"), call("pay", "2", order=7)
    worlds: list[Step] = [
        call_step(look, tools=TOOLS, world_key="w0", state_ref="s0"),
        call_step(look, tools=TOOLS, world_key="w0", state_ref="s0"),  # redundant
        call_step(pay, tools=TOOLS, world_key="w1", state_ref="s1"),
        call_step(look, tools=TOOLS, world_key="w1", state_ref="s1"),  # the world is another
    ]
    assert examine(episode(*worlds)).redundant == 1
    unknown = [call_step(look, tools=TOOLS, world_key=f"history {n}") for n in range(3)]
    assert examine(episode(*unknown)).redundant == 2


def test_needed_tools_count_as_offered_once_they_were_listed() -> None:
    """Gold needs find, pay and end; only pay was on offer."""
    figures = examine(episode(call_step(call("fly"), tools=TOOLS), text_step("done")), GOLD)
    assert figures.gold is not None
    assert figures.gold.offered == near(1 / 3)


def test_failed_calls_are_errors_and_without_gold_there_is_no_comparison() -> None:
    figures = examine(episode(call_step(call("fly"), failed=True, tools=TOOLS), text_step("done")))
    assert figures == CallFigures(made=1, errors=1, invalid=1, redundant=0, gold=None)
    assert examine(episode(), Task(id="a", prompts=())).gold is None


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ((call("find", id=7), call("pay", order=7, by="card"), call("end")), (1.0, 1.0, None)),
        ((call("pay", order=7, by="card"), call("end"), call("find", id=7)), (1.0, 1.0, None)),
        ((call("find", id=7), call("pay", order=8, by="card")), (0.8, 0.75, 2)),
        ((call("find", id=7),), (0.5, 1.0, 2)),  # then something was missing
        ((call("find", id=7), call("find", "2", id=7)), (0.4, 1.0, 2)),
        ((call("fly"),), (0.0, None, 1)),
        ((), (0.0, None, 1)),
    ],
)
def test_calls_are_compared_with_gold(made: tuple[ToolCall, ...], expected: tuple[Json, ...]) -> None:
    selection, parameters, first_error = expected
    assert examine(episode(call_step(*made)), GOLD).gold == GoldFigures(
        wanted=3,
        turns=2,
        selection=near(selection),
        parameters=None if parameters is None else near(parameters),
        first_error=first_error,
        offered=0.0,  # these steps were shown no tools
    )


def row(id: str, score: float | None, seconds: float = 0.0, **usage: Json) -> EpisodeRow:
    outcome = Outcome.SCORED if score is not None else Outcome.ENV_INFRA
    return EpisodeRow(
        id=id, env="e", task=f"task {id}", score=score, outcome=outcome, steps=4, usage=Usage(agent_s=seconds, **usage)
    )


def gold(selection: float, parameters: float | None, first_error: int | None) -> GoldFigures:
    return GoldFigures(wanted=3, turns=2, selection=selection, parameters=parameters, first_error=first_error)


def test_the_radar_matches_figures_by_hand() -> None:
    rows = [row("won", 1.0, seconds=25.0), row("lost", 0.0, seconds=1.0), row("broke", None), row("free", 1.0)]
    calls = {
        "won": CallFigures(made=6, errors=1, invalid=1, redundant=2, gold=gold(2 / 3, 1.0, 4)),
        "lost": CallFigures(made=2, errors=1, invalid=0, redundant=0, gold=gold(0.4, None, 1)),
        "broke": CallFigures(made=9, errors=9, invalid=9, redundant=9, gold=gold(0.0, None, 1)),
        "free": CallFigures(made=0, errors=0, invalid=0, redundant=0, gold=None),
    }
    metrics = measure(rows, calls)
    assert metrics.calls == CallRates(made=8, error_rate=0.25, invalid_rate=0.125, redundant_rate=0.25)
    radar = metrics.radar
    assert radar is not None
    assert radar.accuracy == Mean(value=0.5, ci95=wilson(1, 2), episodes=2)
    assert radar.selection.value == pytest.approx((2 / 3 + 0.4) / 2)
    assert radar.parameters == Mean(value=1.0, ci95=wilson(1, 1), episodes=1)
    assert radar.efficiency.value == 0.5  # three gold calls, six made; the lost episode does not count
    assert radar.speed.value == 0.5  # 5 s for each of three gold calls and two user turns: 25 s
    assert radar.first_error.value == 0.5  # one made all three gold calls first, the other none


def test_without_calls_or_gold_there_is_no_radar() -> None:
    assert (measure([row("a", 1.0)]).calls, measure([row("a", 1.0)]).radar) == (None, None)
    looked = {"a": CallFigures(made=0, errors=0, invalid=0, redundant=0, gold=None)}
    found = measure([row("a", 1.0)], looked)
    assert found.radar is None
    assert found.calls == CallRates(made=0, error_rate=None, invalid_rate=None, redundant_rate=None)


def test_effort_is_of_scored_episodes_and_the_cost_of_a_pass_includes_failures() -> None:
    rows = [row("a", 1.0, cost=2.0), row("b", 0.0, cost=4.0), row("c", None, cost=100.0)]
    effort = measure(rows).effort
    assert (effort["cost"].mean.value, effort["cost"].mean.episodes, effort["cost"].per_pass) == (3.0, 2, 6.0)
    assert effort["steps"].mean.value == 4.0
    lost = measure([row("b", 0.0, cost=4.0)]).effort["cost"]
    assert (lost.per_pass, lost.mean.ci95) == (None, None)
    assert measure([]).effort["cost"].mean == Mean(value=None, ci95=None, episodes=0)


def test_costs_of_calls_stand_beside_success() -> None:
    rows = [row("a", 1.0), row("b", 0.0), row("c", None)]
    spent = {"a": {"risk": 1.0, "money": 0.0}, "b": {"risk": 0.5, "money": 0.0}, "c": {"risk": 9.0, "money": 9.0}}
    calls = {id: CallFigures(made=1, errors=0, invalid=0, redundant=0, gold=None, costs=spent[id]) for id in spent}
    metrics = measure(rows, calls)
    risk = metrics.effort["cost/risk"]
    assert (risk.mean.value, risk.mean.episodes, risk.per_pass) == (0.75, 2, 1.5)
    shown = {cells[0]: (cells[1], cells[3]) for cells in effort_rows(metrics)}
    assert shown == {"steps": ("4", "8"), "risk of calls": ("0.75", "1.5")}  # a tool that cost nothing has no row


def test_flakes_and_noise_come_from_repeated_trials() -> None:
    rows = [EpisodeRow(id=f"{n}", env="e", task="a", trial=n, score=float(n % 2)) for n in range(4)]
    found = measure(rows)
    assert found.flake == {"a": pytest.approx(2 / 3)}
    assert found.noise_floor is not None
    assert measure(rows[:1]).noise_floor is None


@pytest.mark.parametrize(
    ("tags", "axes"),
    [
        (("refund", "level 3", "split seeds", "long"), ["category", "difficulty", "split", "tag"]),
        (("level 3", "refund"), ["difficulty", "category"]),
        (("server git", "difficulty hard"), ["server", "difficulty"]),
        (("levels",), ["category"]),
        ((), []),
    ],
)
def test_the_first_word_of_a_tag_gives_its_axis(tags: tuple[str, ...], axes: list[str]) -> None:
    assert [axis for axis, _ in axes_of(tags)] == axes


def test_each_axis_has_its_own_breakdown() -> None:
    rows = [
        EpisodeRow(id=str(n), env="e", task=str(n), score=float(n < 1), tags=("refund", f"level {n}")) for n in range(2)
    ]
    found = measure(rows).breakdowns
    assert {axis: list(parts) for axis, parts in found.items()} == {"category": ["refund"], "difficulty": ["0", "1"]}
    assert found["category"]["refund"].ci95 == mean_ci95({"0": [1.0], "1": [0.0]})
