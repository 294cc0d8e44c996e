"""CPU of one call to the gateway of agent programs, over the policy's own: model requests in three dialects, and MCP.

A request has 20 messages and 20 tools, and its answer has a tool call. The client is a process of its own, so that its
CPU is not the gateway's. The policy answers without any work; the harness answers a tool call at once.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import pstats
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from report_table import Result, against, options, show

from gymcp.agents.endpoint.tool_exchange import ToolExchange, WaitingCall
from gymcp.agents.policies.models import ChatModel
from gymcp.agents.programs.exchange import Exchange
from gymcp.agents.programs.gateway import open_gateway
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.agents.strategies.budgets import Budget
from gymcp.types import Action, Decision, Json, Message, ModelUsage, Observation, Sampling, Tool, ToolCall

TARGET_MS = 1.5
MESSAGES, TOOLS = 20, 20
PROFILE_LINES = 40
SCHEMA: dict[str, Json] = {
    "type": "object",
    "properties": {
        "order": {"type": "string", "description": "Id of the order, such as O-1001."},
        "lines": {"type": "array", "items": {"type": "integer"}, "description": "Numbers of the lines."},
        "reason": {"type": "string", "enum": ["damaged", "late", "wrong"], "description": "The customer's reason."},
    },
    "required": ["order"],
}
ABOUT = "Look up an order, and return its lines, prices and state. Fails if there is no such order."
ARGUMENTS: dict[str, Json] = {"order": "O-1001", "lines": [1, 2], "reason": "late"}
RESULT = json.dumps({"order": "O-1001", "state": "sent", "lines": [{"article": "lamp", "price": 12.5}] * 4})
NAMES = tuple(f"tool_{number}" for number in range(TOOLS))
DECISION = Decision(
    action=Action(tool_calls=(ToolCall(id="call", name=NAMES[0], arguments=ARGUMENTS),)),
    spent=ModelUsage(model="scripted", prompt_tokens=2000, completion_tokens=30),
)

CLIENT = """
import http.client, sys
port, key, path, count = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
body = sys.stdin.buffer.read()
connection = http.client.HTTPConnection("127.0.0.1", port)
headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
headers |= {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
for _ in range(count):
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200 and b"O-1001" in text, (answer.status, text)
"""


class Scripted:
    """A model that always makes the same call."""

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        assert (len(messages), len(tools)) == (MESSAGES, TOOLS)
        return DECISION


def main() -> None:
    parser = options(__doc__, "a fifth of the calls")
    parser.add_argument("--profile", default="", metavar="METRIC", help="profile the one metric that begins so")
    args = parser.parse_args()
    count = 200 if args.quick else 1000
    target = Result(metric="target", value=TARGET_MS, unit="ms")
    results = []
    for name, (path, body) in make_requests().items():
        if name.startswith(args.profile):
            cpu, time_ms = asyncio.run(measure(path, json.dumps(body), count, profile=bool(args.profile)))
            results.append(against(f"{name}: CPU of a call", cpu, "ms", target))
            results.append(Result(metric=f"{name}: time of a call", value=time_ms, unit="ms"))
            print(f"gateway: {name}: {cpu:.2f} ms of CPU, {time_ms:.2f} ms", file=sys.stderr, flush=True)
    show("gateway", results, as_json=args.json)


def make_requests() -> dict[str, tuple[str, Json]]:
    """Name -> (path, body)."""
    bodies: dict[str, dict[str, Json]] = {
        "/v1/chat/completions": {"messages": chat_messages(), "tools": [chat_tool(name) for name in NAMES]},
        "/v1/responses": {
            "input": response_items(),
            "tools": [{**describe(name), "type": "function"} for name in NAMES],
        },
        "/v1/messages": {
            "system": "Be brief.",
            "messages": anthropic_messages(),
            "tools": [anthropic_tool(name) for name in NAMES],
        },
    }
    models = {
        f"{path}{', streamed' if streams else ''}": (path, {"model": "m", "max_tokens": 64, "stream": streams, **body})
        for path, body in bodies.items()
        for streams in (False, True)
    }
    call = {"name": NAMES[0], "arguments": ARGUMENTS}
    return {**models, "MCP tools/call": ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})}


def describe(name: str) -> dict[str, Json]:
    return {"name": name, "description": ABOUT, "parameters": SCHEMA}


def chat_tool(name: str) -> Json:
    return {"type": "function", "function": describe(name)}


def anthropic_tool(name: str) -> Json:
    return {"name": name, "description": ABOUT, "input_schema": SCHEMA}


def chat_messages() -> Json:
    """A system message, the user's, and nine calls with their results."""
    messages: list[Json] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ABOUT}]
    for number in range((MESSAGES - 2) // 2):
        function = {"name": NAMES[number], "arguments": json.dumps(ARGUMENTS)}
        call = {"id": f"c{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": RESULT})
    return messages


def response_items() -> Json:
    """The same as items of the responses dialect."""
    items: list[Json] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ABOUT}]
    for number in range((MESSAGES - 2) // 2):
        call = {"call_id": f"c{number}", "name": NAMES[number], "arguments": json.dumps(ARGUMENTS)}
        items.append({"type": "function_call", **call})
        items.append({"type": "function_call_output", "call_id": f"c{number}", "output": RESULT})
    return items


def anthropic_messages() -> Json:
    """The same as messages of Anthropic's dialect, whose system message stands apart."""
    messages: list[Json] = [{"role": "user", "content": ABOUT}]
    for number in range((MESSAGES - 2) // 2):
        call = {"type": "tool_use", "id": f"c{number}", "name": NAMES[number], "input": ARGUMENTS}
        result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": RESULT}
        messages.append({"role": "assistant", "content": [call]})
        messages.append({"role": "user", "content": [result]})
    return messages


async def measure(path: str, body: str, count: int, *, profile: bool) -> tuple[float, float]:
    """Milliseconds of a call: (CPU of the gateway's process, by the clock); the policy does no work."""
    budget = Budget(turns=None, tokens=None, seconds=None)
    with tempfile.TemporaryDirectory() as folder:
        async with open_gateway(Path(folder), "scripted") as gateway:
            exchange = Exchange(
                ChatModel(name="scripted", policy=Scripted()), ProgramSettings(argv=("true",), budget=budget), seed=0
            )
            with gateway.admit(exchange):
                answering = asyncio.create_task(answer_calls(exchange.tool_exchange))
                address = (str(gateway.port), exchange.token, path)
                await run_client(address, body, 20)
                profiler = cProfile.Profile(time.process_time)
                if profile:
                    profiler.enable()
                before, begun = time.process_time(), time.perf_counter()
                await run_client(address, body, count)
                spent, passed = time.process_time() - before, time.perf_counter() - begun
                answering.cancel()
    if profile:
        profiler.disable()
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(PROFILE_LINES)
    return 1e3 * spent / count, 1e3 * passed / count


async def run_client(address: Sequence[str], body: str, count: int) -> None:
    """Make the calls from a process of their own."""
    command = (sys.executable, "-c", CLIENT, *address, str(count))
    client = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
    await client.communicate(body.encode())
    assert client.returncode == 0


async def answer_calls(exchange: ToolExchange) -> None:
    """The harness's side of tool calls: the result is there at once."""
    tools = tuple(Tool(name=name, description=ABOUT, input_schema=SCHEMA) for name in NAMES)
    while True:
        waiting = await exchange.events.get()
        assert isinstance(waiting, WaitingCall)
        message = Message(role="tool", content=RESULT, tool_call_id=waiting.call.id)
        exchange.observe(Observation(messages=(message,), tools=tools))


if __name__ == "__main__":
    main()
