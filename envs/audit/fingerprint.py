"""Digests of an environment and its suite, which are the same on any machine and with any cache folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.mcp_servers.packages.install_folder import hash_files
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.transports.cassette import cassette_sha256
from gymcp.paths import copies_folder, gymcp_home
from gymcp.store.record_json import STORED_NAMES
from gymcp.types import Json, Suite, ToolOffer, UserScript

_DIGEST_CHARS = 16
_STORED_NAMES = {**STORED_NAMES, "attack": "hijack"}
"""Names of fields in digests, if they differ from the present ones."""
_LATER_FIELDS = frozenset({"facts", "handbook", "hijack", "scenario", "servers"})
"""Stored names of later fields of `Task`: a task that does not use them keeps the digest from before they existed."""


def suite_digest(suite: Suite) -> str:
    """Digest of all fields of the tasks: ids, prompts, initial states, targets, gold, limits ... Raises ConfigError."""
    sha256 = hashlib.sha256()
    for task in suite.tasks:
        try:
            sha256.update(json.dumps(_plain(task), sort_keys=True, default=_plain).encode() + b"\n")
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"suite '{suite.name}': task '{task.id}' is not JSON: {error}") from error
    return sha256.hexdigest()[:_DIGEST_CHARS]


def env_digest(env: LoadedEnv) -> str:
    """Digest of the servers, with the content of all files they are given, and of the selection of their tools."""
    spec = env.spec
    parts: list[Json] = [spec.anchor, asdict(spec.limits), sorted(spec.tools) if spec.tools is not None else None]
    parts += [_describe_server(server) for server in env.servers]
    parts += [layer.settings() for layer in spec.layers]
    parts += [sorted(spec.user_tools)] if spec.user_tools else []
    parts += ["lazy"] if spec.lazy else []
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=_plain).encode()).hexdigest()[:_DIGEST_CHARS]


def _describe_server(server: ServerSpec) -> Json:
    image = _content(server.image) if isinstance(server.image, Path) else server.image
    mounts = [[_content(mount.source), str(mount.target), mount.writable] for mount in server.mounts]
    parts = [server.name, server.argv, dict(server.env), mounts, image, server.network, asdict(server.limits)]
    parts += [repr(server.state), server.tools_sha256, *_describe_http(server)]
    parts += [repr(server.services)] if server.services else []
    return [*parts, *([list(server.python.version)] if server.python else [])]


def hash_cassettes(env: LoadedEnv) -> dict[str, str]:
    """Server name -> hash of the cassette that is replayed, or "recording". Raises ConfigError."""
    return {
        server.name: "recording" if server.recording else cassette_sha256(server.cassette)
        for server in env.servers
        if server.cassette is not None
    }


def list_dev_sources(env: LoadedEnv) -> dict[str, Json]:
    """Server name -> hash of its source, for servers whose source was locked with ``--dev``, so not compared."""
    return {server.name: server.dev_source for server in env.servers if server.dev_source}


def _describe_http(server: ServerSpec) -> list[Json]:
    start = [server.initial_state] if server.initial_state is not None else []
    if server.url is not None:
        return [server.url, dict(server.headers), *start]
    return [*([repr(server.http)] if server.http else []), *start]


def _content(path: Path) -> str:
    """The path of a folder in the cache, which is named after its content; the content of any other file or folder."""
    if path.is_relative_to(gymcp_home()) and not path.is_relative_to(copies_folder()):
        return str(path.relative_to(gymcp_home()))
    try:
        if path.is_dir():
            return hashlib.sha256(json.dumps(hash_files(path), sort_keys=True).encode()).hexdigest()
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"mount '{path}': cannot be read: {error.strerror or error}") from error


def _plain(value: object) -> Json:
    if is_dataclass(value) and not isinstance(value, type):
        return dict(_stored_fields(value))
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _stored_fields(record: Any) -> Iterator[tuple[str, object]]:
    """(stored name, value) of each field. The groups of a `Task` are stored as fields of the task itself."""
    for field in fields(record):
        name, value = _STORED_NAMES.get(field.name, field.name), getattr(record, field.name)
        if isinstance(value, UserScript | ToolOffer):
            yield from _stored_fields(value)
        elif name not in _LATER_FIELDS or value not in (None, ()):
            yield name, value
