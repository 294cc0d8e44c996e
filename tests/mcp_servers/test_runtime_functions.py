"""Functions and classes as servers: their schemas, and functions and classes that are refused."""

from __future__ import annotations

import enum
import json
import math
import typing
from typing import Annotated, Any, Literal, TypedDict

import jsonschema
import pytest

from gymcp.mcp_servers.native.runtime import Server, class_server, parameters_schema, schema_of, state_key


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(TypedDict):
    x: int
    label: typing.NotRequired[str]


class Partial(TypedDict, total=False):
    x: Annotated[int, "how far"]


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (list, {"type": "array"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict, {"type": "object"}),
        (dict[str, Any], {"type": "object"}),
        (
            dict[str, list[str]],
            {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
        ),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, str],
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
        ),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (typing.Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (typing.Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),  # noqa: UP007
        (typing.List[int], {"type": "array", "items": {"type": "integer"}}),  # noqa: UP006
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Annotated[int, "how many", {"minimum": 1}], {"type": "integer", "description": "how many", "minimum": 1}),
        (Colour, {"type": "string", "enum": ["red", "blue"]}),
        (
            Point,
            {
                "type": "object",
                "properties": {"x": {"type": "integer"}, "label": {"type": "string"}},
                "required": ["x"],
                "additionalProperties": False,
            },
        ),
        (
            Partial,
            {
                "type": "object",
                "properties": {"x": {"type": "integer", "description": "how far"}},
                "additionalProperties": False,
            },
        ),
    ],
    ids=str,
)
def test_annotations_have_schemas(hint: Any, schema: dict[str, Any]) -> None:
    assert schema_of(hint) == schema
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("hint", [bytes, set[int], dict[int, str], object, typing.Callable], ids=str)
def test_an_annotation_without_a_schema_is_refused(hint: Any) -> None:
    with pytest.raises(TypeError, match="no JSON Schema"):
        schema_of(hint)


def test_parameters_have_defaults_and_descriptions_of_the_docstring() -> None:
    def find(where: str, /, what: str) -> None: ...
    def many(*what: str) -> None: ...
    def book(seat: str, *, nights: int = 2, colour: Colour = Colour.RED, hook: Any = object) -> None:
        """Book.

        Args:
            seat: Which: window
                or aisle.
            nights (int, optional): How long.

        Returns:
            nights: not a parameter here.
        """

    assert parameters_schema(book) == {
        "type": "object",
        "properties": {
            "seat": {"type": "string", "description": "Which: window or aisle."},
            "nights": {"type": "integer", "description": "How long.", "default": 2},
            "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
            "hook": {},
        },
        "required": ["seat"],
        "additionalProperties": False,
    }
    for fn in (find, many, len):
        with pytest.raises(TypeError, match="named parameters only"):
            parameters_schema(fn)


def ask(server: Server, method: str, **params: Any) -> Any:
    """The answer of a server in this process."""
    line = server.handle(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode())
    assert line is not None
    return {"result": None, "error": None, **json.loads(line)}


def test_an_explicit_schema_is_taken_as_it_is() -> None:
    server = Server("s")
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
    server.add_tool(lambda **arguments: arguments, name="all", description="All.", input_schema=schema)
    assert ask(server, "tools/list")["result"] == {
        "tools": [{"name": "all", "description": "All.", "inputSchema": schema}]
    }
    called = ask(server, "tools/call", name="all", arguments={"a": 1, "b": [1.5]})
    assert called["result"] == {"content": [{"type": "text", "text": '{"a": 1, "b": [1.5]}'}], "isError": False}
    assert ask(server, "tools/call", name="all", arguments={"a": True})["result"]["isError"]


def test_a_server_without_setup_or_state_has_no_such_methods() -> None:
    server = Server("s")
    server.add_tool(lambda: "fine", name="t")
    assert ask(server, "gymcp/setup", initialState=None, seed=0)["error"]["code"] == -32601
    assert ask(server, "gymcp/state")["error"]["code"] == -32601
    assert "_meta" not in ask(server, "tools/call", name="t")["result"]
    server.setup(lambda initial_state, seed: None)
    assert ask(server, "gymcp/setup", initialState=None, seed=0)["result"]["stateKey"] is None


