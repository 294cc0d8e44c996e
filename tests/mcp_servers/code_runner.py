"""A server for tests of forking: it runs any code that it is given, which no real forked server may do."""

from __future__ import annotations

from typing import Any


class CodeRunner:
    seen: list[str] = []  # noqa: RUF012 - shared on purpose: it must not outlive an episode

    def __init__(self, note: str = "") -> None:
        self.note = note
        self._kept: list[Any] = []

    def write(self, note: str) -> str:
        """Change the state."""
        self.note = note
        return note

    def run(self, code: str) -> str:
        """Value of `out` after the code has run."""
        names: dict[str, Any] = {"out": None, "self": self, "seen": self.seen}
        exec(code, names)  # noqa: S102
        return str(names["out"])


class Threaded:
    import threading  # noqa: PLC0415 - only the class itself enters the sandbox

    threading.Thread(target=threading.Event().wait, daemon=True).start()

    def ping(self) -> str:
        """Pong."""
        return "pong"
