"""Conditions of a training run's held-out evaluations: their tasks, and the way in which these are played."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.suite_groups import COMPARED_KEYS
from gymcp.store import open_run
from gymcp.store.run_folder import RUN_FILE, TRAINING_FILE
from gymcp.store.untrusted_files import read_foreign
from gymcp.types import Json

DIGESTS_KEY = "digests"
"""Key of a training run's config that holds ``env_digest`` and ``suite_digest``. At the top of the config, they would
say that its episodes are of the suite's tasks, and practice tasks need not be."""
_SUITE_DIGEST, _ENV_DIGEST, _AGENT_DIGEST, _AGENT = "suite_digest", "env_digest", "agent_digest", "rollout.agent"
_PLAY_KEYS: Mapping[str, tuple[str, ...]] = {
    "evaluation": ("temperature",),
    "rollout": ("max_turns", "max_tokens", "max_seconds", "request_timeout_s", "agent"),
    "wrappers": ("attack", "stress", "retrieve", "tool_budget"),
    "reward": ("judge",),
}
"""Section of a recipe -> its keys that change the success of one policy on one task."""
_COMMAND = "cmd:"
"""Beginning of the name of an agent that is a program with its arguments."""
_FILE = re.compile(r"(?!-)[\w./@+~-]*/[\w@+~-][\w.@+~-]*\.\w+")
"""A word of a command that is the path of a file with a suffix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConditions:
    env: str
    """The environment as the recipe names it: a name, or the path of a file."""
    tasks: Mapping[str, Json]
    """Those of `COMPARED_KEYS` that were recorded."""
    play: Mapping[str, Json]
    """Key of the recipe -> its recorded value, that of the agent without the folders of its files; also ``env_digest``
    (servers, their limits and the rules over tools) and ``agent_digest`` (files of the user's agent)."""
    config: Mapping[str, Json]
    """Content of ``run.json``; empty for a run of an older gymcp, which has none."""


def read_conditions(folder: Path) -> TrainingConditions:
    """The conditions that a training run recorded. Raises ConfigError if its record cannot be read."""
    who = f"training run {folder}"
    try:
        recipe = json.loads(read_foreign(folder, TRAINING_FILE))["recipe"]
        env = str(recipe["env"])
        play = {
            f"{section}.{key}": recipe[section][key]
            for section, keys in _PLAY_KEYS.items()
            for key in keys
            if key in recipe.get(section, {})
        }
    except (StoreError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{who}: its {TRAINING_FILE} cannot be read: {error}") from error
    try:
        config = open_run(folder).config if (folder / RUN_FILE).exists() else {}
    except StoreError as error:
        raise ConfigError(str(error)) from error
    digests = config.get(DIGESTS_KEY)
    recorded = {**config, **(digests if isinstance(digests, Mapping) else {})}
    if isinstance(play.get(_AGENT), str):
        play[_AGENT] = _name_agent(play[_AGENT])
    play |= {key: recorded[key] for key in (_ENV_DIGEST, _AGENT_DIGEST) if recorded.get(key)}
    tasks = {key: recorded[key] for key in COMPARED_KEYS if key in recorded}
    return TrainingConditions(env=env, tasks=tasks, play=play, config=config)


def _name_agent(agent: str) -> str:
    """The agent's name without the folders of its files, as a copy of them in other folders is the same agent.

    In a command, words that may be something else than a file, such as an address, stay as they are: no digest covers
    them.
    """
    if not agent.startswith(_COMMAND):
        return agent.rpartition("/")[2]
    try:
        words = shlex.split(agent.removeprefix(_COMMAND))
    except ValueError:  # a record of elsewhere
        return agent
    program = [word.rpartition("/")[2] for word in words[:1]]
    return _COMMAND + shlex.join(program + [_remove_folder(word) for word in words[1:]])


def _remove_folder(word: str) -> str:
    return word.rpartition("/")[2] if _FILE.fullmatch(word) else word


def check_same_tasks(conditions: Mapping[str, TrainingConditions]) -> None:
    """Raise ConfigError if two of the runs, by name, are known to have other tasks.

    Runs whose tasks have the same digest may name their environment by any path; without one, the names must agree.
    """
    for (a, its), (b, others) in combinations(conditions.items(), 2):
        if parted := [key for key in its.tasks if key in others.tasks and its.tasks[key] != others.tasks[key]]:
            key = parted[0]
            raise ConfigError(
                f"compare: {key} is {its.tasks[key]} in {a}, and {others.tasks[key]} in {b}: their tasks are others;"
                " compare runs of one environment that was not changed in between"
            )
        if its.env != others.env and not (_has_digest(its) and _has_digest(others)):
            raise ConfigError(
                f"compare: {a} was trained on {its.env}, {b} on {others.env}: as far as they recorded, they share no"
                " tasks; compare runs of one environment"
            )


def describe_conditions(conditions: Mapping[str, TrainingConditions]) -> list[str]:
    """Sentences on what else than the policies may explain a difference between the runs, which are given by name.

    A condition that only some of the runs recorded is compared among those.
    """
    sentences = []
    if unknown := [name for name, its in conditions.items() if not _has_digest(its)]:
        sentences.append(
            f"{' and '.join(unknown)} recorded no digest of the tasks, as runs of an earlier version: tasks of one name"
            " are taken for the same"
        )
    keys = dict.fromkeys(key for its in conditions.values() for key in its.play)
    recorded = {key: {name: its.play[key] for name, its in conditions.items() if key in its.play} for key in keys}
    parted = [
        f"{key} is {', '.join(f'{json.dumps(value)} in {name}' for name, value in values.items())}"
        for key, values in recorded.items()
        if any(value != next(iter(values.values())) for value in values.values())
    ]
    if parted:
        told = "; ".join(parted)
        sentences.append(f"held-out tasks were not played alike ({told}): a difference may be due to that alone")
    return sentences


def _has_digest(conditions: TrainingConditions) -> bool:
    return _SUITE_DIGEST in conditions.tasks
