"""Play the tasks of an environment of `gymcp host` (pip install httpx mcp): python host_client.py ADDRESS ENV."""

import asyncio
import os
import re
import sys
from typing import Any

import httpx
import httpx2
from mcp import ClientSession, MCPError
from mcp.client.streamable_http import streamable_http_client

TOKEN = os.environ.get("GYMCP_HOST_TOKEN")
HEADERS = {"Authorization": f"Bearer {TOKEN}"} if TOKEN else {}


async def answer_user(message: str, tools: ClientSession) -> str:
    """The agent, which knows how to pay in examples/bank.py: put your own in its place."""
    amount = int(re.findall(r"[0-9]+", message)[0])
    await tools.call_tool("transfer", {"source": "ann", "target": "bob", "amount": amount})
    return "Bob has his money."


async def play(host: httpx.AsyncClient, environment: str, task: str) -> dict[str, Any]:
    """The verdict on one episode."""
    episode = await ask(host, "/v1/episodes", {"environment": environment, "task": task, "agent": "payer"})
    path, messages = f"/v1/episodes/{episode['id']}", episode["messages"]
    async with (
        httpx2.AsyncClient(headers=episode["mcp"]["headers"], timeout=600) as http,
        streamable_http_client(episode["mcp"]["url"], http_client=http) as (reading, writing, *_),
        ClientSession(reading, writing) as tools,
    ):
        try:
            await tools.initialize()
            while messages:  # the user has said something
                text = await answer_user(messages[-1]["content"], tools)
                messages = (await ask(host, f"{path}/say", {"text": text}))["messages"]
        except (MCPError, httpx.HTTPStatusError):  # refused: a budget is spent, if the episode is over
            if not (await host.get(path)).raise_for_status().json()["over"]:
                raise
    return await ask(host, f"{path}/finish", {})


async def ask(host: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await host.post(path, json=body)
    if answer.is_error and answer.status_code != httpx.codes.CONFLICT:
        sys.exit(answer.json()["error"]["message"])
    return dict(answer.raise_for_status().json())


async def main(address: str, environment: str) -> None:
    async with httpx.AsyncClient(base_url=address, headers=HEADERS, timeout=600) as host:
        listed = (await host.get(f"/v1/environments/{environment}/tasks")).raise_for_status().json()
        verdicts = await asyncio.gather(*(play(host, environment, task["id"]) for task in listed["tasks"]))
        for verdict in verdicts:
            print(verdict["task"], verdict["outcome"], verdict["score"])


asyncio.run(main(*sys.argv[1:]))
