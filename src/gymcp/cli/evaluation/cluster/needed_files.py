"""The driver's files that a run of ``gymcp eval --ray`` needs on its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from gymcp.agents.policies.specs import locate_folder
from gymcp.agents.programs.settings import is_program, names_path, parse_command
from gymcp.cli.evaluation.eval_run import PreparedRun
from gymcp.cli.policy_options import LOCATED, PolicyPlan
from gymcp.envs import catalog
from gymcp.envs.spec import LoadedEnv
from gymcp.mcp_servers.packages.lockfile import DEFAULT_LOCK
from gymcp.scale.copies.collect import FileCollector, list_cache_entries
from gymcp.scale.copies.sending import RunFiles


def find_needed_files(prepared: PreparedRun, collector: FileCollector, *, with_model: bool = True) -> RunFiles:
    """All files that the run's options name, and those of its environment.

    `with_model`: also the folder of the agent's model, if there is one. Raises ConfigError.
    """
    config = prepared.config
    add_environment(collector, config.env, prepared.env)
    add_agent(collector, config.agent, config.program.mounts)
    named = [config.privileges, config.model.tokenizer, config.model.system, config.model.prices]
    for path in (*(path for path in named if path is not None), *_list_texts(config.tasks, config.search)):
        collector.add(path)
    plans = [prepared.agent.policy if with_model else None, prepared.user]
    folders = [locate_folder(plan.spec) for plan in plans if plan is not None and plan.spec.kind in LOCATED]
    for folder in folders:
        collector.add(folder)
    return finish(collector, prepared.env, folders)


def find_model_files(plan: PolicyPlan) -> RunFiles:
    """The folder of a model, for the node that opens it. Raises ConfigError."""
    collector = FileCollector()
    folders = [locate_folder(plan.spec)] if plan.spec.kind in LOCATED else []
    for folder in folders:
        collector.add(folder)
    return RunFiles(files=collector.finish(), cache_entries=list_cache_entries(folders))


def finish(collector: FileCollector, env: LoadedEnv, folders: Iterable[Path] = ()) -> RunFiles:
    """All that was collected, the user's modules that were imported, and the cache's entries for the environment."""
    collector.add_modules()
    return RunFiles(
        files=collector.finish(),
        cache_entries=list_cache_entries([*_list_server_files(env), *folders]),
        contents=collector.contents,
    )


def add_environment(collector: FileCollector, name: str, env: LoadedEnv) -> None:
    """The environment's file with its folder, the files of its servers, and the lock of the working folder."""
    if catalog.is_file(name):
        collector.add_code(Path(catalog.source_of(name)))
    for path in _list_server_files(env):
        collector.add(path)
    collector.add(DEFAULT_LOCK)


def add_agent(collector: FileCollector, agent: str | None, mounts: Iterable[Path]) -> None:
    """The files of an agent of the user: a Python file with its folder, or what a program's command names."""
    if agent is None:
        return
    if is_program(agent):
        for path in (*(Path(word) for word in parse_command(agent) if names_path(word)), *mounts):
            collector.add(path)
    elif (file := Path(agent.rpartition(":")[0])).is_file():
        collector.add_code(file)


def _list_server_files(env: LoadedEnv) -> Iterator[Path]:
    for server in env.servers:
        yield from (mount.source for mount in server.mounts)
        if server.cassette is not None:
            yield server.cassette
        if isinstance(server.image, Path):
            yield server.image.parent  # a Dockerfile is built in its folder


def _list_texts(tasks: Iterable[str] | None, search: str | None) -> Iterator[Path]:
    """Files that ``--tasks`` and ``--search`` name among other words."""
    for text in tasks or ():
        yield from (Path(part[1:]) for part in text.split(",") if part.startswith("@"))
    for part in (search or "").split(","):
        if part.startswith("rubric="):
            yield Path(part.removeprefix("rubric="))
