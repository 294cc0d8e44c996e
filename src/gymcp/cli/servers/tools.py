"""``gymcp tools``: list an environment's tools, search them, and measure the recall of the search."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rich import box
from rich.table import Table

from gymcp.cli.machine.clean import remove_orphans
from gymcp.cli.output import console, print_json
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.envs.worlds.tool_listing import ToolListing, make_tool_listing
from gymcp.envs.wrappers.bm25 import rank_tools
from gymcp.envs.wrappers.retrieval import definition_chars
from gymcp.envs.wrappers.retrieval_recall import KS, RecallAt, measure_recall
from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox import check_images, get_sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.transports.http_remote import check_remotes


def execute(env: str, *, search: str | None, recall: bool, k: list[int] | None, sandbox: str, as_json: bool) -> None:
    """List the tools of an environment by server, or search them, or measure the recall of the search."""
    if search is not None and recall:
        raise ConfigError("--search, --recall: give one of them")
    if k and (search is None and not recall):
        raise ConfigError("--k: only with --search or --recall")
    if k and min(k) < 1:
        raise ConfigError(f"--k: must be at least 1, not {min(k)}")
    backend = get_sandbox(sandbox)
    backend.check()
    loaded = load_env(load_spec(env))
    check_remotes(loaded.servers, backend)
    check_images(backend, [server.image for server in loaded.servers if server.url is None])
    remove_orphans()
    offer = asyncio.run(make_tool_listing(loaded, backend))
    if search is None and not recall:
        _print_servers(loaded.servers, offer, as_json=as_json)
    elif search is not None:
        _print_matches(offer, search, max(k or [10]), as_json=as_json)
    else:
        _print_recall(loaded, offer, sorted(set(k or KS)), as_json=as_json)


def _print_servers(servers: Sequence[ServerSpec], offer: ToolListing, *, as_json: bool) -> None:
    lists = {s.name: [tool for tool in offer.tools.values() if offer.servers[tool.name] == s.name] for s in servers}
    sizes = {name: sum(map(definition_chars, tools)) for name, tools in lists.items()}
    if as_json:
        rows = [
            {"server": name, "tools": [tool.name for tool in tools], "characters": sizes[name]}
            for name, tools in lists.items()
        ]
        print_json({"servers": rows, "tools": len(offer.tools), "characters": sum(sizes.values())})
        return
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading, width in (("server", 19), ("tools", 5), ("characters", 10), ("start", 9)):
        right = heading in ("tools", "characters")  # a number that is cut off is useless
        table.add_column(heading, justify="right" if right else "left", min_width=width, no_wrap=True)
    table.add_column("among them", no_wrap=True, overflow="ellipsis")
    for server in servers:
        some = ", ".join(tool.name for tool in lists[server.name][:2])
        start = "elsewhere" if server.url else "forked" if server.fork else "spare" if server.warm_pool_size else "new"
        table.add_row(server.name, str(len(lists[server.name])), f"{sizes[server.name]:,}", start, some)
    console.print(table)
    total, characters = len(offer.tools), sum(sizes.values())
    console.print(f"{len(servers)} servers · {total} tools · {characters:,} characters of definitions", highlight=False)


def _print_matches(offer: ToolListing, words: str, count: int, *, as_json: bool) -> None:
    ranked = rank_tools(tuple(offer.tools.values()), words, offer.servers)[:count]
    if as_json:
        rows = [{"name": t.name, "server": offer.servers[t.name], "description": t.description} for t in ranked]
        print_json({"search": words, "found": rows})
        return
    if not ranked:
        console.print(f"no tool of {len(offer.tools)} shares a word with that", highlight=False)
    for rank, tool in enumerate(ranked, start=1):
        description = " ".join(tool.description.split())
        console.print(
            f"{rank:>3}  {offer.servers[tool.name]}: {tool.name}: {description[:150]}", markup=False, highlight=False
        )


def _print_recall(loaded: LoadedEnv, offer: ToolListing, ks: Sequence[int], *, as_json: bool) -> None:
    tools = tuple(offer.tools.values())
    rows = measure_recall(loaded.suite.tasks, tools, offer.servers, ks)
    if not rows:
        raise ConfigError(f"environment '{loaded.spec.name}': no task has gold calls, so nobody knows what it needs")
    if as_json:
        print_json(
            {
                "env": loaded.spec.name,
                "tools": len(tools),
                "tasks": rows[0].tasks,
                "recall": [_row(row) for row in rows],
            }
        )
        return
    title = f"{loaded.spec.name} · {rows[0].tasks} tasks · {len(tools)} tools · BM25"
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    for heading in ("k", "recall@k", "95 % interval", "best possible", "all found"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        bounds = "-" if row.ci95 is None else f"{row.ci95.low:.3f} – {row.ci95.high:.3f}"
        table.add_row(str(row.k), f"{row.recall:.3f}", bounds, f"{row.best:.3f}", f"{row.complete:.1%}")
    console.print(table)


def _row(row: RecallAt) -> dict[str, object]:
    bounds = None if row.ci95 is None else [row.ci95.low, row.ci95.high]
    return {"k": row.k, "recall": row.recall, "ci95": bounds, "best": row.best, "complete": row.complete}
