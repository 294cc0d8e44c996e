"""``gymcp host``: serve the episodes of environments over HTTP until Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gymcp.agents.runner.environment import wrap_environment
from gymcp.agents.runner.run import run_until_signalled
from gymcp.cli.evaluation.eval_run import make_run_folder
from gymcp.cli.machine.clean import remove_orphans
from gymcp.cli.output import in_one_line
from gymcp.envs.catalog import source_of
from gymcp.envs.recorded import load_named
from gymcp.envs.spec import EnvSpec
from gymcp.envs.wrappers.selection import WrapperSelection
from gymcp.errors import ConfigError, StoreError
from gymcp.host.host import HostLimits
from gymcp.host.openapi import describe_api
from gymcp.host.runs import Runs, RunSettings, ServedEnvironment
from gymcp.host.serve import Place, check_place, listen, serve_host
from gymcp.host.tokens import TOKEN_VARIABLE, read_service_token
from gymcp.mcp_servers.sandbox import get_sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """The options of ``gymcp host`` that are neither addresses nor limits."""

    env: Sequence[str]
    sandbox: str
    out: Path | None
    resume: bool
    seed: int
    agent_s: float | None


def execute(
    env: list[str] | None,
    *,
    address: str,
    port: int,
    token_file: Path | None,
    max_live: int,
    idle_timeout: float,
    max_episode_seconds: float | None,
    sandbox: str,
    seed: int,
    out: Path | None,
    resume: bool,
    openapi: bool,
) -> None:
    """Serve the environments until SIGINT or SIGTERM, or print the OpenAPI document."""
    if openapi:
        print(json.dumps(describe_api(), indent=2))
        return
    if not env:
        raise ConfigError("host: name an environment to serve; gymcp suites lists those of the catalog")
    if max_episode_seconds is not None and not max_episode_seconds > 0:
        raise ConfigError(f"--max-episode-seconds: must be more than 0, not {max_episode_seconds:g}")
    token = read_service_token(token_file, os.environ.get(TOKEN_VARIABLE))
    place = Place(address=address, port=port, token=token)
    check_place(place)
    limits = HostLimits(max_live=max_live, idle_s=idle_timeout)
    _serve(
        HostConfig(env=env, sandbox=sandbox, out=out, resume=resume, seed=seed, agent_s=max_episode_seconds),
        limits,
        place,
    )


def _serve(config: HostConfig, limits: HostLimits, place: Place) -> None:
    """Load the environments, serve them until a signal, and write the reports."""
    _check_folder(config.out, resume=config.resume)
    with listen(place) as listening:
        specs = _load_specs(config.env)
        confining = get_sandbox(config.sandbox)
        confining.check()
        environments = [
            ServedEnvironment(
                spec=spec, source=source_of(name), env=wrap_environment(spec, WrapperSelection(), confining)
            )
            for name, spec in specs.items()
        ]
        remove_orphans()
        folder = _make_folder(config.out)
        settings = RunSettings(
            out=folder, sandbox=confining, seed=config.seed, agent_s=config.agent_s, resume=config.resume
        )
        runs = Runs(environments, settings)

        def ready(address: str) -> None:
            asks = "the host's token" if place.token else f"no token from this machine (${TOKEN_VARIABLE} sets one)"
            print(f"gymcp: serves until Ctrl-C, asks for {asks}; records episodes in {folder}", file=sys.stderr)
            # the address is alone on its line, for programs that read it
            print(address, flush=True)

        try:
            run_until_signalled(serve_host(runs, confining, limits, listening, place.token, ready))
        finally:
            for run in runs.close():
                print(f"gymcp: {in_one_line(str(run))}", file=sys.stderr)
            with contextlib.suppress(OSError):  # it holds runs
                folder.rmdir()


def _load_specs(names: Sequence[str]) -> dict[str, EnvSpec]:
    """Name as it was typed -> environment; each has a name of its own. Raises ConfigError."""
    found: dict[str, EnvSpec] = {}
    for name in names:
        spec = load_named(name)
        if twin := next((typed for typed, other in found.items() if other.name == spec.name), None):
            raise ConfigError(f"host: two environments are called '{spec.name}': {twin} and {name}")
        found[name] = spec
    return found


def _check_folder(out: Path | None, *, resume: bool) -> None:
    """Raise StoreError if the folder holds something, unless the host goes on with it."""
    try:
        is_empty = out is None or not out.exists() or not any(out.iterdir())
    except OSError as error:
        raise StoreError(f"--out {out}: cannot be read: {error.strerror or error}") from error
    if not is_empty and not resume:
        raise StoreError(f"--out {out}: is not empty; to add to the runs in it, use --resume, or choose another folder")


def _make_folder(out: Path | None) -> Path:
    """The folder of the run folders. Raises StoreError."""
    if out is None:
        return make_run_folder(Path("runs") / f"host-{datetime.now():%Y%m%d-%H%M%S}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"--out {out}: cannot be made: {error.strerror or error}") from error
    return out
