"""Rendering of messages to tokens such that a prompt only grows.

The prompt of a turn is the prompt of the turn before, followed by the sampled tokens exactly as they were sampled and
by the tokens of the new messages. The last part comes from the tokenizer's own chat template: a conversation with a
placeholder as the assistant's turn is rendered together with the new messages, and the text behind the placeholder's
turn is the suffix. `Renderer` tries this once, when it is constructed, and refuses a template with which it does not
work.
"""

from __future__ import annotations

import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymcp.errors import ConfigError
from gymcp.types import Action, Json, Message, Tool, ToolCall

MARK = "Qx7Stand1nQx"
"""Placeholder for the assistant's text or call. Letters and digits only, so that no template escapes it."""

MAX_FIRST_PROMPTS = 16
"""First prompts that a renderer keeps: the episodes of a task begin one after another."""

_USER = {"role": "user", "content": "Hello."}
_ANSWER = Message(role="user", content="seen")


@dataclass(frozen=True, slots=True)
class _TurnEnding:
    """The end of the assistant's turn, as the chat template writes it."""

    marks: int
    """Number of times the template writes the placeholder, for one call or for a text."""
    before: str
    """Text between the placeholder and the token that ends the turn."""
    token: str
    """Control token that ends the turn."""
    rest: str
    """Text behind that token that still belongs to the turn."""


