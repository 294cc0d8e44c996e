"""The events of an episode, and the texts that reports, the viewer's search and judges make of them."""

from __future__ import annotations

from dataclasses import replace

from trajectories import call, call_step, episode, text_step

from gymcp.evaluators.judge import Point, Rubric, question
from gymcp.evaluators.report.sections import transcript as report_transcript
from gymcp.evaluators.transcript import (
    AnswerEvent,
    CallEvent,
    MessageEvent,
    ResultEvent,
    UserActEvent,
    conversation,
    events,
)
from gymcp.evaluators.viewer.index import transcript as search_transcript
from gymcp.types import Message, Observation, ToolResult, Trajectory, UserToolCalls

PAY, RING = call("pay", order=7), call("ring")
ASK = Message(role="user", content="pay order 7")
USER_ACT = UserToolCalls(calls=(RING,), results=(ToolResult(call_id=RING.id, content="rang", is_error=True),))


def paid_episode() -> Trajectory:
    """An episode of a request, a call, a tool message with its result, an act of the user and an answer."""
    first = replace(call_step(PAY), observation=Observation(messages=(ASK,), tools=()), user_acts=(USER_ACT,))
    second = replace(
        text_step("done"), observation=Observation(messages=(Message(role="tool", content="ok"),), tools=())
    )
    return episode(first, second)


def test_events_come_in_order_and_results_come_once() -> None:
    record = paid_episode()
    assert list(events(record)) == [
        [
            MessageEvent(ASK),
            AnswerEvent("", has_calls=True),
            CallEvent(PAY),
            ResultEvent(record.steps[0].results[0]),
            UserActEvent(USER_ACT),
        ],
        [AnswerEvent("done", has_calls=False)],
    ]


def test_a_conversation_holds_what_the_agent_read_and_said() -> None:
    record = paid_episode()
    assert list(conversation(record.steps)) == [
        ((ASK,), Message(role="assistant", content="", tool_calls=(PAY,))),
        ((Message(role="tool", content="ok"),), Message(role="assistant", content="done")),
    ]


def test_an_action_without_a_word_is_only_an_event_of_its_calls() -> None:
    assert AnswerEvent("", has_calls=True).is_only_calls
    assert not AnswerEvent("", has_calls=False).is_only_calls
    assert not AnswerEvent("so", has_calls=True).is_only_calls


def test_reports_search_and_judge_read_the_same_events() -> None:
    record = paid_episode()
    page = "".join(part.text for part in report_transcript(record))
    prompt = question(Rubric(name="r", version="1", text="t", points=(Point(id="p", text="paid"),)), record)
    for text in (page, search_transcript(record), prompt.messages[-1].content):
        places = [text.index(words) for words in ("pay order 7", "ok", "ring", "rang", "done")]
        assert places == sorted(places)
    assert search_transcript(record) == "\npay order 7\n\npay order 7\nok\nring \nrang\ndone"
