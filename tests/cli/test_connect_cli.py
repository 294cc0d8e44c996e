"""``gymcp connect``: a client over standard streams plays on an endpoint over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cli_runner import GYMCP
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from gymcp.agents.endpoint.tool_exchange import WaitingCall
from gymcp.agents.programs.exchange import Exchange
from gymcp.agents.programs.gateway import open_gateway
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.types import Message, Observation, Tool

PAY = Tool(name="pay", description="Pay an amount.", input_schema={"type": "object", "properties": {}})


def test_a_client_that_knows_only_standard_streams_plays(tmp_path: Path) -> None:
    async def work() -> None:
        folder = tmp_path / "gateway"
        folder.mkdir()
        async with open_gateway(folder, "none") as gateway:
            exchange = Exchange(None, ProgramSettings(argv=("true",)), seed=1)
            exchange.observe(Observation(messages=(), tools=(PAY,)))
            (tmp_path / "token").write_text(f"{exchange.token}\n")
            words = ["connect", f"http://127.0.0.1:{gateway.port}/mcp", "--token", str(tmp_path / "token")]
            with gateway.admit(exchange):
                async with (
                    stdio_client(StdioServerParameters(command=str(GYMCP), args=words)) as (reading, writing),
                    ClientSession(reading, writing) as session,
                ):
                    await session.initialize()
                    assert [tool.name for tool in (await session.list_tools()).tools] == ["pay"]
                    calling = asyncio.create_task(session.call_tool("pay", {"amount": 5}))
                    event = await exchange.events.get()
                    assert isinstance(event, WaitingCall)
                    assert event.call.arguments == {"amount": 5}
                    result = Message(role="tool", content="paid", tool_call_id=event.call.id)
                    exchange.observe(Observation(messages=(result,), tools=(PAY,)))
                    assert (await calling).content[0].text == "paid"  # type: ignore[union-attr]

    asyncio.run(asyncio.wait_for(work(), 60))
