"""``gymcp host``: serve the episodes of environments over HTTP until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gymcp.agents.runner.environment import wrap_environment
from gymcp.agents.runner.run import run_until_signalled
from gymcp.cli.configs import ModelConfig
from gymcp.cli.evaluation.eval_run import make_run_folder
from gymcp.cli.evaluation.grader_judge import describe_models, open_judge, plan_judge
from gymcp.cli.machine.clean import remove_orphans
from gymcp.cli.output import in_one_line
from gymcp.cli.policy_options import PolicyPlan, open_user, plan_user
from gymcp.envs.catalog import source_of
from gymcp.envs.environment_sources import load_named
from gymcp.envs.spec import EnvSpec, LoadedEnv
from gymcp.envs.wrappers.registry import WrapperSelection
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
    cassette: str | None
    user: PolicyPlan | None
    """Model that plays the user; None: the tasks' scripted users."""
    judge: PolicyPlan | None
    """Model that graders ask; None: none."""


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
    cassette: str | None,
    user_policy: str | None,
    judge: str | None,
    key_env: str,
    request_timeout: float,
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
    model = ModelConfig(key_env=key_env, request_timeout_s=request_timeout)
    config = HostConfig(
        env=env,
        sandbox=sandbox,
        out=out,
        resume=resume,
        seed=seed,
        agent_s=max_episode_seconds,
        cassette=cassette,
        user=plan_user(user_policy, model, concurrency=max_live),
        judge=plan_judge(judge, model, concurrency=max_live),
    )
    _serve(config, limits, place)


def _serve(config: HostConfig, limits: HostLimits, place: Place) -> None:
    """Load the environments, serve them until a signal, and write the reports."""
    _check_folder(config.out, resume=config.resume)
    with contextlib.ExitStack() as stack:
        specs = _load_specs(config.env)
        listening = stack.enter_context(listen(place))
        confining = get_sandbox(config.sandbox)
        confining.check()
        plain = {
            name: wrap_environment(spec, WrapperSelection(), confining, config.cassette) for name, spec in specs.items()
        }
        runner = stack.enter_context(asyncio.Runner())
        give_models = stack.enter_context(_open_models(runner, config, next(iter(plain.values()))))
        environments = [
            ServedEnvironment(spec=specs[name], source=source_of(name), env=give_models(env))
            for name, env in plain.items()
        ]
        remove_orphans()
        folder = _make_folder(config.out)
        settings = RunSettings(
            out=folder,
            sandbox=confining,
            seed=config.seed,
            agent_s=config.agent_s,
            resume=config.resume,
            cassette=config.cassette,
            give_models=give_models,
            models=describe_models(config.user, config.judge),
        )
        runs = Runs(environments, settings)

        def ready(address: str) -> None:
            asks = "the host's token" if place.token else f"no token from this machine (${TOKEN_VARIABLE} sets one)"
            print(f"gymcp: serves until Ctrl-C, asks for {asks}; records episodes in {folder}", file=sys.stderr)
            # the address is alone on its line, for programs that read it
            print(address, flush=True)

        try:
            run_until_signalled(serve_host(runs, confining, limits, listening, place.token, ready), runner)
        finally:
            for run in runs.close():
                print(f"gymcp: {in_one_line(str(run))}", file=sys.stderr)
            with contextlib.suppress(OSError):  # it holds runs
                folder.rmdir()


@contextlib.contextmanager
def _open_models(
    runner: asyncio.Runner, config: HostConfig, env: LoadedEnv
) -> Iterator[Callable[[LoadedEnv], LoadedEnv]]:
    """A function that gives an environment the models that play its user and that its grader asks.

    The former has been tried on `env`. Raises ConfigError.
    """
    with (
        open_user(runner, config.user, env, env.suite.tasks[0]) as give_user,
        open_judge(runner, config.judge) as give_judge,
    ):
        yield lambda env: give_judge(give_user(env))


def _load_specs(names: Sequence[str]) -> dict[str, EnvSpec]:
    """Name as it was typed -> environment; each has a name of its own. Raises ConfigError."""
    specs: dict[str, EnvSpec] = {}
    for name in names:
        spec = load_named(name)
        if twin := next((typed for typed, other in specs.items() if other.name == spec.name), None):
            raise ConfigError(f"host: two environments are called '{spec.name}': {twin} and {name}")
        specs[name] = spec
    return specs


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
