"""The environments: one file each, here or at any path, that defines ``ENV``."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import pkgutil
import sys
from pathlib import Path
from types import CodeType, ModuleType

from gymcp.envs.spec import EnvSpec
from gymcp.envs.validation import in_one_line
from gymcp.errors import ConfigError


def names() -> tuple[str, ...]:
    """The names in the catalog."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load_spec(env: str) -> EnvSpec:
    """The environment of a catalog name or of a file. Raises ConfigError, saying what there is instead."""
    if is_file(env):
        return _from_file(Path(env))
    if env not in names():
        raise ConfigError(f"no environment '{env}'; have {', '.join(names())}, or give the path of a file")
    return _env_of(importlib.import_module(f"{__name__}.{env}"), env)


def is_file(env: str) -> bool:
    """True where an environment is named by the path of its file; else by a name in the catalog."""
    return env not in names() and (env.endswith(".py") or "/" in env or Path(env).exists())


def source_of(env: str) -> str:
    """What names the same environment from any folder: a catalog name, or the absolute path of a file."""
    return str(Path(env).resolve()) if is_file(env) else env


def _from_file(path: Path) -> EnvSpec:
    if path.is_dir():
        raise ConfigError(f"environment file '{path}': is a folder; give the path of the Python file in it")
    if not path.is_file():
        raise ConfigError(f"environment file '{path}': not found; have the catalog names {', '.join(names())}")
    if path.suffix != ".py":
        raise ConfigError(f"environment file '{path}': not a Python file: its name must end in .py")
    name = f"gymcp_env_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))
    if found is None or found.loader is None:
        raise ConfigError(f"environment file '{path}': not a Python file")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses and pydantic look their own module up
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the file is the user's: whatever it raises is told as it is
        raise ConfigError(f"environment file '{path}': {in_one_line(error)}") from error
    return _env_of(module, str(path))


class _FromSource(importlib.machinery.SourceFileLoader):
    """Runs what a reader of the file sees, never byte code that lies beside it: that may be of another source."""

    def get_code(self, fullname: str) -> CodeType | None:
        return self.source_to_code(self.get_data(self.path), self.path)


def _env_of(module: ModuleType, where: str) -> EnvSpec:
    env = getattr(module, "ENV", None)
    if not isinstance(env, EnvSpec):
        what = "defines no ENV" if env is None else f"its ENV is a {type(env).__name__}"
        raise ConfigError(f"environment '{where}': {what}; it must be a gymcp.envs.EnvSpec")
    return env
