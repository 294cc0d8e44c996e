"""Code of the user: Python files, plug-ins of installed packages, and the file and line that an error comes from.

A package names its plug-ins, which are agents, environments and presets, in its ``pyproject.toml``::

    [project.entry-points."gymcp.agents"]
    careful = "my_package.agents:careful"

    [project.entry-points."gymcp.envs"]
    shop = "my_package.shop:ENV"

    [project.entry-points."gymcp.presets"]
    early = "my_package.presets:early"

Finding them reads the metadata of the installed packages and runs none of their code; only the plug-in that is used is
imported. The names of gymcp itself come first.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import math
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import CodeType, ModuleType

from gymcp.errors import ConfigError, GymcpError

AGENT_PLUGINS = "gymcp.agents"
ENVIRONMENT_PLUGINS = "gymcp.envs"
PRESET_PLUGINS = "gymcp.presets"
FORMS = "FILE.py:NAME, MODULE:NAME"
"""Forms of the name of an object of the user, beside the names of plug-ins."""
_PLUGIN_NAME = re.compile("[A-Za-z0-9_-]+")
_GYMCP = str(Path(__file__).parent)
_LIBRARY = sysconfig.get_path("stdlib")
_INSTALLED = ("site-packages", "dist-packages")
"""Folders of installed packages, whose lines the user cannot mend."""
MAX_ERROR_CHARACTERS = 600
"""Characters of an error of the user's code that a message repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserObject:
    """An object of the user's code that was named on the command line or in a recipe, imported."""

    name: str
    """Name in records and tables: "careful.py:Careful", or "my_package.agents:careful"."""
    source: str
    """Name with the absolute path of the file."""
    digest: str
    """SHA-256 of the file that defines it; empty if it is in no file."""
    value: object
    who: str
    """Beginning of a message about the object: "agent 'careful.py:Careful'"."""


def load_user_object(text: str, *, kind: str, plugins: str) -> UserObject | None:
    """The object at ``FILE.py:NAME`` or ``MODULE:NAME``, or of a plug-in; None if the text is no such name.

    The user's code is run. `kind`: what the object is for, such as "agent"; `plugins`: the group of its plug-ins.
    Raises ConfigError if it cannot be imported.
    """
    who = f"{kind} '{text}'"
    if ":" not in text:
        if (point := find_plugins(plugins).get(text)) is None:
            if text.endswith(".py"):
                raise ConfigError(f"{who}: name the {kind} in the file: {text}:NAME")
            return None
        value = load_plugin(point)
        return _make_object(point.value, point.value, _find_file(point.value), value, describe_plugin(point))
    place, _, name = text.rpartition(":")
    if not name.isidentifier():
        raise ConfigError(f"{who}: '{name}' is no name; give {FORMS}")
    if not place.endswith(".py") and "/" not in place:
        module = _import_module(place, who=who)
        return _make_object(text, text, _find_file(text), _find_name(module, name, who), who)
    path = Path(place)
    if not path.is_file():
        raise ConfigError(f"{who}: no file '{path}'")
    module = load_user_module(path, what=f"{kind} file '{path}'", name=f"gymcp_{kind}_{path.stem}")
    value = _find_name(module, name, who)
    return _make_object(f"{path.name}:{name}", f"{path.resolve()}:{name}", path, value, who)


def _make_object(name: str, source: str, file: Path | None, value: object, who: str) -> UserObject:
    digest = hashlib.sha256(file.read_bytes()).hexdigest() if file is not None else ""
    return UserObject(name=name, source=source, digest=digest, value=value, who=who)


def _import_module(name: str, *, who: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{who}: no module '{name}' is installed; give a file by its path: ./FILE.py:NAME"
            ) from error
        raise ConfigError(f"{who}: {describe_error(error)}") from error
    except (Exception, SystemExit) as error:  # the module's code, which may raise anything
        raise ConfigError(f"{who}: {describe_error(error)}") from error


def _find_name(module: ModuleType, name: str, who: str) -> object:
    if not hasattr(module, name):
        own = [
            key
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_") and getattr(value, "__module__", "") == module.__name__
        ]
        raise ConfigError(f"{who}: defines no '{name}'; have {', '.join(own) or 'nothing that can be called'}")
    return getattr(module, name)


