"""Play tasks on several machines with a `gymcp host` each (pip install httpx): python hosts.py ENV TASKS ADDRESS...

The episodes of a host that is lost start again on the others, and each task counts once.
"""

import asyncio
import os
import re
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import httpx

PER_HOST = 4  # episodes at a time on one host
ATTEMPTS = 3  # at a task, if one gives no score
TOKEN = os.environ.get("GYMCP_HOST_TOKEN")
HEADERS = {"Authorization": f"Bearer {TOKEN}"} if TOKEN else {}
Host = httpx.AsyncClient
CallTool = Callable[..., Awaitable[str]]
Agent = Callable[[str, CallTool], Awaitable[str]]


async def answer_user(message: str, call: CallTool) -> str:
    """The agent, which knows how to pay in examples/bank.py: put your own in its place."""
    amount = int(re.findall(r"[0-9]+", message)[0])
    await call("transfer", source="ann", target="bob", amount=amount)
    return "Bob has his money."


async def ask(host: Host, path: str, **body: Any) -> dict[str, Any]:
    """The host's answer. Raises httpx.HTTPError if the host is lost, or refuses."""
    while True:
        answer = await host.post(f"/v1/episodes{path}", json=body)
        if answer.status_code not in (429, 503):
            break
        await asyncio.sleep(1)  # the host has no room yet
    if answer.is_error:
        raise httpx.HTTPStatusError(answer.text, request=answer.request, response=answer)
    return dict(answer.json())


async def play(host: Host, environment: str, task: str, agent: Agent) -> dict[str, Any]:
    """The verdict on one episode. Raises httpx.HTTPError."""
    episode = await ask(host, "", environment=environment, task=task, agent="payer")
    path, messages = f"/{episode['id']}", episode["messages"]

    async def call(tool: str, **arguments: Any) -> str:
        return str((await ask(host, f"{path}/call", name=tool, arguments=arguments))["content"])

    try:
        while messages:  # the user has said something
            text = await agent(messages[-1]["content"], call)
            messages = (await ask(host, f"{path}/say", text=text))["messages"]
    except httpx.HTTPStatusError as error:
        if error.response.status_code != 409:  # 409: a budget is spent, so the episode is over
            raise
    return await ask(host, f"{path}/finish")


async def play_all(hosts: Sequence[Host], environment: str, tasks: Sequence[str], agent: Agent) -> dict[str, float]:
    """Task -> score, for the tasks that got one."""
    todo, scores = deque((task, ATTEMPTS) for task in tasks), dict[str, float]()

    async def work(host: Host) -> None:
        """Play one episode after another, until no task waits or the host is lost."""
        while todo:
            task, attempts = todo.popleft()
            try:
                verdict = await play(host, environment, task, agent)
            except httpx.HTTPError as error:
                verdict = {"score": None, "reason": repr(error)}
            if verdict["score"] is not None:
                scores[task] = verdict["score"]
                continue
            print(f"{task}: no score from {host.base_url}: {verdict['reason']}", file=sys.stderr)
            if attempts > 1:
                todo.append((task, attempts - 1))  # for the first place that is free
            if not await is_alive(host):
                return

    while todo and (living := [host for host in hosts if await is_alive(host)]):
        await asyncio.gather(*(work(host) for _ in range(PER_HOST) for host in living))
    return scores


async def is_alive(host: Host) -> bool:
    try:
        return (await host.get("/v1/health", timeout=10)).is_success
    except httpx.HTTPError:
        return False


async def main(environment: str, count: str, *addresses: str) -> None:
    async with AsyncExitStack() as stack:
        clients = (Host(base_url=address, headers=HEADERS, timeout=600) for address in addresses)
        hosts = [await stack.enter_async_context(client) for client in clients]
        listed = await hosts[0].get(f"/v1/environments/{environment}/tasks", params={"limit": count})
        tasks = [task["id"] for task in listed.raise_for_status().json()["tasks"]]
        scores = await play_all(hosts, environment, tasks, answer_user)
        mean = sum(scores.values()) / len(scores) if scores else float("nan")
        print(f"{len(scores)} of {len(tasks)} tasks have a score; their mean is {mean:.3f}")
        print("without a score:", ", ".join(task for task in tasks if task not in scores) or "none")
        print("lost hosts:", ", ".join([str(host.base_url) for host in hosts if not await is_alive(host)]) or "none")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