def test_a_state_that_is_not_json_is_the_servers_failure_not_the_tools() -> None:
    server = Server("s")
    server.state(lambda: {"x": math.nan})
    server.add_tool(lambda: "fine", name="t")
    assert ask(server, "tools/call", name="t")["error"]["code"] == -32050


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"name": "a b"}, ValueError, "a name has"),
        ({"name": "taken"}, ValueError, "there is one already"),
        ({"colour": "red"}, TypeError, "unknown options"),
        ({"input_schema": {"type": "string"}}, ValueError, "must say"),
        (
            {"input_schema": {"type": "object", "items": {"type": ["dict", "null"]}}},
            ValueError,
            "types dict are unknown",
        ),
        ({"input_schema": {"type": "object", "not": {}}}, ValueError, "'x'.*not are not supported"),
        ({"input_schema": {"type": "object", "properties": {"a": {"pattern": "("}}}}, ValueError, "pattern"),
        ({"input_schema": {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}}, ValueError, "leads nowhere"),
        ({"input_schema": {"type": "object", "allOf": [{"$ref": "http://x/y"}]}}, ValueError, "leads nowhere"),
    ],
)
def test_a_tool_that_could_not_be_served_is_refused(options: Any, error: type[Exception], match: str) -> None:
    server = Server("s")
    server.add_tool(lambda: None, name="taken")
    with pytest.raises(error, match=match):
        server.add_tool(lambda: None, **{"name": "x", **options})


def test_a_lone_surrogate_in_a_result_costs_one_character_not_the_answer() -> None:
    server = Server("s")
    server.add_tool(lambda: "a\ud800b", name="t")
    assert ask(server, "tools/call", name="t")["result"]["content"] == [{"type": "text", "text": "a?b"}]


def test_an_unprintable_exception_is_an_error_result_too() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fail() -> None:
        raise Unspeakable

    server = Server("s")
    server.add_tool(fail)
    result = ask(server, "tools/call", name="fail")["result"]
    assert result == {"content": [{"type": "text", "text": "Unspeakable"}], "isError": True}


class Account:
    """A server in one class."""

    def __init__(self, balance: int = 0) -> None:
        self.balance = balance
        self.orders: dict[int, str] = {}
        self._secret = object()

    def deposit(self, amount: int) -> dict[str, int]:
        """Pay in.

        Args:
            amount: How much.
        """
        self.balance += amount
        return {"balance": self.balance}

    def order(self, what: str) -> int:
        self.orders[len(self.orders)] = what
        return len(self.orders)

    def _internal(self) -> None: ...


def test_a_class_is_a_server() -> None:
    server = class_server(Account)
    deposit, order = ask(server, "tools/list")["result"]["tools"]
    assert (deposit["name"], deposit["description"], order["name"]) == ("deposit", "Pay in.", "order")
    assert deposit["inputSchema"]["properties"] == {"amount": {"type": "integer", "description": "How much."}}
    assert ask(server, "gymcp/state")["result"]["state"] == {"balance": 0, "orders": {}}
    ask(server, "gymcp/setup", initialState={"balance": 5}, seed=0)
    called = ask(server, "tools/call", name="deposit", arguments={"amount": 2})["result"]
    assert called["structuredContent"] == {"balance": 7}
    ask(server, "tools/call", name="order", arguments={"what": "tea"})
    assert ask(server, "gymcp/state")["result"] == {
        "stateKey": state_key({"balance": 7, "orders": {"0": "tea"}}),
        "state": {"balance": 7, "orders": {"0": "tea"}},
    }
    refused = ask(class_server(Account), "gymcp/setup", initialState={"blance": 5}, seed=0)["error"]
    assert (refused["code"], "blance" in refused["message"]) == (-32603, True)
