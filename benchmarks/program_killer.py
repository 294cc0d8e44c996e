"""A model that kills the program it answers: as a crash in mid-episode, seen from outside."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from gymcp.agents.programs.folder import PROMPT_NAME
from gymcp.protocols import ChatPolicy
from gymcp.types import Decision, Message, Sampling, Tool


class Killer:
    """Answers as another model does, but kills each victim with SIGKILL once it shows the result of its first call."""

    def __init__(self, policy: ChatPolicy, words: Sequence[str], prompts: Sequence[str]) -> None:
        """`words`: the program's command behind its first word. `prompts`: messages of the user to the victims."""
        self._policy = policy
        self._words = words
        self._living = set(prompts)

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        if any(message.role == "assistant" for message in messages):
            for prompt in [prompt for prompt in self._living if any(prompt in each.content for each in messages)]:
                self._living.remove(prompt)
                os.kill(find_program(self._words, prompt), signal.SIGKILL)
        return await self._policy.chat(messages, tools, sampling)


def find_program(words: Sequence[str], prompt: str) -> int:
    """Id of the process with this command behind its first word, and this message of the user in its working folder.

    Raises LookupError if none is such.
    """
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_text().split("\0")[:-1]
            if command[1:] == list(words) and (process / "cwd" / PROMPT_NAME).read_text() == prompt:
                return int(process.name)
        except (OSError, ValueError):  # no process, one that has ended, or another's
            continue
    raise LookupError(f"no process runs {' '.join(words)!r} for this prompt: {prompt}")