class Renderer:
    """Renders prompts for one tokenizer. Raises ConfigError if prompts of its chat template cannot be continued."""

    def __init__(self, tokenizer: Any, who: str, end_ids: Sequence[int] = ()) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(f"{who}: its tokenizer has no chat template, so gymcp cannot talk to it")
        self.tokenizer = tokenizer
        self._who = who
        self._template = tokenizer.get_chat_template(tools=[{}])
        if "tools" not in self._template or "tool_calls" not in self._template:
            raise ConfigError(f"{who}: its chat template takes no tools, so the model cannot be offered any")
        special = {*tokenizer.all_special_tokens, *_list_added_tokens(tokenizer, special=True)}
        self._special = _any_of(special)
        # Tags such as <tool_call> are often plain added tokens; so are runs of spaces, which are left alone.
        tags = {token for token in _list_added_tokens(tokenizer, special=False) if _TAG.fullmatch(token)}
        self._controls = _any_of(special | tags)
        self._tools: tuple[Sequence[Tool], list[dict[str, Json]]] = ((), [])
        self._first_prompts: OrderedDict[Hashable, tuple[tuple[Tool, ...], list[int]]] = OrderedDict()
        """The newest first prompts, which the episodes of a task share, with their tools, whose ids are in the key."""
        self._suffix_needs_tools = False
        self._text_ending = self._find_turn_ending(_placeholder([]))
        self._call_ending = self._find_turn_ending(_placeholder(["call00000"]))
        endings = (self._text_ending, self._call_ending)
        self.end_ids = frozenset(
            [*end_ids, *(tokenizer.convert_tokens_to_ids(ending.token) for ending in endings)]
            + ([tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else [])
        )
        """Tokens that end the assistant's turn."""
        self._check()
        self.note = self._describe_rewrites()
        """Text on what the template would change in earlier turns; empty if it changes nothing."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without its first prompts, whose keys name objects of this process."""
        return Renderer, (self.tokenizer, self._who, sorted(self.end_ids))

    def first_prompt(self, messages: Sequence[Message], tools: Sequence[Tool], system: str = "") -> list[int]:
        """The first prompt of a context: tools, system prompt, messages, and the beginning of the assistant's turn."""
        if any(message.tool_calls for message in messages):
            return self._encode_first(messages, tools, system)
        # by identity: schemas may be equal and not the same text, as 1 and True are
        texts = tuple((each.role, each.content, each.tool_call_id, each.is_error) for each in messages)
        key = (system, texts, tuple(map(id, tools)))
        known = self._first_prompts.get(key)
        if known is None:
            known = (tuple(tools), self._encode_first(messages, tools, system))
            self._first_prompts[key] = known
            if len(self._first_prompts) > MAX_FIRST_PROMPTS:
                self._first_prompts.popitem(last=False)
        return list(known[1])

    def _encode_first(self, messages: Sequence[Message], tools: Sequence[Tool], system: str) -> list[int]:
        all_messages = merge_system_messages(system, messages)
        if all(message.role == "system" for message in all_messages):
            all_messages.append(Message(role="user", content=""))
        names = {call.id: call.name for message in all_messages for call in message.tool_calls}
        rendered = [self._message(message, names.get(message.tool_call_id or "", "")) for message in all_messages]
        return self._encode(self._render(rendered, self._functions(tools), prompt=True))

    def continuation(
        self, sampled: Sequence[int], calls: Sequence[ToolCall], messages: Sequence[Message], tools: Sequence[Tool]
    ) -> list[int]:
        """The tokens of the new messages: those between a sample, an action with these calls, and the next sample.

        If the sample did not end its turn, because it ran out of tokens, the token that ends the turn comes first.
        """
        suffix, _ = self._suffix(calls, messages, self._functions(tools) if self._suffix_needs_tools else [])
        end = (self._call_ending if calls else self._text_ending).token
        ids = self._encode(end + suffix)
        return ids[1:] if sampled and sampled[-1] in self.end_ids else ids

    def encode_action(self, action: Action, tools: Sequence[Tool]) -> list[int]:
        """The tokens that a model would have to sample for this action, up to the one that ends its turn.

        Raises ConfigError if an answer, as the chat template writes it, does not begin with the generation prompt.
        """
        functions = self._functions(tools)
        answer = self._message(action.to_message(), "")
        whole = self._render([_USER, answer], functions, prompt=False)
        head = self._render([_USER], functions, prompt=True)
        ending = self._call_ending if action.tool_calls else self._text_ending
        if not whole.startswith(head) or not whole.endswith(ending.token + ending.rest):
            raise ConfigError(f"{self._who}: its chat template writes answers that it does not let begin; {_WHY}")
        return self._encode(whole[len(head) : len(whole) - len(ending.rest)])

    def decode(self, sampled: Sequence[int]) -> str:
        """The text of the tokens, without the token that ended the turn."""
        content = sampled[:-1] if sampled and sampled[-1] in self.end_ids else sampled
        return str(self.tokenizer.decode(list(content), skip_special_tokens=False))

    def _suffix(
        self, calls: Sequence[ToolCall], messages: Sequence[Message], tools: list[dict[str, Json]]
    ) -> tuple[str, str]:
        """The text behind the token that ends the assistant's turn, and the whole text that ends with it."""
        ending = self._call_ending if calls else self._text_ending
        names = {call.id: call.name for call in calls}
        new = [self._message(message, names.get(message.tool_call_id or "", "")) for message in messages]
        text = self._render([*_placeholder([call.id for call in calls]), *new], tools, prompt=True)
        place = -1
        for _ in range(ending.marks * max(1, len(calls))):
            place = text.find(MARK, place + 1)
            if place < 0:
                raise ConfigError(f"{self._who}: its chat template leaves out what the assistant said; {_WHY}")
        before = place + len(MARK)
        if not text.startswith(ending.before + ending.token + ending.rest, before):
            raise ConfigError(f"{self._who}: its chat template ends a turn differently when others follow; {_WHY}")
        return text[before + len(ending.before + ending.token) :], text

    def _find_turn_ending(self, conversation: list[dict[str, Json]]) -> _TurnEnding:
        text = self._render(conversation, [], prompt=False)
        if MARK not in text:
            raise ConfigError(f"{self._who}: its chat template leaves out what the assistant said; {_WHY}")
        tail = text[text.rindex(MARK) + len(MARK) :]
        *_, last = [None, *self._special.finditer(tail)]
        if last is None:
            raise ConfigError(f"{self._who}: its chat template ends the assistant's turn with no control token; {_WHY}")
        return _TurnEnding(text.count(MARK), tail[: last.start()], last.group(), tail[last.end() :])

    def _check(self) -> None:
        """Raises ConfigError unless a conversation has the tokens of its parts, with and without tools and answers."""
        tools = (Tool(name="look", input_schema={"type": "object", "properties": {"at": {"type": "string"}}}),)
        for count in (0, 1, 2):
            calls = [ToolCall(id=f"call{n:05d}", name=MARK) for n in range(count)]
            answers = [Message(role="tool", content="seen", tool_call_id=call.id) for call in calls]
            bare, _ = self._suffix(calls, answers or [_ANSWER], [])
            offered, _ = self._suffix(calls, answers or [_ANSWER], self._functions(tools))
            self._suffix_needs_tools |= bare != offered
        for count in (0, 1, 2):
            calls = [ToolCall(id=f"call{n:05d}", name=MARK) for n in range(count)]
            answers = [Message(role="tool", content="seen", tool_call_id=call.id) for call in calls]
            functions = self._functions(tools) if self._suffix_needs_tools else []
            suffix, whole = self._suffix(calls, answers or [_ANSWER], functions)
            if "seen" not in suffix:
                raise ConfigError(f"{self._who}: its chat template leaves out what the assistant is answered; {_WHY}")
            head = whole[: len(whole) - len(suffix)]
            sampled = self._encode(head)
            if sampled + self.continuation(sampled, calls, answers or [_ANSWER], tools) != self._encode(whole):
                raise ConfigError(f"{self._who}: its tokenizer joins the end of a turn with what follows; {_WHY}")

    def _describe_rewrites(self) -> str:
        """A sentence if the template would change earlier turns; gymcp leaves them as the model has seen them."""
        thought = {"role": "assistant", "content": f"<think>\n{MARK}\n</think>\n\nDone."}
        first = self._render([_USER], [], prompt=True)
        later = self._render([_USER, thought, _USER], [], prompt=True)
        if MARK not in later:
            return "the chat template drops thoughts of earlier turns; here they stay, as prompts only grow"
        if not later.startswith(first.rstrip()):
            return "the chat template writes earlier turns anew; here they stay, as prompts only grow"
        return ""

    def _render(self, messages: list[dict[str, Json]], tools: list[dict[str, Json]], *, prompt: bool) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                messages,
                chat_template=self._template,
                tools=tools or None,
                add_generation_prompt=prompt,
                tokenize=False,
            )
        except Exception as error:  # the boundary to a template that the model's author wrote
            raise ConfigError(f"{self._who}: its chat template fails: {type(error).__name__}: {error}") from error
        return str(text)

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _message(self, message: Message, name: str) -> dict[str, Json]:
        content = self._safe(f"error: {message.content}" if message.is_error else message.content)
        fields: dict[str, Json] = {"role": message.role, "content": content}
        if message.role == "tool":
            fields |= {"tool_call_id": message.tool_call_id or "", "name": self._safe(name)}
        if message.tool_calls:
            fields["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
                for call in message.tool_calls
            ]
        return fields

    def _functions(self, tools: Sequence[Tool]) -> list[dict[str, Json]]:
        """The tools as templates take them; the last list is cached, because episodes usually have only one."""
        if len(self._tools[0]) != len(tools) or not all(map(operator.is_, self._tools[0], tools)):
            self._tools = (tuple(tools), [describe_tool(tool, self._safe) for tool in tools])
        return self._tools[1]

    def _safe(self, text: str) -> str:
        """The text with a space inside every control token, so that only the template can end or open a turn."""
        return self._controls.sub(lambda match: f"{match.group()[0]} {match.group()[1:]}", text)


