"""Local servers of four kinds as environments: made by `gymcp new`, checked by `gymcp check`, reset at a rate.

The kinds: a FastMCP file whose dependencies stand in it (PEP 723), a folder with a pyproject.toml, TypeScript with a
package.json, and a server that speaks only HTTP. Each keeps a file, which is its state. A reset is a server in a
sandbox of its own, on a world of its own, with its tools listed and its files digested; every digest is compared.
The packages come from their registries. Fails if a check fails, or if a state is not a digest of files. Before all of
this, one command goes from a FastMCP file to a first checked episode with empty caches, as on a new machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rates import UNIT, WORKERS, measure_rate
from report_table import Result, against, options, show

from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import load_env
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.spec import FileState, ServerSpec

TOOLS = '''
FILE = Path("kv.json")


@server.tool()
def put(key: str, value: str) -> str:
    """Store a value under a key."""
    FILE.write_text(json.dumps({**read_all(), key: value}))
    return "stored"


@server.tool()
def get(key: str) -> str:
    """Return the value of a key."""
    return read_all()[key]


def read_all() -> dict[str, str]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}
'''
FASTMCP = f"""\
# /// script
# dependencies = ["fastmcp>=2,<4"]
# ///
import json
from pathlib import Path

from fastmcp import FastMCP

server = FastMCP("kv")
{TOOLS}

if __name__ == "__main__":
    server.run(show_banner=False)
"""
PROJECT = f"""\
import json
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("kv")
{TOOLS}

def main() -> None:
    server.run()
"""
PYPROJECT = """\
[project]
name = "kv-tools"
version = "1.0"
dependencies = ["mcp>=2,<3"]
scripts = {kv = "kv_tools:main"}
"""
PORT = 8123
HTTP = f"""\
# /// script
# dependencies = ["mcp>=2,<3"]
# ///
import json
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("kv")
{TOOLS}

if __name__ == "__main__":
    server.run("streamable-http", port={PORT})
"""
TYPESCRIPT = """\
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { z } from "zod";
import { text } from "./answers.js";

type Store = Record<string, string>;
const FILE = "kv.json";
const readAll = (): Store => (existsSync(FILE) ? (JSON.parse(readFileSync(FILE, "utf8")) as Store) : {});
const server = new McpServer({ name: "kv", version: "1.0.0" });

server.registerTool(
  "put",
  { description: "Store a value under a key.", inputSchema: { key: z.string(), value: z.string() } },
  async ({ key, value }) => {
    writeFileSync(FILE, JSON.stringify({ ...readAll(), [key]: value }));
    return text("stored");
  },
);
server.registerTool(
  "get",
  { description: "Return the value of a key.", inputSchema: { key: z.string() } },
  async ({ key }) => text(readAll()[key]),
);
await server.connect(new StdioServerTransport());
"""
ANSWERS = """\
export const text = (words: string) => ({ content: [{ type: "text" as const, text: words }] });
"""
PACKAGE = {
    "name": "kv",
    "version": "1.0.0",
    "type": "module",
    "bin": "src/kv.ts",
    "dependencies": {"@modelcontextprotocol/sdk": "1.20.0", "zod": "3.25.76"},
    "devDependencies": {"typescript": "5.4.5"},
}
TARGET_S = 180.0
"""Seconds from a FastMCP file to a first checked episode, with empty caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of local server."""

    name: str
    files: Mapping[str, str]
    options: tuple[str, ...]
    """Options of `gymcp new`."""


KINDS = (
    Kind(name="FastMCP file, PEP 723", files={"kv_server.py": FASTMCP}, options=("--server", "python kv_server.py")),
    Kind(
        name="folder with pyproject.toml",
        files={"project/pyproject.toml": PYPROJECT, "project/kv_tools/__init__.py": PROJECT},
        options=("--path", "project"),
    ),
    Kind(
        name="TypeScript with package.json",
        files={"ts/package.json": json.dumps(PACKAGE), "ts/src/kv.ts": TYPESCRIPT, "ts/src/answers.ts": ANSWERS},
        options=("--path", "ts"),
    ),
    Kind(
        name="only HTTP",
        files={"web.py": HTTP},
        options=("--server", "python web.py", "--http", str(PORT)),
    ),
)


def main() -> None:
    parser = options(__doc__, "a quarter of the repetitions")
    parser.add_argument("--new-only", action="store_true", help="measure only the one command with empty caches")
    args = parser.parse_args()
    sandbox = get_sandbox("bwrap")
    sandbox.check()
    results = [_measure_one_command(KINDS[0])]
    for kind in () if args.new_only else KINDS:
        with tempfile.TemporaryDirectory() as folder:
            measured = _measure_kind(kind, Path(folder), sandbox, 1 if args.quick else 4)
        print(
            ", ".join(f"{each.metric}: {each.value:.2f} {each.unit}" for each in measured), file=sys.stderr, flush=True
        )
        results += measured
    show("own_servers", results, as_json=args.json)


def _measure_one_command(kind: Kind) -> Result:
    """Seconds of `gymcp new --check` with empty caches. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_files(kind, folder)
        caches = {"GYMCP_HOME": f"{name}/home", "UV_CACHE_DIR": f"{name}/uv"}
        seconds = _run(folder, "new", "made", "--server-name", "kv", *kind.options, "--check", env=caches)
    target = Result(metric="target", value=TARGET_S, unit="s")
    return against(f"new --check: {kind.name}, empty caches", seconds, "s", target)


