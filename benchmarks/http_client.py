"""CPU time per request of gymcp's own HTTP client, and how many times as much httpx and aiohttp take.

All clients send the same bytes to the same server on loopback, a process of its own, and read the whole body of the
answer, each with a timeout: a chat completion and a vLLM answer of 256 tokens with logprobs, over 1 and over 64
connections. The clients take turns within one run, several rounds; the median round counts. httpx is a dependency of
gymcp. aiohttp is not: if it cannot be imported, it is not measured, and the output says so. The own client is to be
replaced by aiohttp if a request costs at most 1.5 times its CPU time.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from canned_server import ANSWERS
from child_processes import run_port_server
from report_table import Result, all_against, options, show

from gymcp.agents.policies.http_client import open_http_client

SERVER = Path(__file__).with_name("canned_server.py")
TIMEOUT_S = 60.0
"""Seconds that a request may take; all clients pay for the timer."""
HEADERS = {"content-type": "application/json", "accept": "application/json", "authorization": "Bearer " + "k" * 40}
CONNECTIONS = (1, 64)
WARM_UP = 2
"""Requests per connection before the measured ones: they open the connections."""

Post = Callable[[str, bytes], Awaitable[bytes]]
"""Sends a body to a path and returns the body of the answer."""
Open = Callable[[str, int], AbstractAsyncContextManager[Post]]
"""Opens a client for an address with a number of connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One kind of request."""

    name: str
    path: str
    content: bytes


def make_workloads() -> tuple[Workload, ...]:
    """A chat request of about 8 kB, and a token request with a prompt of 2,000 ids."""
    text = "The customer C-1042 asks whether the parcel can still be returned. "
    messages = [
        {"role": role, "content": text * 20} for role in ("system", "user", "assistant", "user", "tool", "user")
    ]
    chat = {"model": "m", "messages": messages, "max_tokens": 1024, "temperature": 1.0, "seed": 7}
    ids = [1000 + 31 * number % 30000 for number in range(2000)]
    tokens = {"model": "m", "token_ids": ids, "sampling_params": {"max_tokens": 256, "temperature": 1.0, "logprobs": 0}}
    return (
        Workload(name="chat completion", path="/chat", content=json.dumps(chat).encode()),
        Workload(name="256 tokens with logprobs", path="/tokens", content=json.dumps(tokens).encode()),
    )


@contextlib.asynccontextmanager
async def open_own(url: str, connections: int) -> AsyncIterator[Post]:
    """gymcp's client, with the timeout that its callers set; it opens as many connections as there are requests."""
    async with open_http_client(url, HEADERS, proxied=False) as client:

        async def post(path: str, content: bytes) -> bytes:
            async with asyncio.timeout(TIMEOUT_S):
                return (await client.request("POST", path, content, max_bytes=1_000_000)).body

        yield post


@contextlib.asynccontextmanager
async def open_httpx(url: str, connections: int) -> AsyncIterator[Post]:
    """httpx with a pool of this size."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    async with httpx.AsyncClient(
        base_url=url, headers=HEADERS, limits=limits, timeout=TIMEOUT_S, trust_env=False
    ) as client:

        async def post(path: str, content: bytes) -> bytes:
            return (await client.post(path, content=content)).content

        yield post


@contextlib.asynccontextmanager
async def open_aiohttp(url: str, connections: int) -> AsyncIterator[Post]:
    """aiohttp with a pool of this size."""
    aiohttp: Any = importlib.import_module("aiohttp")
    connector = aiohttp.TCPConnector(limit=connections)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(url, headers=HEADERS, connector=connector, timeout=timeout) as session:

        async def post(path: str, content: bytes) -> bytes:
            async with session.post(path, data=content) as response:
                body: bytes = await response.read()
                return body

        yield post


def can_import(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


async def measure_cpu_us(open_client: Open, url: str, workload: Workload, connections: int, requests: int) -> float:
    """Microseconds of this process's CPU time per request, with all connections open and busy."""
    expected = len(ANSWERS[workload.path])

    async def work(post: Post, count: int) -> None:
        for _ in range(count):
            body = await post(workload.path, workload.content)
            if len(body) != expected:
                raise RuntimeError(f"an answer of {len(body)} bytes instead of {expected}")

    async with open_client(url, connections) as post:
        await asyncio.gather(*(work(post, WARM_UP) for _ in range(connections)))
        started = time.process_time()
        await asyncio.gather(*(work(post, requests // connections) for _ in range(connections)))
        cpu_s = time.process_time() - started
    return 1e6 * cpu_s / (requests // connections * connections)


def measure(clients: Mapping[str, Open], url: str, rounds: int, requests: int) -> list[Result]:
    """Every workload over every number of connections; the own client is the baseline of each."""
    results: list[Result] = []
    for workload in make_workloads():
        for connections in CONNECTIONS:
            figures: dict[str, list[float]] = {name: [] for name in clients}
            for _ in range(rounds):
                for name, open_client in clients.items():
                    cpu_us = asyncio.run(measure_cpu_us(open_client, url, workload, connections, requests))
                    figures[name].append(cpu_us)
            noun = "connection" if connections == 1 else "connections"
            place = f"{workload.name}, {connections} {noun}"
            values = {f"{name}: {place}": statistics.median(values) for name, values in figures.items()}
            results += all_against(values, "us CPU/request", f"gymcp: {place}")
    return results


def main() -> None:
    parser = options(__doc__, "two rounds of 640 requests")
    args = parser.parse_args()
    rounds, requests = (2, 640) if args.quick else (5, 1920)
    clients: dict[str, Open] = {"gymcp": open_own, "httpx": open_httpx}
    also = f", httpx {httpx.__version__}"
    if can_import("aiohttp"):
        clients["aiohttp"] = open_aiohttp
        also += f", aiohttp {importlib.import_module('aiohttp').__version__}"
    else:
        also += ", aiohttp ABSENT"
        print("aiohttp cannot be imported in this virtualenv, so it was not measured", file=sys.stderr)
    with run_port_server(str(SERVER)) as (_, url):
        results = measure(clients, url, rounds, requests)
    show("http client", results, as_json=args.json, title="CPU time of HTTP clients", also=also)


if __name__ == "__main__":
    main()
