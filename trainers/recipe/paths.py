"""Paths in a recipe: they are relative to the folder of the recipe's file, so that it can be run from any folder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gymcp.agents.policies.pretrained.folders import holds_model, is_hub_id, names_no_path, refuse_wrong_path
from gymcp.agents.programs.settings import PREFIX, is_program, names_path, parse_command
from gymcp.envs import catalog
from gymcp.errors import ConfigError
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.types import Json

AGENT_KEY, PRESET_KEY, DRAFT_KEY = "rollout.agent", "credit.preset", "rollout.draft.model"
MODEL_KEYS = ("model.path", DRAFT_KEY)
"""Keys whose value is a path, or the name of a model."""
CODE_KEYS = (AGENT_KEY, PRESET_KEY, "warm_start.agent")
"""Keys of a recipe whose value may be ``FILE.py:NAME``: an object in a file of the user."""
PATH_KEYS = (
    "env", *MODEL_KEYS, "warm_start.run", "rollout.demonstrations", "replay.run", "wrappers.privileges",
    "rollout.agent_mounts", "reward.grader", *CODE_KEYS,
)  # fmt: skip
"""Keys whose value is a path or a list of paths; for ``env``, ``reward.grader`` and `CODE_KEYS` it may be one."""


def place_paths(table: dict[str, Json], folder: Path) -> None:
    """Make the paths of a recipe's table absolute, in place: relative ones are below `folder`, that of the recipe.

    Raises ConfigError, which names both places, if a path is not there but exists below the working folder; and for a
    model that is rather a path than a hub id, but is not there.
    """
    for key in PATH_KEYS:
        section, name = _find(table, key)
        if section is not None:
            value = section[name]
            is_list = isinstance(value, list)
            section[name] = [_place(key, each, folder) for each in value] if is_list else _place(key, value, folder)


def _place(key: str, value: Json, folder: Path) -> Json:
    """The value of a key, absolute if it is a relative path, which is below the folder. Raises ConfigError."""
    if key == AGENT_KEY and _is_command(value):
        return _place_words(value, folder)
    if not _is_relative_path(key, value):
        return value
    if key in MODEL_KEYS and _is_model_name(value, folder):
        if is_hub_id(value):
            refuse_wrong_path(value, f"recipe: {key}", folder)
        return value
    placed, here = _absolute(folder / value), _absolute(Path(value))
    if not _exists(key, placed) and _exists(key, here):
        raise ConfigError(
            f"recipe: {key} is '{value}': not found at {placed}, but at {here}; paths in a recipe are relative to"
            f" its folder: write the path from there, or an absolute one (with --set {key}=PATH: from the working"
            " folder)"
        )
    return str(placed)


def place_typed_path(key: str, value: Json) -> Json:
    """The value of a setting typed on the command line: a path is relative to the working folder."""
    if isinstance(value, list):
        return [place_typed_path(key, each) for each in value]
    if key in MODEL_KEYS and _is_model_name(value, Path()):
        return value
    if key == AGENT_KEY and _is_command(value):
        return _place_words(value, Path())
    return str(_absolute(Path(value))) if key in PATH_KEYS and _is_relative_path(key, value) else value


def _is_command(value: Json) -> bool:
    return isinstance(value, str) and is_program(value)


def _place_words(agent: str, folder: Path) -> str:
    """The command of a program, in which words that name a file below `folder` are absolute paths.

    A program without a slash is searched for on the PATH, as in a shell. Every other word stays as it is: a file of the
    working folder, a name, an option, and a folder, which may be meant as a module's name.
    """
    try:
        argv = parse_command(agent)
    except ConfigError:  # the error of the recipe, which names it
        return agent
    placed = list(argv)
    for n, word in enumerate(argv):
        path = folder / word
        if (n or "/" in word) and not word.startswith("-") and names_path(str(path)) and path.is_file():
            placed[n] = str(_absolute(path))
    return agent if placed == list(argv) else f"{PREFIX}{shlex.join(placed)}"


def _is_model_name(value: Json, folder: Path) -> bool:
    """True for a model that is named by ``smollm2`` or a hub id; the path of a model below the folder comes first."""
    return isinstance(value, str) and names_no_path(value) and not holds_model(folder / value)


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with its paths as they are from the working folder: earlier versions stored relative ones."""
    model = replace(recipe.model, path=str(place_typed_path("model.path", recipe.model.path)))
    run = str(place_typed_path("warm_start.run", recipe.warm_start.run))
    teacher = str(place_typed_path("warm_start.agent", recipe.warm_start.agent))
    warm_start = replace(recipe.warm_start, run=run, agent=teacher)
    agent = str(place_typed_path("rollout.agent", recipe.rollout.agent))
    shown = str(place_typed_path("rollout.demonstrations", recipe.rollout.demonstrations))
    draft = replace(recipe.rollout.draft, model=str(place_typed_path(DRAFT_KEY, recipe.rollout.draft.model)))
    rollout = replace(recipe.rollout, agent=agent, demonstrations=shown, draft=draft)
    rules = str(place_typed_path("wrappers.privileges", recipe.wrappers.privileges))
    wrappers = replace(recipe.wrappers, privileges=rules)
    env = str(place_typed_path("env", recipe.env))
    credit = {key: place_typed_path(f"credit.{key}", value) for key, value in recipe.credit.items()}
    replay = replace(recipe.replay, run=str(place_typed_path("replay.run", recipe.replay.run)))
    reward = replace(recipe.reward, grader=str(place_typed_path("reward.grader", recipe.reward.grader)))
    return replace(
        recipe,
        env=env,
        model=model,
        warm_start=warm_start,
        rollout=rollout,
        wrappers=wrappers,
        replay=replay,
        credit=credit,
        reward=reward,
    )