def merge_system_messages(system: str, messages: Sequence[Message]) -> list[Message]:
    """The messages with `system` in front, merged with a system message that comes first; no empty one is made."""
    own = messages[:1] if messages and messages[0].role == "system" else ()
    texts = [text for text in (system, *(message.content for message in own)) if text]
    first = [Message(role="system", content="\n\n".join(texts))] if texts else []
    return [*first, *messages[len(own) :]]


_TAG = re.compile(r"<\S+>|\[\S+\]")
_WHY = "gymcp needs one whose prompts can be continued"


def _placeholder(ids: Sequence[str]) -> list[dict[str, Json]]:
    """A conversation whose last turn is the assistant's: calls with these ids, or a text if there are none."""
    if not ids:
        return [_USER, {"role": "assistant", "content": MARK}]
    calls = [{"id": id, "type": "function", "function": {"name": MARK, "arguments": {}}} for id in ids]
    return [_USER, {"role": "assistant", "content": "", "tool_calls": calls}]


def _arguments(call: ToolCall) -> dict[str, Json]:
    return {} if isinstance(call.arguments, str) else dict(call.arguments)


def _list_added_tokens(tokenizer: Any, *, special: bool) -> set[str]:
    return {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special is special}


def _any_of(tokens: set[str]) -> re.Pattern[str]:
    """A pattern that matches the longest of the tokens; a single character is never a control token."""
    longest_first = sorted((token for token in tokens if len(token) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def describe_tool(tool: Tool, clean: Callable[[str], str] = str) -> dict[str, Json]:
    """The tool as chat templates and endpoints take it, with sorted keys, so that equal tools are equal texts."""
    schema = _sort_keys(tool.input_schema or {"type": "object", "properties": {}}, clean)
    function = {"name": clean(tool.name), "description": clean(tool.description), "parameters": schema}
    return {"type": "function", "function": function}


def _sort_keys(value: Json, clean: Callable[[str], str]) -> Json:
    if isinstance(value, Mapping):
        return {clean(key): _sort_keys(value[key], clean) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_sort_keys(item, clean) for item in value]
    return clean(value) if isinstance(value, str) else value
