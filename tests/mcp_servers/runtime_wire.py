"""The native runtime in a process of its own, as a sandbox mounts it, and spoken to line by line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import gymcp.mcp_servers.native.runtime

RUNTIME = Path(gymcp.mcp_servers.native.runtime.__file__)
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(-5, 5).map(lambda x: round(x, 1))
    | st.text("abé", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


def isolated_argv(root: Path) -> list[str]:
    code = f"import sys; sys.path.insert(0, {str(root)!r}); import gymcp.mcp_servers.programs.notes"
    return [sys.executable, "-I", "-S", "-c", code]


class Wire:
    """The server process, spoken to line by line."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            isolated_argv(root), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.asked = 0

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, method: str, **params: Any) -> Any:
        """The result, or the error object."""
        self.asked += 1
        self.send(json.dumps({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params}).encode())
        answer = self.receive()
        assert answer["id"] == self.asked
        return answer.get("result", answer.get("error"))

    def call(self, name: str, **arguments: Any) -> Any:
        return self.ask("tools/call", name=name, arguments=arguments)

    def close(self) -> int:
        """The exit status after stdin ended."""
        with self.process:
            self.process.communicate()
        return self.process.returncode
