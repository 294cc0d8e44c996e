"""The environment of a run inside its wrappers, its judge's answers, and the versions that its scores depend on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from gymcp.envs.spec import EnvSpec, LoadedEnv
from gymcp.envs.wrappers.registry import WrapperSelection
from gymcp.evaluators.judge.answers import open_answers
from gymcp.mcp_servers.sandbox import Sandbox, check_images, interpreter
from gymcp.mcp_servers.sandbox.docker.images import image_name
from gymcp.mcp_servers.transports.http_remote import check_remotes, select_cassette_mode


def wrap_environment(
    spec: EnvSpec, wrappers: WrapperSelection, sandbox: Sandbox, cassette: str | None = None
) -> LoadedEnv:
    """The environment with its wrappers, after a check that its servers can run in the sandbox.

    `cassette`: ``record`` or ``replay`` for servers with a URL; None: as the environment says. Raises UsageError. The
    wrappers themselves are checked by `check_selection`, which starts the servers.
    """
    env = wrappers.apply(spec)
    env = replace(env, servers=select_cassette_mode(env.servers, cassette))
    check_remotes(env.servers, sandbox)
    check_images(sandbox, [server.image for server in env.servers if server.url is None])
    return env


def list_versions(sandbox: Sandbox, env: LoadedEnv) -> dict[str, str]:
    """Versions of everything besides gymcp that a score may depend on."""
    versions = {name: version(name) for name in ("gymnasium", "mcp", "pydantic")}
    if sandbox.runs_images:
        return versions | {"images": ", ".join(sorted({image_name(server.image) for server in env.servers}))}
    return versions | {"python_inside": ".".join(map(str, interpreter().version))}


@contextlib.contextmanager
def keep_answers(env: LoadedEnv, folder: Path) -> Iterator[LoadedEnv]:
    """The environment with a judge whose answers are kept in the run folder. Raises StoreError."""
    if env.judge is None:
        yield env
        return
    with open_answers(folder) as answers:
        yield replace(env, judge=replace(env.judge, answers=answers))