def place_recorded(recorded: Recipe, recipe: Recipe) -> Recipe:
    """The recipe that a run recorded, with absolute paths, to be compared with today's recipe of the run.

    Earlier versions recorded the files of a command as they were typed. One with the file name of today's recipe stands
    for its file, whatever the working folder: the digest of these files tells another file of that name.
    """
    agent = recorded.rollout.agent
    if _is_command(agent) and _is_command(recipe.rollout.agent) and _has_same_words(agent, recipe.rollout.agent):
        agent = recipe.rollout.agent
    return with_absolute_paths(replace(recorded, rollout=replace(recorded.rollout, agent=agent)))


def _has_same_words(recorded: str, agent: str) -> bool:
    """True if two commands differ only in relative words of the first that are absolute paths in the second."""
    try:
        old, new = parse_command(recorded), parse_command(agent)
    except ConfigError:
        return False
    return len(old) == len(new) and all(
        word == now or ((n > 0 or "/" in word) and _is_placed(word, now))
        for n, (word, now) in enumerate(zip(old, new, strict=True))
    )


def _is_placed(word: str, now: str) -> bool:
    """True if `now` may be the absolute path of the relative `word`."""
    return Path(now).is_absolute() and not Path(word).is_absolute() and Path(word).name == Path(now).name != ""


def _find(table: dict[str, Json], key: str) -> tuple[dict[str, Json] | None, str]:
    """The section that holds the key, and the key's name in it; no section if the table lacks the key."""
    *sections, name = key.split(".")
    into: Json = table
    for section in sections:
        into = into.get(section) if isinstance(into, Mapping) else None
    return (into, name) if isinstance(into, dict) and name in into else (None, name)


def _absolute(path: Path) -> Path:
    """The path from the root, without ``..``; links are not followed, so it is the path that people know."""
    parts: list[str] = []
    for part in path.absolute().parts:
        if part == ".." and len(parts) > 1:
            parts.pop()
        elif part != "..":
            parts.append(part)
    return Path(*parts)


def _exists(key: str, path: Path) -> bool:
    try:
        return (_file_of(str(path)) if key in CODE_KEYS else path).exists()
    except OSError:  # such as a name that is too long
        return False


def _file_of(named: str) -> Path:
    """The file of ``FILE.py:NAME``."""
    return Path(named.rpartition(":")[0])


def _is_relative_path(key: str, value: Json) -> bool:
    """True for a path that is not absolute; not for the name of an environment, or a value that is no text."""
    if not isinstance(value, str) or not value or "\0" in value or Path(value).is_absolute():
        return False
    if key in CODE_KEYS:
        return ":" in value and not is_program(value) and (_file_of(value).suffix == ".py" or "/" in value)
    if key == "reward.grader":
        return value.endswith(".py")
    return key != "env" or (value not in catalog.names() and (value.endswith(".py") or "/" in value))
