"""A server as others write them: its state in globals, no library of gymcp's. Served by `test_fork_scripts.py`."""

from __future__ import annotations

import json
import sys
from typing import Any

import extra  # type: ignore[import-not-found]  # beside it where it runs

LOADED = sorted(sys.modules)
seen: list[str] = []


def run(code: str) -> str:
    scope: dict[str, Any] = {
        "seen": seen,
        "loaded": LOADED,
        "extra": extra,
        "main": sys.modules["__main__"],
        "out": None,
    }
    exec(code, scope)  # noqa: S102
    return str(scope["out"])


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        about = {"name": "script", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        schema = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
        return {"tools": [{"name": "run", "inputSchema": schema}]}
    try:
        text, failed = run(params["arguments"]["code"]), False
    except Exception as error:
        text, failed = repr(error), True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def main() -> None:
    import sqlite3  # noqa: F401, PLC0415 - late, as many do

    extra.begin()
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = answer(message["method"], message.get("params", {}))
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
