"""Seeds: the files that a task starts from, created once per content in gymcp's cache and never changed.

An initial state is ``{"files": {path: content}, "commands": [argv, ...]}``. A content is a text, None for a folder, or
``{"text" | "base64" | "target": ..., "mode": "755"}``; a target makes a symbolic link. The commands run in the sandbox,
in /workspace, one after another, with fixed dates and names.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Mapping
from pathlib import Path

from gymcp.atomic import cache_errors
from gymcp.errors import ConfigError, EnvInfraError
from gymcp.mcp_servers.digest import DigestMemo
from gymcp.mcp_servers.output_tail import drop_noise, quote_last_lines, show_output
from gymcp.mcp_servers.sandbox import Launch, Limits, Sandbox
from gymcp.mcp_servers.sandbox.users.ownership import give_to_servers
from gymcp.paths import gymcp_home
from gymcp.process_owner import staging_folder
from gymcp.scratch import remove_tree
from gymcp.types import Json

COMMAND_TIMEOUT_S = 60.0
FIXED_ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "user",
    "GIT_AUTHOR_EMAIL": "user@example.com",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "user",
    "GIT_COMMITTER_EMAIL": "user@example.com",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    "GIT_CONFIG_NOSYSTEM": "1",
    "SOURCE_DATE_EPOCH": "1767225600",
    "PYTHONHASHSEED": "0",
    "TZ": "UTC",
}
"""Environment of seed commands. A git server that has it, too, makes commits with the same ids in every episode."""
_KEYS = {"files", "commands"}
_digest = DigestMemo()


async def seed_folder(initial_state: Json, sandbox: Sandbox) -> Path:
    """The folder with these files, created if it does not exist yet.

    Raises ConfigError if the state is malformed, EnvInfraError if a command fails.
    """
    state = initial_state or {}
    if not isinstance(state, Mapping) or set(state) - _KEYS:
        raise ConfigError("initial state of files: expected an object with 'files' and 'commands'")
    folder = gymcp_home() / "seeds" / _digest(initial_state)[:32]
    if _exists(folder):
        return folder
    stack = contextlib.ExitStack()
    staging = _make_staging_folder(folder, stack)
    try:
        for path, content in state.get("files", {}).items():
            _write(staging, path, content)
        if sandbox.has_server_user:
            await asyncio.to_thread(give_to_servers, staging)
        for argv in state.get("commands", []):
            await _run(tuple(argv), staging, sandbox)
        _publish(staging, folder)
    except OSError as error:
        raise EnvInfraError(f"seed: cannot be made: {error}") from error
    finally:
        await asyncio.shield(asyncio.to_thread(remove_tree, staging))
        stack.close()
    return folder


def _exists(folder: Path) -> bool:
    return folder.is_dir()


def _make_staging_folder(folder: Path, stack: contextlib.ExitStack) -> Path:
    with cache_errors():
        staging = stack.enter_context(staging_folder(folder))
    staging.chmod(0o755)
    return staging


def _publish(staging: Path, folder: Path) -> None:
    try:
        staging.replace(folder)
    except OSError:
        if not folder.is_dir():  # else another process has published the same content first
            raise


def _write(root: Path, name: str, content: Json) -> None:
    parts = name.split("/")
    if not name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise ConfigError(f"initial state: file {name!r}: expected a relative path without '.', '..' and empty parts")
    path = root / name
    if any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(root)):
        raise ConfigError(f"initial state: file {name!r}: a folder above it is a link")
    for parent in reversed([parent for parent in path.parents if parent != root and parent.is_relative_to(root)]):
        _make_folder(parent)
    if isinstance(content, str):
        content = {"text": content}
    if content is None:
        _make_folder(path)
        return
    match content:
        case {"target": str(target)}:
            path.symlink_to(target)
            return
        case {"text": str(text)}:
            path.write_text(text, encoding="utf-8", newline="")
        case {"base64": str(encoded)}:
            path.write_bytes(base64.b64decode(encoded, validate=True))
        case _:
            raise ConfigError(f"initial state: file {name!r}: expected a text, null, or 'text', 'base64' or 'target'")
    path.chmod(int(content.get("mode", "644"), 8))


def _make_folder(path: Path) -> None:
    """Make a folder with mode 755 whatever the user's umask: modes are part of the state."""
    path.mkdir(exist_ok=True)
    path.chmod(0o755)


async def _run(argv: tuple[str, ...], folder: Path, sandbox: Sandbox) -> None:
    launch = Launch(argv=argv, env=FIXED_ENVIRONMENT, workspace=folder, limits=Limits(cpu_s=COMMAND_TIMEOUT_S))
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT_S), sandbox.start(launch) as process:
            process.stdin.close()
            await process.stdout.read()
            status = await process.wait()
            if status != 0:
                words = quote_last_lines(drop_noise(show_output(process.stderr_tail())))
                why = process.exceeded_limit() or f"ended with {status}: {words}"
                raise EnvInfraError(f"seed: command {argv[0]!r}: {why}")
    except TimeoutError as error:
        raise EnvInfraError(f"seed: command {argv[0]!r}: not done within {COMMAND_TIMEOUT_S:g} s") from error
