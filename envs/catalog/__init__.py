"""The catalog of environments. Each is a file, here or at any path, that defines ``ENV``."""

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
    """The names of the environments in the catalog."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load_spec(env: str) -> EnvSpec:
    """The environment with this catalog name or in this file. Raises ConfigError, which lists the names."""
    if is_file(env):
        return _load_file(Path(env))
    if env not in names():
        raise ConfigError(f"no environment '{env}'; have {', '.join(names())}, or give the path of a file")
    return _env_of(importlib.import_module(f"{__name__}.{env}"), env)


def is_file(env: str) -> bool:
    """True if `env` is the path of a file and not a name in the catalog."""
    return env not in names() and (env.endswith(".py") or "/" in env or Path(env).exists())


def source_of(env: str) -> str:
    """A name for the same environment that is valid in any folder: a catalog name, or the absolute path of a file."""
    return str(Path(env).resolve()) if is_file(env) else env


def _load_file(path: Path) -> EnvSpec:
    if path.is_dir():
        raise ConfigError(f"environment file '{path}': is a folder; give the path of the Python file in it")
    if not path.is_file():
        raise ConfigError(f"environment file '{path}': not found; have the catalog names {', '.join(names())}")
    if path.suffix != ".py":
        raise ConfigError(f"environment file '{path}': not a Python file: its name must end in .py")
    name = f"gymcp_env_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_SourceLoader(name, str(path)))
    if spec is None or spec.loader is None:
        raise ConfigError(f"environment file '{path}': not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pydantic look their own module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the file is the user's code, which may raise anything
        raise ConfigError(f"environment file '{path}': {in_one_line(error)}") from error
    return _env_of(module, str(path))


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Loads the source that a reader of the file sees, never byte code beside it, which may be from other source."""

    def get_code(self, fullname: str) -> CodeType | None:
        return self.source_to_code(self.get_data(self.path), self.path)


def _env_of(module: ModuleType, where: str) -> EnvSpec:
    env = getattr(module, "ENV", None)
    if not isinstance(env, EnvSpec):
        what = "defines no ENV" if env is None else f"its ENV is a {type(env).__name__}"
        raise ConfigError(f"environment '{where}': {what}; it must be a gymcp.envs.EnvSpec")
    return env
