"""TypeScript as it is: in the sandbox, the project's own compiler leaves the types out when a file is imported.

The copy of the source gets two files: one is started, and registers the other, which gives each .ts file to the
compiler. Types are not checked. A project without the compiler needs node 22.18, which leaves them out by itself.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
from collections.abc import Mapping

from gymcp.errors import ConfigError
from gymcp.mcp_servers.packages.node import NODE

TYPESCRIPT = (".ts", ".mts", ".cts")
RUNS_TYPESCRIPT = (22, 18)
"""Oldest version of node that runs TypeScript as it is, by leaving the types out."""
HAS_HOOKS = (20, 6)
"""Oldest version of node in which a module can be translated when it is imported."""
COMPILER = "typescript"
"""Package that must be among the dependencies, or the development dependencies, of the project."""
START_FILE, HOOKS_FILE = "gymcp_start.mjs", "gymcp_typescript.mjs"
_START = """\
import { register } from "node:module";
import { fileURLToPath } from "node:url";

register("./%(hooks)s", import.meta.url);
const program = new URL(%(name)s, import.meta.url);
process.argv[1] = fileURLToPath(program);
await import(program.href);
"""
_HOOKS = """\
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const compilerOptions = {
  experimentalDecorators: true,
  inlineSourceMap: true,
  jsx: ts.JsxEmit.ReactJSX,
  module: ts.ModuleKind.ESNext,
  target: ts.ScriptTarget.ES2022,
};

// The compiler lets "./tools.js" and "./tools" stand for tools.ts.
const namesOf = (name) => [name.replace(/\\.([cm]?)js$/, ".$1ts"), `${name}.ts`, `${name}/index.ts`];

export async function resolve(specifier, context, next) {
  try {
    return await next(specifier, context);
  } catch (error) {
    for (const name of /^\\.{0,2}\\//.test(specifier) ? namesOf(specifier) : []) {
      try {
        return await next(name, context);
      } catch {
        // the next name
      }
    }
    throw error;
  }
}

export async function load(url, context, next) {
  if (!/\\.m?ts$/.test(url)) return next(url, context);
  const fileName = fileURLToPath(url);
  const { outputText } = ts.transpileModule(await readFile(fileName, "utf8"), { compilerOptions, fileName });
  return { format: "module", shortCircuit: true, source: outputText };
}
"""


def find_compiler(who: str, name: str, content: Mapping[str, object]) -> dict[str, str]:
    """Version by name of the compiler among the dependencies in a package.json; empty if the program needs none.

    Raises ConfigError for TypeScript without a compiler, on a node that does not run it.
    """
    if not name.endswith(TYPESCRIPT):
        return {}
    version = node_version()
    for kind in ("dependencies", "devDependencies"):
        table = content.get(kind)
        compiler = table.get(COMPILER) if isinstance(table, dict) else None
        if isinstance(compiler, str) and version >= HAS_HOOKS and not name.endswith(".cts"):
            return {COMPILER: compiler}
    if version >= RUNS_TYPESCRIPT:
        return {}
    raise ConfigError(
        f"{who}: '{name}' is TypeScript, which node {version[0]}.{version[1]} does not run (22.18 and newer do); add "
        f"its compiler to the project, npm install --save-dev {COMPILER}, or build it, and give the JavaScript: node "
        "dist/FILE.js"
    )


def start_files(name: str) -> dict[str, str]:
    """Texts of the files that start the program, by name; `START_FILE` is run."""
    return {START_FILE: _START % {"hooks": HOOKS_FILE, "name": json.dumps(f"./{name}")}, HOOKS_FILE: _HOOKS}


@functools.cache
def node_version() -> tuple[int, int]:
    """Version of the node that the sandbox shows; (0, 0) if there is none."""
    try:
        done = subprocess.run([str(NODE), "--version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0, 0
    match = re.match(r"v(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)
