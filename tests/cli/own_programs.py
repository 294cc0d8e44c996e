"""Servers as a user writes them, in files that need no package: the wire by hand, the world in the working folder."""

from __future__ import annotations

from pathlib import Path

SERVE = '''\
"""Serves functions as tools over standard input and output."""
import json
import sys


def serve(*tools):
    by_name = {tool.__name__: tool for tool in tools}
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = answer(by_name, message["method"], message.get("params", {}))
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


def answer(by_name, method, params):
    if method == "initialize":
        about = {"name": "own", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [describe(tool) for tool in by_name.values()]}
    try:
        text, failed = str(by_name[params["name"]](**params.get("arguments", {}))), False
    except Exception as error:
        text, failed = repr(error), True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def describe(tool):
    names = tool.__code__.co_varnames[: tool.__code__.co_argcount]
    properties = {name: {"type": "string"} for name in names}
    schema = {"type": "object", "properties": properties, "required": list(names)}
    return {"name": tool.__name__, "description": tool.__doc__ or "", "inputSchema": schema}
'''
KV = '''\
import os
import socket
from pathlib import Path

from wire import serve


def put(key, value):
    """Store a value under a key."""
    Path("kv.txt").write_text(f"{key}={value}")
    return "stored"


def get(key):
    """Return the value of a key."""
    stored, _, value = Path("kv.txt").read_text().partition("=")
    assert stored == key
    return value


def look():
    """List the files of the server's own source, and try to change one."""
    try:
        open("/srv/source/wire.py", "a").close()
    except OSError:
        return sorted(os.listdir("/srv/source")), "refused"


def fetch(host):
    """Return the address of a host."""
    return socket.getaddrinfo(host, 80)


def main():
    serve(put, get, look, fetch)


if __name__ == "__main__":
    main()
'''
KV_JS = """\
import { readFileSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { describe } from "./tools.js";

const call = {
  put: ({ key, value }) => { writeFileSync("kv.txt", `${key}=${value}`); return "stored"; },
  get: () => readFileSync("kv.txt", "utf8"),
};
createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  let result;
  if (method === "initialize") {
    const serverInfo = { name: "kv", version: "1" };
    result = { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo };
  } else if (method === "tools/list") {
    result = { tools: describe(["put", "key", "value"], ["get", "key"]) };
  } else {
    try {
      result = { content: [{ type: "text", text: call[params.name](params.arguments) }] };
    } catch (error) {
      result = { content: [{ type: "text", text: String(error) }], isError: true };
    }
  }
  console.log(JSON.stringify({ jsonrpc: "2.0", id, result }));
});
"""
TOOLS_JS = """\
export const describe = (...rows) => rows.map(([name, ...args]) => ({
  name,
  inputSchema: schema(args),
}));
const schema = (args) => ({
  type: "object",
  properties: Object.fromEntries(args.map((arg) => [arg, { type: "string" }])),
  required: args,
});
"""
KV_TS = KV_JS.replace(
    "const call = {", "type Call = (args: Record<string, string>) => string;\nconst call: Record<string, Call> = {"
)
TOOLS_TS = TOOLS_JS.replace("(...rows) =>", "(...rows: string[][]) =>").replace("(args) =>", "(args: string[]) =>")
HTTP = """\
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from wire import answer


def double(text):
    "Twice a text."
    return 2 * text


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(405)

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200 if "id" in message else 202)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if "id" in message:
            result = answer({"double": double}, message["method"], message.get("params", {}))
            self.wfile.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 8123), Handler).serve_forever()
"""
COUNTER = """\
import http.server
import pathlib


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        count = int(COUNT.read_text()) + 1
        COUNT.write_text(str(count))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(count).encode())


COUNT = pathlib.Path("count.txt")
COUNT.write_text("0")
http.server.HTTPServer(("127.0.0.1", 8080), Handler).serve_forever()
"""
COUNTS = """\
import urllib.request

from wire import serve


def count():
    "Count on by one."
    with urllib.request.urlopen("http://127.0.0.1:8080/") as answer:
        return answer.read().decode()


serve(count)
"""
PYPROJECT = """\
[project]
name = "kv-tools"
version = "2.1"
dependencies = []
scripts = {kv = "kv_tools.app:main"}
"""


def write_kv(folder: Path) -> Path:
    """A program ``kv_server.py`` with the module that it imports, beside a file with gold."""
    folder.mkdir(exist_ok=True)
    (folder / "kv_server.py").write_text(KV)
    (folder / "wire.py").write_text(SERVE)
    (folder / "gold.py").write_text("GOLD = 'secret'")
    return folder


def write_project(folder: Path) -> Path:
    """A project with the console script ``kv`` and the module ``kv_tools.app``, in the layout with ``src``."""
    package = folder / "src" / "kv_tools"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").write_text("from importlib.metadata import version\n\nVERSION = version('kv-tools')\n")
    (package / "app.py").write_text(KV.replace("from wire", "from kv_tools.wire"))
    (package / "wire.py").write_text(SERVE)
    return folder


def write_javascript(folder: Path, dependencies: str = "{}") -> Path:
    """A program ``kv.js`` of a folder with a package.json, which names the dependencies."""
    folder.mkdir(exist_ok=True)
    (folder / "kv.js").write_text(KV_JS)
    (folder / "tools.js").write_text(TOOLS_JS)
    (folder / "package.json").write_text(f'{{"type": "module", "bin": "kv.js", "dependencies": {dependencies}}}')
    return folder


def write_typescript(folder: Path) -> Path:
    """A program ``kv.ts``, which imports ``./tools.js`` for tools.ts, of a folder with the compiler in package.json."""
    folder.mkdir(exist_ok=True)
    (folder / "kv.ts").write_text(KV_TS)
    (folder / "tools.ts").write_text(TOOLS_TS)
    compiler = '"devDependencies": {"typescript": "5.4.5"}'
    (folder / "package.json").write_text(f'{{"type": "module", "bin": "kv.ts", {compiler}}}')
    return folder
