"""Who the agent talks to."""

from __future__ import annotations

from collections.abc import Sequence

from gymcp.types import Message


class ScriptedUser:
    """Says the task's prompts one after another, whatever the agent says."""

    def __init__(self, prompts: Sequence[str]) -> None:
        self._left = list(reversed(prompts))

    async def reply(self, said: str) -> Message | None:
        """The next prompt, or None after the last. `said` is ignored; before the first prompt it is empty."""
        return Message(role="user", content=self._left.pop()) if self._left else None
