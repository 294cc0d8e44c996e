"""Episodes as lines for a terminal."""

from __future__ import annotations

from dataclasses import replace

from gymcp.cli.demo.episode_lines import cut_line, describe_episode, format_call, summarise_episode
from gymcp.types import Action, Message, Observation, Step, ToolCall, ToolResult, Trajectory

STATES = {"s0": {"open": True, "paid": 0}, "s1": {"open": False, "paid": 5}}


def episode(*, score: float | None = 1.0, reason: str = "", result: str = "done") -> Trajectory:
    call = ToolCall(id="1", name="close", arguments={"order": "A1"})
    asked = Observation(messages=(Message(role="user", content="Close\norder A1."),), tools=())
    steps = (
        Step(
            turn=0,
            observation=asked,
            action=Action(tool_calls=(call,)),
            results=(ToolResult(call_id="1", content=result),),
            state_ref="s1",
        ),
        Step(turn=0, observation=Observation(messages=(), tools=()), action=Action(text="Closed."), state_ref="s1"),
    )
    return Trajectory(id="e", env="shop", task="close_A1", steps=steps, initial_key="s0", score=score, reason=reason)


def test_every_message_call_result_and_change_has_a_line() -> None:
    assert describe_episode(episode(), STATES.__getitem__, width=80, most=20) == [
        "  user    Close order A1.",
        '  call    close(order="A1")',
        "  result  done",
        "  world   open: true -> false",
        "  world   paid: 0 -> 5",
        "  agent   Closed.",
        "  score   1",
    ]


def test_text_beyond_the_width_is_cut_and_counted() -> None:
    long = episode(score=0.0, reason="x" * 100, result="y" * 100)
    lines = describe_episode(long, STATES.__getitem__, width=40, most=3)
    assert lines[2] == "  result  " + "y" * 27 + "..."
    assert lines[3] == "          ... 3 more lines"
    assert lines[4] == "  score   0: " + "x" * 24 + "..."
    assert max(map(len, lines)) == 40


def test_a_request_of_the_user_has_a_few_lines() -> None:
    asked = episode()
    first = asked.steps[0]
    message = Message(role="user", content="word " * 40)
    asked = replace(asked, steps=(replace(first, observation=Observation(messages=(message,), tools=())),))
    lines = describe_episode(asked, STATES.__getitem__, width=40, most=20)
    assert lines[:3] == [
        "  user    word word word word word word",
        "          word word word word word word",
        "          word word word word word ...",
    ]


def test_a_long_place_in_the_world_is_shown_by_its_end() -> None:
    states = {"s0": {"root": {"a": {"b": {"c": 1}}}}, "s1": {"root": {"a": {"b": {"d": 2}}}}}
    lines = describe_episode(episode(), states.__getitem__, width=80, most=20)
    assert lines[3:5] == ["  world   ...a.b.c - 1", "  world   ...a.b.d + 2"]


def test_states_that_are_not_recorded_have_no_line() -> None:
    lines = describe_episode(episode(), dict[str, object]().__getitem__, width=80, most=20)
    assert not any("world" in line for line in lines)


def test_an_episode_on_one_line_names_its_calls_or_its_failure() -> None:
    assert summarise_episode(episode(), 80).split() == ["close_A1", "score", "1", "1", "call", "close"]
    failed = summarise_episode(episode(score=0.0, reason="open is true"), 80)
    assert failed.endswith("score 0    1 call  open is true")
    assert "no score" in summarise_episode(episode(score=None, reason="died"), 80)
    assert len(summarise_episode(episode(score=0.0, reason="z" * 200), 80)) == 80


def test_text_of_servers_stays_on_its_line_and_acts_on_nothing() -> None:
    lines = describe_episode(episode(result="a\x1b[2J\nb"), STATES.__getitem__, width=80, most=20)
    assert lines[2] == "  result  a\\u001b[2J b"


def test_calls_are_written_as_code() -> None:
    assert format_call(ToolCall(id="1", name="f", arguments='{"a": ')) == 'f({"a": )'
    assert format_call(ToolCall(id="1", name="f")) == "f()"


def test_a_short_line_is_left_as_it_is() -> None:
    assert cut_line("abc", 3) == "abc"
    assert cut_line("abcd", 3) == "..."
