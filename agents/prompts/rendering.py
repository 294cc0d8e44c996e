"""From messages to tokens, such that a prompt only grows.

The prompt of a turn is the prompt of the turn before, the tokens drawn then, exactly as they were drawn, and the tokens
of the new messages. What those are is learnt from the tokenizer's own chat template: a conversation of stand-ins is
rendered with and without the new messages, and what follows the assistant's turn is the suffix. `Renderer` tries that
once, when it is made, and refuses a template with which it does not work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymcp.errors import ConfigError
from gymcp.types import Action, Json, Message, Tool, ToolCall

MARK = "Qx7Stand1nQx"
"""Stands for what the assistant said or called. Letters and digits only, so that no template escapes it."""

_USER = {"role": "user", "content": "Hello."}
_ANSWER = Message(role="user", content="seen")


@dataclass(frozen=True, slots=True)
class _Ending:
    """How the assistant's turn ends."""

    marks: int
    """How often a stand-in is named in one call, or in what is said."""
    before: str
    """Between the stand-in and the token that ends the turn."""
    token: str
    rest: str
    """Behind that token, still of the same turn."""


class Renderer:
    """Renders for one tokenizer. Raises ConfigError where its chat template cannot be continued."""

    def __init__(self, tokenizer: Any, who: str, end_ids: Sequence[int] = ()) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(f"{who}: its tokenizer has no chat template, so gymcp cannot talk to it")
        self.tokenizer = tokenizer
        self._who = who
        self._template = tokenizer.get_chat_template(tools=[{}])
        if "tools" not in self._template or "tool_calls" not in self._template:
            raise ConfigError(f"{who}: its chat template takes no tools, so the model cannot be offered any")
        special = {*tokenizer.all_special_tokens, *_added(tokenizer, special=True)}
        self._special = _any_of(special)
        # Tags such as <tool_call> are often plain added tokens; so are runs of spaces, which are nobody's business.
        self._controls = _any_of(special | {tag for tag in _added(tokenizer, special=False) if _TAG.fullmatch(tag)})
        self._tools: tuple[Sequence[Tool], list[dict[str, Json]]] = ((), [])
        self._suffix_needs_tools = False
        self._said = self._ending(_stand_in([]))
        self._called = self._ending(_stand_in(["call00000"]))
        self.end_ids = frozenset(
            [*end_ids, *(tokenizer.convert_tokens_to_ids(ending.token) for ending in (self._said, self._called))]
            + ([tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else [])
        )
        """Tokens any of which ends the assistant's turn."""
        self._check()
        self.note = self._rewrites()
        """What the template would do otherwise; empty where it agrees with a prompt that only grows."""

    def start(self, messages: Sequence[Message], tools: Sequence[Tool], system: str = "") -> list[int]:
        """The first prompt of a context: tools, system prompt and messages, up to where the assistant begins."""
        whole = under_one_system(system, messages)
        if all(message.role == "system" for message in whole):
            whole.append(Message(role="user", content=""))
        names = {call.id: call.name for message in whole for call in message.tool_calls}
        said = [self._message(message, names.get(message.tool_call_id or "", "")) for message in whole]
        return self._encode(self._render(said, self._functions(tools), prompt=True))

    def follow(
        self, drawn: Sequence[int], calls: Sequence[ToolCall], messages: Sequence[Message], tools: Sequence[Tool]
    ) -> list[int]:
        """What comes between the tokens `drawn` for an action with these calls and the next ones: the new messages.

        Where the sample did not end its turn, because it ran out of tokens, the end is the first of them.
        """
        suffix, _ = self._suffix(calls, messages, self._functions(tools) if self._suffix_needs_tools else [])
        end = (self._called if calls else self._said).token
        ids = self._encode(end + suffix)
        return ids[1:] if drawn and drawn[-1] in self.end_ids else ids

    def action(self, action: Action, tools: Sequence[Tool]) -> list[int]:
        """The tokens a model would have to draw for this action, up to the one that ends its turn.

        Raises ConfigError where the chat template writes an answer differently from how it lets one begin.
        """
        functions = self._functions(tools)
        said = self._message(Message(role="assistant", content=action.text, tool_calls=action.tool_calls), "")
        whole = self._render([_USER, said], functions, prompt=False)
        head = self._render([_USER], functions, prompt=True)
        ending = self._called if action.tool_calls else self._said
        if not whole.startswith(head) or not whole.endswith(ending.token + ending.rest):
            raise ConfigError(f"{self._who}: its chat template writes answers that it does not let begin; {_WHY}")
        return self._encode(whole[len(head) : len(whole) - len(ending.rest)])

    def text(self, drawn: Sequence[int]) -> str:
        """What the tokens say, without the one that ended the turn."""
        kept = drawn[:-1] if drawn and drawn[-1] in self.end_ids else drawn
        return str(self.tokenizer.decode(list(kept), skip_special_tokens=False))

    def _suffix(
        self, calls: Sequence[ToolCall], messages: Sequence[Message], tools: list[dict[str, Json]]
    ) -> tuple[str, str]:
        """The text behind the token that ends the assistant's turn, and the whole text that ends with it."""
        ending = self._called if calls else self._said
        names = {call.id: call.name for call in calls}
        new = [self._message(message, names.get(message.tool_call_id or "", "")) for message in messages]
        text = self._render([*_stand_in([call.id for call in calls]), *new], tools, prompt=True)
        place = -1
        for _ in range(ending.marks * max(1, len(calls))):
            place = text.find(MARK, place + 1)
            if place < 0:
                raise ConfigError(f"{self._who}: its chat template leaves out what the assistant said; {_WHY}")
        before = place + len(MARK)
        if not text.startswith(ending.before + ending.token + ending.rest, before):
            raise ConfigError(f"{self._who}: its chat template ends a turn differently when others follow; {_WHY}")
        return text[before + len(ending.before + ending.token) :], text

    def _ending(self, stand_in: list[dict[str, Json]]) -> _Ending:
        text = self._render(stand_in, [], prompt=False)
        if MARK not in text:
            raise ConfigError(f"{self._who}: its chat template leaves out what the assistant said; {_WHY}")
        tail = text[text.rindex(MARK) + len(MARK) :]
        *_, last = [None, *self._special.finditer(tail)]
        if last is None:
            raise ConfigError(f"{self._who}: its chat template ends the assistant's turn with no control token; {_WHY}")
        return _Ending(text.count(MARK), tail[: last.start()], last.group(), tail[last.end() :])

    def _check(self) -> None:
        """A conversation must have the tokens of its parts, however many calls are answered, with tools or without."""
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
            given = self._functions(tools) if self._suffix_needs_tools else []
            suffix, whole = self._suffix(calls, answers or [_ANSWER], given)
            if "seen" not in suffix:
                raise ConfigError(f"{self._who}: its chat template leaves out what the assistant is answered; {_WHY}")
            head = whole[: len(whole) - len(suffix)]
            drawn = self._encode(head)
            if drawn + self.follow(drawn, calls, answers or [_ANSWER], tools) != self._encode(whole):
                raise ConfigError(f"{self._who}: its tokenizer joins the end of a turn with what follows; {_WHY}")

    def _rewrites(self) -> str:
        """In words, where the template would change what was said before; gymcp leaves it as the model has seen it."""
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
        found: dict[str, Json] = {"role": message.role, "content": content}
        if message.role == "tool":
            found |= {"tool_call_id": message.tool_call_id or "", "name": self._safe(name)}
        if message.tool_calls:
            found["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _object(call)}}
                for call in message.tool_calls
            ]
        return found

    def _functions(self, tools: Sequence[Tool]) -> list[dict[str, Json]]:
        """As templates take them; the last list is kept, because an episode mostly has one."""
        if self._tools[0] is not tools:
            self._tools = (tools, [function(tool, self._safe) for tool in tools])
        return self._tools[1]

    def _safe(self, text: str) -> str:
        """The text with every control token in it broken by a space: nobody but the template ends or opens a turn."""
        return self._controls.sub(lambda found: f"{found.group()[0]} {found.group()[1:]}", text)


def under_one_system(system: str, messages: Sequence[Message]) -> list[Message]:
    """The messages behind one system message, made of `system` and a first message that is one, where there are any."""
    own = messages[:1] if messages and messages[0].role == "system" else ()
    texts = [text for text in (system, *(message.content for message in own)) if text]
    first = [Message(role="system", content="\n\n".join(texts))] if texts else []
    return [*first, *messages[len(own) :]]


_TAG = re.compile(r"<\S+>|\[\S+\]")
_WHY = "gymcp needs one whose prompts can be continued"


def _stand_in(ids: Sequence[str]) -> list[dict[str, Json]]:
    """A conversation whose last turn is the assistant's: calls with these ids, or without any some words."""
    if not ids:
        return [_USER, {"role": "assistant", "content": MARK}]
    made = [{"id": id, "type": "function", "function": {"name": MARK, "arguments": {}}} for id in ids]
    return [_USER, {"role": "assistant", "content": "", "tool_calls": made}]


def _object(call: ToolCall) -> dict[str, Json]:
    return {} if isinstance(call.arguments, str) else dict(call.arguments)


def _added(tokenizer: Any, *, special: bool) -> set[str]:
    return {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special is special}


def _any_of(tokens: set[str]) -> re.Pattern[str]:
    """Matches the longest of them; a single character is nobody's control token."""
    longest_first = sorted((token for token in tokens if len(token) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def function(tool: Tool, clean: Callable[[str], str] = str) -> dict[str, Json]:
    """As chat templates and endpoints take a tool; keys of its schema are sorted: equal tools are equal texts."""
    schema = tool.input_schema or {"type": "object", "properties": {}}
    described = {"name": clean(tool.name), "description": clean(tool.description), "parameters": _sorted(schema, clean)}
    return {"type": "function", "function": described}


def _sorted(value: Json, clean: Callable[[str], str]) -> Json:
    if isinstance(value, Mapping):
        return {clean(key): _sorted(value[key], clean) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_sorted(item, clean) for item in value]
    return clean(value) if isinstance(value, str) else value