def _find_file(place: str) -> Path | None:
    """The file of a module, of which ``MODULE:NAME`` has been imported."""
    file = getattr(importlib.import_module(place.partition(":")[0]), "__file__", None)
    return None if file is None else Path(file)


def call_user(who: str, call: Callable[[], object]) -> object:
    """The result of a function of the user. Raises ConfigError, which begins with `who`, if it raises anything."""
    try:
        return call()
    except (Exception, SystemExit) as error:  # the user's code, which may raise anything
        raise ConfigError(f"{who}: {describe_error(error)}") from error


def describe_kind(value: object) -> str:
    """The type of a value for people: "an int", "None"."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Loads the source that a reader of the file sees, never byte code beside it, which may be from other source."""

    def get_code(self, fullname: str) -> CodeType | None:
        return self.source_to_code(self.get_data(self.path), self.path)


def load_user_module(path: Path, *, what: str, name: str) -> ModuleType:
    """The module in a Python file of the user, whose code is run.

    `what` begins the message of every error, such as ``environment file 'bank.py'``; `name` is the name of the module.
    Raises ConfigError, with file and line, if the file cannot be read or raises anything.
    """
    spec = importlib.util.spec_from_file_location(name, path, loader=_SourceLoader(name, str(path)))
    if spec is None or spec.loader is None:
        raise ConfigError(f"{what}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pydantic look their own module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the file is the user's code, which may raise anything
        raise ConfigError(f"{what}: {describe_error(error)}") from error
    return module


def find_plugins(group: str) -> Mapping[str, EntryPoint]:
    """Name -> entry point of each plug-in of the group; of two with the same name, the first one on the path."""
    return _scan_plugins(group, tuple(sys.path))


@functools.lru_cache(maxsize=8)
def _scan_plugins(group: str, path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """`path`: the folders in which packages are installed, which the result depends on."""
    plugins: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        if _PLUGIN_NAME.fullmatch(point.name):
            plugins.setdefault(point.name, point)
    return {name: plugins[name] for name in sorted(plugins)}


def describe_plugin(point: EntryPoint) -> str:
    """The plug-in for people: "plug-in 'shop' of package 'my-package' (my_package.shop:ENV)"."""
    package = "" if point.dist is None else f" of package '{point.dist.name}'"
    return f"plug-in '{point.name}'{package} ({point.value})"


def list_plugin_files(point: EntryPoint) -> tuple[Path, ...]:
    """Files and folders with the code and data of the package that brings the plug-in.

    An editable installation leaves them elsewhere: they are found once the plug-in has been imported.
    """
    file = _read_file_name(sys.modules.get(point.module))
    if file is None or not _is_own(file):
        return _list_installed(point)
    return (*_list_installed(point), *list_modules_beside(_find_outermost(Path(file).resolve())))


@functools.cache
def _list_installed(point: EntryPoint) -> tuple[Path, ...]:
    """The packages of the plug-in's distribution, and its files outside of packages, without its metadata."""
    if point.dist is None:
        return ()
    files = [file for file in point.dist.files or () if not file.parts[0].endswith((".dist-info", ".egg-info"))]
    packages = {file.parent for file in files if file.name == "__init__.py"}
    tops = {next((folder for folder in reversed(file.parents) if folder in packages), file) for file in files}
    return tuple(sorted(Path(str(point.dist.locate_file(top))).resolve() for top in tops))


def list_modules_beside(path: Path) -> tuple[Path, ...]:
    """The user's modules that have been imported from the folder of `path`: packages as folders, else files."""
    folder = path.resolve().parent
    names = {_read_file_name(module) for module in list(sys.modules.values())}
    files = [Path(name).resolve() for name in names if name is not None and _is_own(name)]
    return tuple(sorted({_find_outermost(file, folder) for file in files if file.is_relative_to(folder)}))


def list_own_modules() -> tuple[Path, ...]:
    """The user's modules that have been imported from anywhere: packages as folders, else files."""
    modules = [module for name, module in list(sys.modules.items()) if name not in ("__main__", "__mp_main__")]
    files = [Path(name).resolve() for name in map(_read_file_name, modules) if name is not None and _is_own(name)]
    return tuple(sorted({_find_outermost(file) for file in files}))


def _read_file_name(module: object) -> str | None:
    """The absolute name of the module's file; None if it has none."""
    name = getattr(module, "__dict__", {}).get("__file__")
    return name if isinstance(name, str) and name.startswith("/") else None


def _find_outermost(file: Path, below: Path = Path("/")) -> Path:
    """The folder of the outermost package that holds the file and lies below `below`; the file if it is in none."""
    packages = [folder for folder in file.parents if folder.is_relative_to(below) and folder != below]
    return next((folder for folder in reversed(packages) if (folder / "__init__.py").is_file()), file)


def load_plugin(point: EntryPoint) -> object:
    """The object that the entry point names. Raises ConfigError, which names the plug-in, if that is not possible."""
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # the package's code, which may raise anything
        raise ConfigError(f"{describe_plugin(point)}: {describe_error(error)}") from error


def describe_error(error: BaseException) -> str:
    """An error in one line: "boom.py:7: RuntimeError: boom"; without its type if it is one of gymcp's own errors."""
    text = _read_text(error)
    parts = (locate_error(error), "" if isinstance(error, GymcpError) else type(error).__name__, " ".join(text.split()))
    line = ": ".join(part for part in parts if part)
    return line if len(line) <= MAX_ERROR_CHARACTERS else f"{line[:MAX_ERROR_CHARACTERS]} [...]"


def _read_text(error: BaseException) -> str:
    """The words of an error, which the user's code may write in a method that itself fails."""
    try:
        return str(error.msg) if isinstance(error, SyntaxError) else str(error)
    except Exception as second:  # the method is the user's code, which may raise anything
        return f"its text cannot be written: {type(second).__name__}"


def locate_error(error: BaseException) -> str:
    """File and line of the user's own code that an error comes from ("boom.py:7"); empty if there is none.

    It is the innermost such line: gymcp, the standard library and installed packages are not the user's own.
    """
    if isinstance(error, SyntaxError) and error.filename and _is_own(error.filename):
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return next((f"{Path(file).name}:{line}" for file, line in reversed(frames) if _is_own(file)), "")


def format_own_traceback(error: BaseException) -> str:
    """The error as Python prints it, with only those frames that are the user's own code."""
    described = traceback.TracebackException.from_exception(error)
    parts: list[traceback.TracebackException] = [described]
    for part in parts:
        part.stack = traceback.StackSummary.from_list([frame for frame in part.stack if _is_own(frame.filename)])
        parts += [other for other in (part.__cause__, part.__context__) if other is not None]
    return "".join(described.format()).rstrip()


def locate_function(function: Callable[..., object]) -> str:
    """File and line at which a function of the user is defined; empty for any other function."""
    code = getattr(inspect.unwrap(function), "__code__", None) or getattr(type(function).__call__, "__code__", None)
    if not isinstance(code, CodeType) or not _is_own(code.co_filename):
        return ""
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def is_finite_number(value: object) -> bool:
    """True for a number that the user's code may give in a record: True and False are 1 and 0."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an int that is too large for a float
        return False


def check_signature(who: str, function: Callable[..., object], parameters: Sequence[str], returns: str) -> None:
    """Raise ConfigError, which shows the right signature, if a function of the user cannot be called like that."""
    name = getattr(function, "__name__", "grade")
    right = f"def {name if name.isidentifier() else 'grade'}({', '.join(parameters)}) -> {returns}"
    place = locate_function(function)
    where = f"{who}: {place}" if place else who
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{where}: is async; make it a plain function: {right}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin may have none
        return
    try:
        signature.bind(*parameters)
    except TypeError:
        raise ConfigError(
            f"{where}: takes {signature}; it is called with {len(parameters)} arguments: {right}"
        ) from None


def _is_own(file: str) -> bool:
    if file.startswith(("<", _GYMCP + "/", _LIBRARY + "/")):
        return False
    return not any(f"/{folder}/" in file for folder in _INSTALLED)
