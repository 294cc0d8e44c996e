"""The environments: one file each, here or at any path, that defines ``ENV``."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

from gymcp.envs.spec import EnvSpec
from gymcp.errors import ConfigError


def names() -> tuple[str, ...]:
    """The names in the catalog."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load_spec(env: str) -> EnvSpec:
    """The environment of a catalog name or of a file. Raises ConfigError, saying what there is instead."""
    if env.endswith(".py") or "/" in env:
        return _from_file(Path(env))
    if env not in names():
        raise ConfigError(f"no environment '{env}'; have {', '.join(names())}, or give the path of a file")
    return _env_of(importlib.import_module(f"{__name__}.{env}"), env)


def _from_file(path: Path) -> EnvSpec:
    if not path.is_file():
        raise ConfigError(f"environment file '{path}': not found; have the catalog names {', '.join(names())}")
    name = f"gymcp_env_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise ConfigError(f"environment file '{path}': not a Python file")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses and pydantic look their own module up
    try:
        found.loader.exec_module(module)
    except Exception as error:  # the file is the user's: whatever it raises is told as it is
        raise ConfigError(f"environment file '{path}': {type(error).__name__}: {error}") from error
    return _env_of(module, str(path))


def _env_of(module: ModuleType, where: str) -> EnvSpec:
    env = getattr(module, "ENV", None)
    if not isinstance(env, EnvSpec):
        what = "defines no ENV" if env is None else f"its ENV is a {type(env).__name__}"
        raise ConfigError(f"environment '{where}': {what}; it must be a gymcp.envs.EnvSpec")
    return env
