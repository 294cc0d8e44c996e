"""A forked server that turned against its sandbox: it runs the code it is given."""

from __future__ import annotations

from typing import Any


class Captive:
    def __init__(self) -> None:
        self.note = ""
        self._kept: dict[str, Any] = {}

    def run(self, code: str) -> str:
        """Run the code and return what it leaves in `out`; its `attempt` says how an act fails."""

        def attempt(act: Any) -> str:
            try:
                result = act()
            except OSError as error:
                return str(error.strerror)
            return f"WORKED {result!r}"

        names: dict[str, Any] = {"out": None, "attempt": attempt, "kept": self._kept}
        start = "import ctypes, os, signal, socket\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        exec(start + code, names)  # noqa: S102
        return str(names["out"])
