"""The catalog of environments. Each is a file, here or at any path, that defines ``ENV``, or a plug-in of a package."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from gymcp.envs.spec import EnvSpec
from gymcp.errors import ConfigError
from gymcp.user_code import (
    ENVIRONMENT_PLUGINS,
    describe_plugin,
    find_plugins,
    list_modules_beside,
    list_plugin_files,
    load_plugin,
    load_user_module,
)


def names() -> tuple[str, ...]:
    """The names of the environments that gymcp brings."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def plugin_names() -> tuple[str, ...]:
    """The names of the environments that installed packages bring; a name of gymcp's own stays gymcp's."""
    own = names()
    return tuple(name for name in find_plugins(ENVIRONMENT_PLUGINS) if name not in own)


def load_spec(env: str) -> EnvSpec:
    """The environment with this name or in this file. Raises ConfigError, which lists the names."""
    if env in names():
        return _env_of(importlib.import_module(f"{__name__}.{env}"), env)
    if is_file(env):
        return _load_file(Path(env))
    if (point := find_plugins(ENVIRONMENT_PLUGINS).get(env)) is None:
        have = ", ".join((*names(), *plugin_names()))
        raise ConfigError(f"no environment '{env}'; have {have}, or give the path of a file")
    loaded = load_plugin(point)
    if isinstance(loaded, ModuleType):
        return _env_of(loaded, describe_plugin(point))
    if not isinstance(loaded, EnvSpec):
        kind = type(loaded).__name__
        raise ConfigError(
            f"{describe_plugin(point)}: is a {kind}; it must be a gymcp.envs.EnvSpec, or a module with ENV"
        )
    return loaded


def is_file(env: str) -> bool:
    """True if `env` is the path of a file and not a name in the catalog, or of a plug-in."""
    if not env or env in names():
        return False
    return env.endswith(".py") or "/" in env or (Path(env).exists() and env not in plugin_names())


def source_of(env: str) -> str:
    """A name for the same environment that is valid in any folder: a catalog name, or the absolute path of a file."""
    return str(Path(env).resolve()) if is_file(env) else env


def list_own_files(env: str) -> tuple[Path, ...]:
    """Files and folders that may hold solutions of the environment's tasks; empty for those that gymcp brings.

    Of a file: itself, and the modules beside or below it that have been imported. Of a plug-in: its package.
    """
    if is_file(env):
        path = Path(env).absolute()
        return (path, *(each for each in list_modules_beside(path) if each != path.resolve()))
    if env in names() or (point := find_plugins(ENVIRONMENT_PLUGINS).get(env)) is None:
        return ()
    return list_plugin_files(point)


def _load_file(path: Path) -> EnvSpec:
    if path.is_dir():
        raise ConfigError(f"environment file '{path}': is a folder; give the path of the Python file in it")
    if path.exists() and not path.is_file():
        raise ConfigError(f"environment file '{path}': is a pipe or a device, not a Python file")
    if not path.is_file():
        raise ConfigError(f"environment file '{path}': not found; have the catalog names {', '.join(names())}")
    if path.suffix != ".py":
        raise ConfigError(f"environment file '{path}': not a Python file: its name must end in .py")
    return _env_of(load_user_module(path, what=f"environment file '{path}'", name=f"gymcp_env_{path.stem}"), str(path))


def _env_of(module: ModuleType, where: str) -> EnvSpec:
    env = getattr(module, "ENV", None)
    if not isinstance(env, EnvSpec):
        what = "defines no ENV" if env is None else f"its ENV is a {type(env).__name__}"
        raise ConfigError(f"environment '{where}': {what}; it must be a gymcp.envs.EnvSpec")
    return env
