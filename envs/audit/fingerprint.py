"""What an environment is made of, as digests: the same on another machine and in another cache folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Set
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path

from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.mcp_servers.packages.install_folder import hash_files
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.transports.cassette import cassette_sha256
from gymcp.paths import gymcp_home
from gymcp.types import STORED_NAMES, Json, Suite

_LENGTH = 16
_LATER = frozenset({"facts", "handbook", "hijack", "scenario", "servers"})
"""Fields that suites of older runs did not have: what has none of them keeps its digest."""


def suite_digest(suite: Suite) -> str:
    """Of all that is in the tasks: ids, prompts, initial states, targets, gold, limits. Raises ConfigError."""
    found = hashlib.sha256()
    for task in suite.tasks:
        try:
            found.update(json.dumps(_plain(task), sort_keys=True, default=_plain).encode() + b"\n")
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"suite '{suite.name}': task '{task.id}' is not JSON: {error}") from error
    return found.hexdigest()[:_LENGTH]


def env_digest(env: LoadedEnv) -> str:
    """Of the servers, with the content of all that they are given to read, and of what the agent is offered of them."""
    spec = env.spec
    parts: list[Json] = [spec.anchor, asdict(spec.limits), sorted(spec.tools) if spec.tools is not None else None]
    parts += [_server(server) for server in env.servers]
    parts += [layer.settings() for layer in spec.layers]
    parts += [sorted(spec.user_tools)] if spec.user_tools else []
    parts += ["lazy"] if spec.lazy else []
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=_plain).encode()).hexdigest()[:_LENGTH]


def _server(server: ServerSpec) -> Json:
    image = _content(server.image) if isinstance(server.image, Path) else server.image
    mounts = [[_content(mount.source), str(mount.target), mount.writable] for mount in server.mounts]
    parts = [server.name, server.argv, dict(server.env), mounts, image, server.network, asdict(server.limits)]
    return [*parts, repr(server.state), server.tools_sha256, *_beyond_streams(server)]


def cassettes_of(env: LoadedEnv) -> dict[str, str]:
    """By server: the hash of the cassette that is played, or that one is being recorded. Raises ConfigError."""
    return {
        server.name: "recording" if server.recording else cassette_sha256(server.cassette)
        for server in env.servers
        if server.cassette is not None
    }


def _beyond_streams(server: ServerSpec) -> list[Json]:
    start = [server.initial_state] if server.initial_state is not None else []
    if server.url is not None:
        return [server.url, dict(server.headers), *start]
    return [*([repr(server.http)] if server.http else []), *start]


def _content(path: Path) -> str:
    """A folder of the cache is named after what is in it; of any other place it is the content that counts."""
    if path.is_relative_to(gymcp_home()):
        return str(path.relative_to(gymcp_home()))
    try:
        if path.is_dir():
            return hashlib.sha256(json.dumps(hash_files(path), sort_keys=True).encode()).hexdigest()
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"mount '{path}': cannot be read: {error.strerror or error}") from error


def _plain(value: object) -> Json:
    if is_dataclass(value) and not isinstance(value, type):
        return {
            STORED_NAMES.get(field.name, field.name): getattr(value, field.name)
            for field in fields(value)
            if field.name not in _LATER or getattr(value, field.name) not in (None, ())
        }
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
