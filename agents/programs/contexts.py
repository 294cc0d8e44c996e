"""The contexts of a program: a request that continues an earlier one continues its context, and its tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gymcp.agents.policies.models import Model, TokenModel
from gymcp.agents.programs.requests import ModelRequest, cut_at_stop
from gymcp.agents.prompts.context import Context
from gymcp.agents.tool_calls.parsing import CallIds, parse_action
from gymcp.types import Action, Decision, Message, Observation, Sampling, Tool

MAX_CONTEXTS = 64
"""Contexts of an episode that can be continued; of more, the one that was used longest ago is forgotten."""


@dataclass(slots=True, eq=False)
class _Thread:
    """One context, and the conversation that the program must send to continue it."""

    number: int
    tools: tuple[Tool, ...]
    seen: tuple[Message, ...] = ()
    tokens: Context | None = None
    """None for a model that reads messages."""

    def new_messages(self, request: ModelRequest) -> tuple[Message, ...]:
        """The messages behind the known ones; none if the request is not this conversation, continued."""
        if len(request.messages) <= len(self.seen):
            return ()
        known, rest = request.messages[: len(self.seen)], request.messages[len(self.seen) :]
        if any(message.role == "assistant" for message in rest):
            return ()
        # most contexts differ in an early message; a comparison of all tools costs more
        same = all(map(_is_same, known, self.seen)) and request.tools == self.tools
        return rest if same else ()


class Contexts:
    """Contexts of one episode. A program that edits or compacts its history, or starts sub-agents, opens new ones."""

    def __init__(self, model: Model, new_id: CallIds) -> None:
        self._model = model
        self._new_id = new_id
        self._count = 0
        self._threads: list[_Thread] = []
        """Contexts that no request is under way for, the one used last at the end."""

    async def answer(self, request: ModelRequest, sampling: Sampling) -> tuple[Decision, str]:
        """(the model's answer, the request's stop text that ended it).

        The answer has the number of its context, and exactly the tokens that the model read and drew. Its text ends
        before the stop text, as endpoints give it. The stop text is empty if none ended it, or if an endpoint does not
        say. Raises PromptTooLong, PolicyInfraError.
        """
        thread, new = self._find(request)
        stop = ""
        if isinstance(self._model, TokenModel):
            decision, stop = await self._answer_in_tokens(self._model, thread, new, request, sampling)
        else:
            decision = await self._model.policy.chat(request.messages, request.tools, sampling)
            # an endpoint's own ids may repeat within an episode
            calls = tuple(replace(call, id=self._new_id()) for call in decision.action.tool_calls)
            decision = replace(decision, action=replace(decision.action, tool_calls=calls))
        thread.seen = (*request.messages, decision.action.to_message())
        self._threads = [*self._threads[-MAX_CONTEXTS + 1 :], thread]
        return replace(decision, context=thread.number), stop

    async def _answer_in_tokens(
        self, model: TokenModel, thread: _Thread, new: tuple[Message, ...], request: ModelRequest, sampling: Sampling
    ) -> tuple[Decision, str]:
        context = thread.tokens = thread.tokens or Context(model.renderer)
        context.add_observation(Observation(messages=new, tools=request.tools))
        answer = await model.generate(context.ids, sampling)
        text, stop = cut_at_stop(answer.text, request.stop)
        said = _as_sent(parse_action(text, request.tools, model.parse_calls, self._new_id))
        context.add_sample(answer.sampled.ids, said.tool_calls)
        return Decision(action=said, sampled=answer.sampled, spent=answer.usage), stop

    def _find(self, request: ModelRequest) -> tuple[_Thread, tuple[Message, ...]]:
        """The context for the request, and its new messages. Until it is answered, no other request finds it."""
        for thread in reversed(self._threads):
            if new := thread.new_messages(request):
                self._threads.remove(thread)
                return thread, new
        thread = _Thread(number=self._count, tools=request.tools)
        self._count += 1
        return thread, request.messages


def _as_sent(action: Action) -> Action:
    """The action as the program gets it: a call without a name is text, because no dialect has a place for it."""
    calls = tuple(call for call in action.tool_calls if call.name)
    broken = [str(call.arguments) for call in action.tool_calls if not call.name and isinstance(call.arguments, str)]
    return Action(text="\n".join(text for text in (action.text, *broken) if text), tool_calls=calls)


def _is_same(sent: Message, known: Message) -> bool:
    """True if the program sent back this message; ids of calls may be its own."""
    return (
        sent.role == known.role
        and sent.content.strip() == known.content.strip()
        and _calls(sent) == _calls(known)
        and sent.is_error == known.is_error
    )


def _calls(message: Message) -> list[tuple[str, object]]:
    return [(call.name, call.arguments) for call in message.tool_calls]
