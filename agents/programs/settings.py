"""Settings of agent programs, and the command that starts one."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from gymcp.agents.strategies.budgets import Budget
from gymcp.envs.catalog import source_of
from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox import Limits
from gymcp.types import Json, Sampling

PREFIX = "cmd:"
PROMPT, PROMPT_FILE = "{prompt}", "{prompt_file}"
"""Placeholders in a command: for the user's message, and for the path of a file that holds the message."""
MCP_CONFIG, STDIO_CONFIG = "{mcp_config}", "{mcp_stdio_config}"
"""Words of a command that stand for the path of a file with the episode's tools, over HTTP or over standard streams."""

MAX_ARGUMENT_BYTES = 131_071
"""Bytes of the longest argument that Linux gives to a program."""
SandboxName = Literal["bwrap", "none"]
Turns = Literal["restart", "stdin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSettings:
    """A program that plays episodes, and the settings that are the same in all episodes of a run."""

    argv: tuple[str, ...]
    """The command. `PROMPT` and `PROMPT_FILE` in it stand for the user's message; without them the program reads it
    from standard input."""
    sandbox: SandboxName = "bwrap"
    mounts: tuple[Path, ...] = ()
    """Further files and folders of the host that the program may read, at the same paths."""
    hidden: tuple[Path, ...] = ()
    """Files and folders that the program may not read."""
    env: str = ""
    """The environment that is played; its own files, which hold the solutions, are hidden."""
    turns: Turns = "restart"
    """``restart``: a new process for each message of the user. ``stdin``: one process, which reads a line of JSON
    ``{"prompt": ...}`` for each message and ends its turn with a line of JSON ``{"text": ...}``."""
    sampling: Sampling = field(default_factory=Sampling)
    """Sampling settings of the model, whatever the program asks for."""
    budget: Budget = field(default_factory=Budget)
    limits: Limits = field(default_factory=lambda: Limits(memory_mb=4096, processes=256, disk_mb=1024))

    @property
    def name(self) -> str:
        """The agent's name in records."""
        return PREFIX + shlex.join(self.argv)

    @property
    def digest(self) -> str:
        """SHA-256 over the files that the command names."""
        whole = hashlib.sha256()
        for path in (Path(word) for word in self.argv if names_path(word) and Path(word).is_file()):
            with path.open("rb") as file:  # it may be a model of many gigabytes
                whole.update(hashlib.file_digest(file, "sha256").digest())
        return whole.hexdigest()

    def config(self) -> dict[str, Json]:
        """Entries of ``run.json``: what scores depend on beside the agent's name and the model."""
        return {
            "agent_sandbox": self.sandbox,
            "agent_turns": self.turns,
            "agent_mounts": [str(path) for path in self.mounts],
            "agent_digest": self.digest,
        }


def names_path(word: str) -> bool:
    """True if the word of a command names a file or folder of the host. A text that is too long for a path does not,
    and no more does an empty one, which `Path` takes for the working folder."""
    try:
        return bool(word) and Path(word).exists()
    except OSError:
        return False


def find_fault_of_prompt(argv: Sequence[str], prompt: str) -> str:
    """Reason why the user's message cannot be an argument of the command; empty if it can, or is not to be one."""
    sizes = [len(word.replace(PROMPT, prompt).encode(errors="replace")) for word in argv if PROMPT in word]
    if sizes and "\0" in prompt:
        return f"the user's message has a NUL character, which no argument can hold: write {PROMPT_FILE} for {PROMPT}"
    if max(sizes, default=0) > MAX_ARGUMENT_BYTES:
        return (
            f"with the user's message an argument has {max(sizes):,} bytes, and {MAX_ARGUMENT_BYTES:,} are the most:"
            f" write {PROMPT_FILE} for {PROMPT}"
        )
    return ""


def is_program(agent: str) -> bool:
    """True if the name of an agent is a command."""
    return agent.startswith(PREFIX)


def parse_command(agent: str) -> tuple[str, ...]:
    """The words of ``cmd:PROGRAM ARGS``, split as a shell would. Raises ConfigError."""
    try:
        argv = tuple(shlex.split(agent.removeprefix(PREFIX)))
    except ValueError as error:
        raise ConfigError(f"agent '{agent}': cannot be split into words: {error}") from error
    if not argv or not argv[0]:
        raise ConfigError(f"agent '{agent}': no program; write cmd:PROGRAM ARGS")
    if sum(PROMPT in word or PROMPT_FILE in word for word in argv) > 1:
        raise ConfigError(f"agent '{agent}': {PROMPT} or {PROMPT_FILE} stands in it more than once")
    return argv


def make_program(
    agent: str,
    *,
    sandbox: str = "bwrap",
    stdin: bool = False,
    mounts: Sequence[Path] = (),
    env: str = "",
) -> ProgramSettings:
    """The settings of ``cmd:PROGRAM ARGS`` with options as the user wrote them. Raises ConfigError.

    `stdin`: one process reads every message of the user. `env`: the environment, whose files are hidden.
    """
    if sandbox not in get_args(SandboxName):
        raise ConfigError(
            f"agent '{agent}': no sandbox '{sandbox}' for programs; have {', '.join(get_args(SandboxName))}"
        )
    argv = parse_command(agent)
    if stdin and (word := next((word for word in (PROMPT, PROMPT_FILE) if any(word in each for each in argv)), None)):
        raise ConfigError(f"agent '{agent}': it reads every message on standard input; leave {word} out")
    return ProgramSettings(
        argv=argv,
        sandbox="none" if sandbox == "none" else "bwrap",
        turns="stdin" if stdin else "restart",
        mounts=tuple(mounts),
        env=source_of(env),
    )
