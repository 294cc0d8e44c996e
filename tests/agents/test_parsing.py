"""Parsing of tool calls in text: valid ones, malformed ones, and arbitrary text."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gymcp.agents.policies.tiny_model import make_tiny_tokenizer
from gymcp.agents.tool_calls.formats import FORMATS, MAX_CALLS
from gymcp.agents.tool_calls.parsing import MAX_CHARS, CallIds, choose_format, parse_action
from gymcp.envs.episodes.call_validation import check_arguments
from gymcp.errors import ConfigError
from gymcp.types import Action, Tool

PAY = Tool(
    name="pay",
    input_schema={
        "type": "object",
        "properties": {
            "amount": {"type": "integer"},
            "note": {"type": "string"},
            "to": {"type": "string"},
            "extra": {},
        },
        "required": ["to", "amount"],
    },
)
TOOLS = (PAY, Tool(name="ping", input_schema={"type": "object"}))


def read(text: str, format_name: str) -> Action:
    return parse_action(text, TOOLS, FORMATS[format_name], CallIds())


def calls(action: Action) -> list[tuple[str, Any]]:
    assert all(not call.parse_error for call in action.tool_calls), action
    return [(call.name, call.arguments) for call in action.tool_calls]


def problems(action: Action) -> list[str]:
    return [call.parse_error for call in action.tool_calls]


BOTH = [("pay", {"to": "bob", "amount": 5}), ("ping", {})]


@pytest.mark.parametrize(
    ("format_name", "text"),
    [
        (
            "hermes",
            '<tool_call>\n{"name": "pay", "arguments": {"to": "bob", "amount": 5}}\n</tool_call>\n'
            '<tool_call>{"name": "ping", "arguments": {}}</tool_call>',
        ),
        (
            "hermes",
            '<tool_call>{"name":"pay","arguments":"{\\"to\\":\\"bob\\",\\"amount\\":5}"}</tool_call>'
            '<tool_call>{"name": "ping"}',
        ),
        ("llama", '{"name": "pay", "parameters": {"to": "bob", "amount": 5}}; {"name": "ping", "parameters": {}}'),
        ("llama", '<|python_tag|>{"name": "pay", "parameters": {"to": "bob", "amount": 5}}\n{"name": "ping"}'),
        ("mistral", '[TOOL_CALLS] [{"name": "pay", "arguments": {"to": "bob", "amount": 5}}, {"name": "ping"}]'),
        ("mistral", '[TOOL_CALLS]pay[ARGS]{"to": "bob", "amount": 5}[TOOL_CALLS]ping[ARGS]{}'),
        ("mistral", '[TOOL_CALLS]pay{"to": "bob", "amount": 5}[TOOL_CALLS]ping{}'),
        ("pythonic", '[pay(to="bob", amount=5), ping()]'),
        ("pythonic", "<|python_start|>[pay(to='bob', amount=5), ping()]<|python_end|>"),
        ("compact", "<|c|>pay<|v|>5<|v|>bob<|c|>ping"),
    ],
)
def test_parallel_calls_are_read_in_every_format(format_name: str, text: str) -> None:
    assert calls(read(text, format_name)) == BOTH


@pytest.mark.parametrize(
    ("format_name", "text"),
    [
        ("hermes", 'I pay. <tool_call>{"name": "ping"}</tool_call> Done.'),
        ("llama", 'I pay.  Done.<|python_tag|>{"name": "ping"}'),
        ("mistral", "I pay.  Done.[TOOL_CALLS]ping[ARGS]{}"),
        ("compact", "I pay.  Done.<|c|>ping"),
    ],
)
def test_text_around_calls_is_kept(format_name: str, text: str) -> None:
    action = read(text, format_name)
    assert (action.text, calls(action)) == ("I pay.  Done.", [("ping", {})])


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("text", ["All paid.", "{a set of words}", "[see note (1)", "[1, 2] (both)]", ""])
def test_plain_text_is_not_a_call(format_name: str, text: str) -> None:
    assert read(f" {text}\n", format_name) == Action(text=text)


@pytest.mark.parametrize(
    ("format_name", "text", "why"),
    [
        ("hermes", "<tool_call>pay bob</tool_call>", "not JSON"),
        ("hermes", '<tool_call>{"name": "pay", "arguments": {"to"', "not JSON"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', 'with a "name"'),
        ("hermes", '<tool_call>{"name": "pay", "arguments": [5]}</tool_call>', "must be an object"),
        (
            "hermes",
            '<tool_call>{"name": "pay", "arguments": {"to": "a", "to": "b"}}</tool_call>',
            "'to' is given twice",
        ),
        ("hermes", '<tool_call>{"name": "pay", "arguments": {"amount": NaN}}</tool_call>', "NaN is not JSON"),
        ("hermes", '<tool_call>{"name": "pay", "arguments": {"amount": ' + "9" * 5000 + "}}</tool_call>", "not JSON"),
        ("hermes", '<tool_call>{"name": "pay", "arguments": {"a": ' + "[" * 9999, "nested more than 60 deep"),
        ("hermes", '<tool_call>{"name": "ping"} {"name": "ping"}</tool_call>', "text after the JSON value"),
        ("llama", "<|python_tag|>print(1)", "not JSON"),
        ("llama", '{"name": "pay", "parameters": {', "not JSON"),
        ("mistral", "[TOOL_CALLS][{]", "not JSON"),
        ("mistral", "[TOOL_CALLS]pay[ARGS]5", "a name and an object"),
        ("mistral", "[TOOL_CALLS]", "a name and an object"),
        ("pythonic", "[pay('bob')]", "by name"),
        ("pythonic", "[pay(to=__import__('os').system('true'))]", "only literals"),
        ("pythonic", "[pay(to=f'{1}')]", "only literals"),
        ("pythonic", "[pay(to={**a})]", "keys are strings"),
        ("pythonic", "[pay(to='a' 'b', to='c')]", "'to' is given twice"),
        ("pythonic", "[pay(to={'a': 1, 'a': 2})]", "'a' is given twice"),
        ("pythonic", "[pay(**{'to': 'bob'})]", "by name"),
        ("pythonic", "[pay(to=1), 5]", "a list of calls"),
        ("pythonic", "[pay(to=1), (lambda: 1)()]", "starts with the name"),
        ("pythonic", "[pay(to=" + "[" * 5000 + "]" * 5000 + ")]", "not a list of calls"),
        ("compact", "<|c|>", "starts with the name"),
        ("compact", "<|c|>pay<|v|>five", "argument 'amount': not JSON"),
        (
            "compact",
            "<|c|>pay<|v|>5<|v|>bob<|v|>1<|v|>n<|v|>more",
            "5 values for the arguments amount, to, extra, note",
        ),
    ],
)
def test_a_malformed_call_has_a_reason(format_name: str, text: str, why: str) -> None:
    assert why in problems(read(text, format_name))[-1]


def test_one_malformed_call_does_not_affect_the_others() -> None:
    action = read('<tool_call>{</tool_call><tool_call>{"name": "ping"}</tool_call>', "hermes")
    assert [bool(problem) for problem in problems(action)] == [True, False]
    assert action.is_usable


def test_thoughts_are_neither_text_nor_calls() -> None:
    call = '<tool_call>{"name": "ping"}</tool_call>'
    assert read(f"<think>{call}</think>Hello", "hermes") == Action(text="Hello")
    assert read(f"it was open: {call}</think>\n\nHello", "hermes") == Action(text="Hello")
    assert read(f"<think>{call} for ever", "hermes") == Action()


def test_compact_values_are_typed_by_the_schema() -> None:
    text = '<|c|>pay<|v|>5<|v|>7<|v|>{"a": [1]}<|v|>""'
    assert calls(read(text, "compact")) == [("pay", {"amount": 5, "to": "7", "extra": {"a": [1]}, "note": ""})]
    assert calls(read("<|c|>pay<|v|><|v|>bob<|v|>word", "compact")) == [("pay", {"to": "bob", "extra": "word"})]


def test_text_and_calls_beyond_the_limits_are_not_read() -> None:
    assert "at most 400000" in problems(read("x" * (MAX_CHARS + 1), "hermes"))[0]
    found = read('<tool_call>{"name": "ping"}</tool_call>' * (MAX_CALLS + 9), "hermes")
    assert len(found.tool_calls) == MAX_CALLS + 1
    assert found.tool_calls[-1].parse_error.startswith("more than 128 calls")


def test_ids_are_unique_and_nine_letters_long() -> None:
    new_id = CallIds()
    ids = [new_id() for _ in range(200)]
    assert len(set(ids)) == 200
    assert {len(id) for id in ids} == {9}


PIECES = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "<|python_tag|>",
            "[TOOL_CALLS]",
            "[ARGS]",
            "<|c|>",
            "<|v|>",
            "<think>",
            "</think>",
        ),
        *("{", "}", "[", "]", "(", ")", '"', "'", "\\", ",", ":", ";", "=", " ", "\n", "pay", "ping", "to", "amount"),
        *(
            '"name"',
            '"arguments"',
            '"parameters"',
            "NaN",
            "1e999",
            "-",
            "0x",
            "9" * 5000,
            "\\ud800",
            "\ud800",
            "\x00",
            "é",
        ),
        *('{"name": "pay", "arguments": ', "[pay(to=", "lambda:", "f'", "**", "await ", "[" * 70),
    ]
) | st.text(max_size=5)


@given(parts=st.lists(PIECES, max_size=40))
def test_parsing_never_raises(parts: list[str]) -> None:
    for format_name in FORMATS:
        for call in read("".join(parts), format_name).tool_calls:
            assert call.parse_error or isinstance(call.arguments, dict), format_name
            if not call.parse_error:
                assert isinstance(check_arguments(call.arguments, 1_000_000), dict | str), format_name


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(
    st.from_regex("[a-z]{1,5}", fullmatch=True).filter(
        lambda k: (
            k
            not in (
                "as",
                "is",
                "in",
                "if",
                "or",
                "for",
                "not",
                "and",
                "def",
                "del",
                "try",
                "with",
                "from",
                "pass",
                "else",
                "elif",
                "class",
                "break",
                "raise",
                "while",
                "yield",
                "async",
                "await",
            )
        )
    ),
    JSON,
    max_size=3,
)


@example(arguments={"a": {"[TOOL_CALLS]": "[ARGS]"}})
@given(arguments=ARGUMENTS)
def test_every_json_object_is_parsed_exactly(arguments: dict[str, Any]) -> None:
    body = json.dumps(arguments)
    keywords = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    texts = {
        "hermes": f'<tool_call>{{"name": "f", "arguments": {body}}}</tool_call>',
        "llama": f'{{"name": "f", "parameters": {body}}}',
        "mistral": f"[TOOL_CALLS]f[ARGS]{body}",
        "pythonic": f"[f({keywords})]",
    }
    for format_name, text in texts.items():
        if "</tool_call>" not in body and "</think>" not in body:
            assert calls(read(text, format_name)) == [("f", arguments)]


HOSTILE = [
    "<tool_call>",
    "</tool_call>",
    '<tool_call>"',
    '"\\"',
    "[TOOL_CALLS]",
    "[TOOL_CALLS][",
    "{",
    "[",
    "(",
    '{"name": "',
    "; ",
    '{"name": "a"};',
    "<|c|>",
    "<|v|>",
    "<|c|>pay<|v|>",
    "[pay(",
    "not ",
    "-",
    "<think>",
    "</think>",
    "\\",
    "a.",
    '"a": 1, ',
]


@pytest.mark.parametrize("format_name", FORMATS)
def test_parsing_takes_time_linear_in_the_text(format_name: str) -> None:
    """Measured in executed lines of the parser: ten times the text takes at most about twenty times the lines."""
    for part in HOSTILE:
        for wrap in ("{}", "<tool_call>{{{}", "<|python_tag|>{}", "[TOOL_CALLS]{}", "[pay({})]"):
            small, large = (lines_run(wrap.format(part * n), format_name) for n in (200, 2000))
            assert large <= 20 * small + 2000, (part, wrap)


def lines_run(text: str, format_name: str) -> int:
    import sys  # noqa: PLC0415

    ran = count()

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if "gymcp" not in frame.f_code.co_filename and "agents" not in frame.f_code.co_filename:
            return None
        next(ran)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        read(text, format_name)
    finally:
        sys.settrace(before)
    return next(ran)


@pytest.mark.parametrize(("style", "format_name"), [("qwen", "hermes"), ("llama", "llama"), ("compact", "compact")])
def test_the_chat_template_determines_the_format(style: Any, format_name: str) -> None:
    assert choose_format(None, make_tiny_tokenizer(style), "model 'm'") is FORMATS[format_name]


def test_a_template_without_a_known_format_is_an_error() -> None:
    tokenizer: Any = make_tiny_tokenizer("qwen")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(ConfigError, match="model 'm': its chat template takes no tools"):
        choose_format(None, tokenizer, "model 'm'")
    tokenizer.chat_template = "{{ tools }}{{ messages }}"
    with pytest.raises(ConfigError, match="choose with --tool-format: hermes, llama"):
        choose_format(None, tokenizer, "model 'm'")
    with pytest.raises(ConfigError, match="no tool format 'xml'; have hermes"):
        choose_format("xml", tokenizer, "model 'm'")
    with pytest.raises(ConfigError, match="has no response_template"):
        choose_format("transformers", tokenizer, "model 'm'")


def test_a_tokenizer_with_a_response_template_parses_the_answer() -> None:
    tokenizer: Any = make_tiny_tokenizer("qwen")
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "content": {"close": ["<tool_call>", "<|im_end|>"]},
            "tool_calls": {
                "open": "<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
        },
    }
    own = choose_format(None, tokenizer, "model 'm'")
    text = 'I pay.<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    action = parse_action(text, TOOLS, own, CallIds())
    assert (action.text, calls(action)) == ("I pay.", [("ping", {})])
    assert "cannot be read" in problems(parse_action("<tool_call>{</tool_call>", TOOLS, own, CallIds()))[0]