def _write_files(kind: Kind, folder: Path) -> None:
    for name, text in kind.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _measure_kind(kind: Kind, folder: Path, sandbox: Sandbox, scale: int) -> list[Result]:
    """Seconds to an environment that has passed its check, and resets/s. Raises RuntimeError if it does not pass."""
    _write_files(kind, folder)
    made_s = _run(folder, "new", "made", "--server-name", "kv", *kind.options)
    checked_s = _run(folder, "check", "made.py", "--json")
    (spec,) = load_env(load_spec(str(folder / "made.py"))).servers
    if not isinstance(spec.state, FileState):
        raise RuntimeError(f"{kind.name}: its state is {spec.state}, not its files")
    started, ready = asyncio.run(_measure_rates(spec, sandbox, 16 * scale))
    base = Result(metric=f"{kind.name}, started in bwrap", value=started, unit=UNIT)
    way = "forked" if spec.fork is not None else f"pool of {WORKERS} warm servers"
    return [
        Result(metric=f"{kind.name}, gymcp new", value=made_s, unit="s"),
        Result(metric=f"{kind.name}, gymcp check, all passed", value=checked_s, unit="s"),
        base,
        against(f"{kind.name}, {way}", ready, UNIT, base),
    ]


def _run(folder: Path, *words: str, env: Mapping[str, str] | None = None) -> float:
    """Seconds of a gymcp command. Raises RuntimeError with its output if it fails."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "gymcp.cli", *words]
    environment = {**os.environ, **(env or {})}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode != 0:
        raise RuntimeError(f"gymcp {' '.join(words)}: {done.stdout}{done.stderr}")
    return time.perf_counter() - begin


async def _measure_rates(spec: ServerSpec, sandbox: Sandbox, count: int) -> tuple[float, float]:
    """Resets/s of started servers, and of servers that are forked or wait in a warm pool."""
    clean = await _reset(spec, sandbox)
    started = await measure_rate(lambda: _reset(spec, sandbox, clean), count)
    spec = replace(spec, warm_pool_size=WORKERS)
    async with open_warm_sandbox(sandbox) as warm:
        await measure_rate(lambda: _reset(spec, warm, clean), WORKERS)  # starts the template, fills the pool
        return started, await measure_rate(lambda: _reset(spec, warm, clean), 2 * count)


async def _reset(spec: ServerSpec, sandbox: Sandbox, clean: str | None = None) -> str:
    """The key of a fresh world. Raises RuntimeError if `clean` is given and the key differs."""
    async with open_session(spec, sandbox, initial_state=None, seed=0) as session:
        await session.update()
        if clean is not None and session.world_key != clean:
            raise RuntimeError(f"'{spec.name}': not clean: {session.world_key} instead of {clean}")
        return session.world_key


if __name__ == "__main__":
    main()
