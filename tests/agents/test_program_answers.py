"""The answers of a model to a program, told apart: steps, the agent's own contexts, and side calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from gymcp.agents.endpoint.tool_exchange import TurnEnded, WaitingCall
from gymcp.agents.policies.models import ChatModel
from gymcp.agents.programs.exchange import Exchange
from gymcp.agents.programs.requests import ModelRequest
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.outcome import Outcome
from gymcp.types import (
    Action,
    Decision,
    GiveUp,
    Json,
    Message,
    ModelUsage,
    Observation,
    Sampled,
    Sampling,
    Tool,
    ToolCall,
)

PAY, HELP = Tool(name="pay"), Tool(name="ask_helper")


class Scripted:
    """A chat policy with prepared answers; the tokens of the answer number n are (n,)."""

    def __init__(self, *answers: Action) -> None:
        self._answers = list(answers)
        self._count = 0

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        number, self._count = self._count, self._count + 1
        sampled = Sampled(prompt_ids=(), ids=(number,), logprobs=(0.0,), versions=())
        spent = ModelUsage(model="m", prompt_tokens=10, completion_tokens=1)
        return Decision(action=self._answers[number], sampled=sampled, spent=spent)


class Talk:
    """A program and the harness, one after the other."""

    def __init__(self, *answers: Action) -> None:
        model = ChatModel(name="m", policy=Scripted(*answers))
        self.exchange = Exchange(model, ProgramSettings(argv=("true",)), seed=1)
        self.exchange.observe(Observation(messages=(), tools=(PAY,)))

    async def ask(self, history: list[Message], *tools: Tool) -> None:
        """Ask the model, and note its answer in the history."""
        answer = await self.exchange.ask_model(ModelRequest(messages=tuple(history), tools=tools), "m")
        history.append(answer.decision.action.to_message())

    async def call(self, **arguments: Json) -> Decision:
        """The step that the call of `pay` becomes."""
        calling = asyncio.create_task(self.exchange.tool_exchange.call_tool("pay", arguments))
        event = await self.exchange.events.get()
        assert isinstance(event, WaitingCall)
        decision = self.exchange.decide_call(event)
        result = Message(role="tool", content="paid", tool_call_id=event.call.id)
        self.exchange.observe(Observation(messages=(result,), tools=(PAY,)))
        await calling
        return decision

    def end(self, text: str = "") -> Decision:
        return self.exchange.decide_end(TurnEnded(text=text))


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(work(), 60)

    asyncio.run(main())


def pays(amount: int) -> Action:
    return Action(tool_calls=(ToolCall(id="c", name="pay", arguments={"amount": amount}),))


def says(text: str) -> Message:
    return Message(role="user", content=text)


def payment_result() -> Message:
    return Message(role="tool", content="paid", tool_call_id="c")


def ids(decision: Decision) -> tuple[int, ...]:
    return decision.sampled.ids if decision.sampled is not None else ()


def beside(decision: Decision | GiveUp) -> list[tuple[int, int]]:
    """(context, token) of each side answer."""
    return [(each.context, each.sampled.ids[0]) for each in decision.side_answers if each.sampled is not None]


def test_a_title_is_beside_the_steps_whenever_it_is_asked_for() -> None:
    async def work() -> None:
        talk = Talk(Action(text="A title"), pays(5), Action(text="Done."), Action(text="Another title"))
        history = [says("Pay 5.")]
        await talk.ask([says("Give it a title: Pay 5.")])
        await talk.ask(history, PAY)
        step = await talk.call(amount=5)
        assert (ids(step), step.context, beside(step)) == ((1,), 1, [(0, 0)])
        assert step.side_answers[0].asked == "Give it a title: Pay 5."
        assert step.spent == ModelUsage(model="m", prompt_tokens=10, completion_tokens=1)
        history.append(payment_result())
        await talk.ask(history, PAY)
        await talk.ask([says("Give it another title.")])
        end = talk.end()
        assert (end.action.text, ids(end), end.context, beside(end)) == ("Done.", (2,), 1, [(2, 3)])

    run(work)


def test_the_text_that_the_program_prints_tells_which_answer_ended_the_turn() -> None:
    async def work() -> None:
        talk = Talk(Action(text="Done."), Action(text="A title"))
        await talk.ask([says("Pay 5.")])
        await talk.ask([says("A title for it.")])
        end = talk.end("Done.")
        assert (ids(end), beside(end)) == ((0,), [(1, 1)])

    run(work)


def test_a_delegation_is_in_a_context_of_the_agent() -> None:
    async def work() -> None:
        asks = Action(tool_calls=(ToolCall(id="h", name="ask_helper", arguments={"task": "Pay 5."}),))
        talk = Talk(asks, pays(5), Action(text="I paid."), Action(text="Done."))
        main, helper = [says("Pay 5.")], [Message(role="system", content="You help."), says("Pay 5.")]
        await talk.ask(main, HELP)
        await talk.ask(helper, PAY)
        step = await talk.call(amount=5)
        assert (ids(step), step.context, beside(step)) == ((1,), 1, [(0, 0)])
        helper.append(payment_result())
        await talk.ask(helper, PAY)
        main.append(Message(role="tool", content="I paid.", tool_call_id="h"))
        await talk.ask(main, HELP)
        end = talk.end("Done.")
        assert (ids(end), end.context, beside(end)) == ((3,), 0, [(1, 2)])

    run(work)


def test_two_sub_agents_at_once_keep_the_tokens_of_their_own_calls() -> None:
    async def work() -> None:
        talk = Talk(pays(5), pays(6))
        await asyncio.gather(talk.ask([says("Pay 5.")], PAY), talk.ask([says("Pay 6.")], PAY))
        first = await talk.call(amount=6)
        second = await talk.call(amount=5)
        assert (ids(first), first.context, ids(second), second.context) == ((1,), 1, (0,), 0)
        assert (beside(first), beside(second)) == ([], [])

    run(work)


def test_an_answer_with_two_calls_is_one_step_with_tokens() -> None:
    async def work() -> None:
        calls = (*pays(5).tool_calls, *pays(6).tool_calls)
        talk = Talk(Action(tool_calls=calls), Action(text="Done."))
        history = [says("Pay 5 and 6.")]
        await talk.ask(history, PAY)
        first, second = await talk.call(amount=5), await talk.call(amount=6)
        assert (ids(first), ids(second), first.context, second.context) == ((0,), (), 0, 0)
        assert (first.side_answers, second.side_answers, second.spent) == ((), (), None)

    run(work)


def test_a_program_that_compacts_its_history_opens_a_context() -> None:
    async def work() -> None:
        talk = Talk(pays(5), Action(text="5 is paid."), pays(6), Action(text="Done."))
        history = [says("Pay 5 and 6.")]
        await talk.ask(history, PAY)
        first = await talk.call(amount=5)
        await talk.ask([says("Sum up: Pay 5 and 6. Paid 5.")])
        compacted = [says("5 is paid. Pay 6.")]
        await talk.ask(compacted, PAY)
        second = await talk.call(amount=6)
        assert [first.context, second.context, beside(second)] == [0, 2, [(1, 1)]]
        compacted.append(payment_result())
        await talk.ask(compacted, PAY)
        assert talk.end().context == 2

    run(work)


def test_answers_after_the_last_step_are_kept_when_the_episode_ends() -> None:
    async def work() -> None:
        talk = Talk(Action(text="Hm."), pays(5))
        history = [says("Pay 5.")]
        await talk.ask(history, PAY)
        history.append(says("Go on."))
        await talk.ask(history, PAY)
        end = talk.exchange.give_up(GiveUp(outcome=Outcome.AGENT_ERROR, reason="it died"))
        assert (end.reason, beside(end)) == ("it died", [(0, 0), (0, 1)])

    run(work)


def test_the_answers_that_no_decision_has_taken_are_handed_over_once() -> None:
    async def work() -> None:
        talk = Talk(pays(5), pays(6))
        history = [says("Pay 5.")]
        await talk.ask(history, PAY)
        await talk.call(amount=5)
        history.append(payment_result())
        await talk.ask(history, PAY)
        assert [answer.sampled.ids for answer in talk.exchange.take_rest() if answer.sampled is not None] == [(1,)]
        assert talk.exchange.take_rest() == ()

    run(work)


def test_an_answer_whose_call_the_program_never_made_is_beside_the_end() -> None:
    async def work() -> None:
        talk = Talk(pays(5), pays(6), Action(text="Done."))
        history = [says("Pay.")]
        await talk.ask(history, PAY)
        history.append(Message(role="tool", content="refused by the program", tool_call_id="c", is_error=True))
        await talk.ask(history, PAY)
        step = await talk.call(amount=6)
        assert (ids(step), beside(step)) == ((1,), [])
        history.append(payment_result())
        await talk.ask(history, PAY)
        assert beside(talk.end()) == [(0, 0)]

    run(work)
