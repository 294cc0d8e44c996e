"""The dependencies that a source of the user's own names: PEP 723, requirements.txt, pyproject.toml, package.json.

The files are read, never run: a project whose dependencies only its build backend knows is refused.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from gymcp.errors import ConfigError

MAX_TEXT_BYTES = 1_000_000
"""Size of the longest file with dependencies, in bytes."""
_PEP_723 = re.compile(r"(?m)^# /// script\s*$\s(?P<content>(^#(| .*)$\s)+)^# ///\s*$")
_HASH = re.compile(r"\s--hash[= ]\S+")
_BETWEEN = re.compile(r",(?![^\[]*\])(?!\s*[<>=!~])")
"""A comma between two requirements, which is neither within extras nor before another limit of the same version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Metadata of a Python source."""

    requires: tuple[str, ...] = ()
    """Requirements that the source names."""
    named_in: str = ""
    """File that names the requirements. Empty: no file does."""
    python: str = ""
    """Specifier of the Python versions that it supports. Empty: any."""
    name: str = ""
    version: str = ""
    scripts: Mapping[str, str] | None = None
    """MODULE:FUNCTION by the name of a console script; None if there is no pyproject.toml."""


def read_project(who: str, folder: Path, text: str = "") -> Project:
    """Metadata of a source in a folder; `text` is the source of its program, if that is a file.

    The first of these that is there names the dependencies: PEP 723 metadata in the text, pyproject.toml,
    requirements.txt. Raises ConfigError.
    """
    if (script := _PEP_723.search(text)) is not None:
        lines = script["content"].splitlines(keepends=True)
        content = "".join(line[2:] if line.startswith("# ") else line[1:] for line in lines)
        table = _parse_toml(who, "its PEP 723 metadata", content)
        return _from_table(who, "its PEP 723 metadata", table, Project(), table.get("tool"))
    project = _read_pyproject(who, folder)
    if project.named_in:
        return project
    if (folder / "requirements.txt").is_file():
        lines = _read_requirements(who, folder / "requirements.txt")
        requires = check_requirements(f"{who}: requirements.txt", lines)
        return _with_requires(project, requires, "requirements.txt", project.python)
    return project


def only_script(who: str, folder: Path) -> str:
    """Name of the project's only console script. Raises ConfigError if it has none, or several."""
    scripts = _read_pyproject(who, folder).scripts or {}
    if len(scripts) != 1:
        raise ConfigError(
            f"{who}: the project in '{folder}' has {'several programs' if scripts else 'no program'} "
            f"([project.scripts]: {', '.join(scripts) or 'none'}); say which starts the server: --path {folder} "
            "'python -m MODULE', FILE.py or SCRIPT"
        )
    return next(iter(scripts))


def check_requirements(who: str, lines: Iterable[object]) -> tuple[str, ...]:
    """The requirements in their plain form, without doubles. Raises ConfigError for one that no index can provide."""
    requirements = []
    for line in lines:
        try:
            requirement = Requirement(str(line))
        except InvalidRequirement as error:
            raise ConfigError(f"{who}: '{line}' is not a requirement: {str(error).splitlines()[0]}") from error
        if requirement.url:
            raise ConfigError(f"{who}: '{line}' is not from a package index, so it cannot be locked by its hash")
        requirements.append(str(requirement))
    return tuple(dict.fromkeys(requirements))


def split_requirements(text: str) -> list[str]:
    """The requirements of one ``--with``, as uv takes them: ``mcp>=1,<2,rich`` is two."""
    return [part.strip() for part in _BETWEEN.split(text)]


def read_json(who: str, path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ConfigError."""
    try:
        content = json.loads(read_text(who, path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{who}: '{path.name}' is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{who}: '{path.name}' is not a JSON object")
    return content


def read_text(who: str, path: Path) -> str:
    """Text of a short file in UTF-8. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{who}: '{path.name}' cannot be read: {error.strerror}") from error
    if len(content) > MAX_TEXT_BYTES:
        raise ConfigError(f"{who}: '{path.name}' is longer than {MAX_TEXT_BYTES:,} bytes")
    return decode(who, path.name, content)


def decode(who: str, name: str, content: bytes) -> str:
    """The text in a file's bytes. Raises ConfigError if they are not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{who}: '{name}' is not UTF-8 (byte {error.start}); save it as UTF-8") from error


def _read_pyproject(who: str, folder: Path) -> Project:
    path = folder / "pyproject.toml"
    if not path.is_file():
        return Project()
    content = _parse_toml(who, "pyproject.toml", read_text(who, path))
    table = content.get("project")
    if not isinstance(table, dict):
        return Project(scripts={})
    dynamic = table.get("dynamic", [])
    if isinstance(dynamic, list) and "dependencies" in dynamic:
        raise ConfigError(
            f"{who}: pyproject.toml: its dependencies are dynamic, so only its build backend knows them; list them in "
            "[project] dependencies"
        )
    scripts = table.get("scripts", {})
    if not isinstance(scripts, dict) or not all(isinstance(value, str) for value in scripts.values()):
        raise ConfigError(f"{who}: pyproject.toml: [project.scripts] must map names to MODULE:FUNCTION")
    named = Project(name=str(table.get("name", "")), version=str(table.get("version", "0")), scripts=scripts)
    return _from_table(who, "pyproject.toml", table, named, content.get("tool"))


def _from_table(who: str, named_in: str, table: Mapping[str, Any], known: Project, tools: object) -> Project:
    """`known` with dependencies and Python versions of a table, as pyproject.toml and PEP 723 have it.

    `tools`: the table ``tool`` beside it. Raises ConfigError.
    """
    lines, python = table.get("dependencies", []), table.get("requires-python", "")
    if not isinstance(lines, list) or not isinstance(python, str):
        raise ConfigError(f"{who}: {named_in}: dependencies must be a list of texts, and requires-python a text")
    requires = check_requirements(f"{who}: {named_in}", lines)
    _refuse_other_sources(f"{who}: {named_in}", requires, tools)
    return _with_requires(known, requires, named_in, python)


def _refuse_other_sources(who: str, requires: Iterable[str], tools: object) -> None:
    """Raise ConfigError if uv would take a requirement from a folder, a repository or another index.

    A package of that name in the package index may be a stranger's.
    """
    for key in ("uv", "sources"):
        tools = tools.get(key) if isinstance(tools, dict) else None
    elsewhere = {canonicalize_name(str(name)) for name in tools} if isinstance(tools, dict) else set()
    for line in requires:
        if canonicalize_name(Requirement(line).name) in elsewhere:
            raise ConfigError(
                f"{who}: '{line}' is not from a package index ([tool.uv.sources]), so it cannot be locked by its hash; "
                "leave it out of the dependencies, and put its code beside the program, which is copied with it"
            )


def _with_requires(known: Project, requires: tuple[str, ...], named_in: str, python: str) -> Project:
    return Project(
        requires=requires,
        named_in=named_in,
        python=python,
        name=known.name,
        version=known.version,
        scripts=known.scripts,
    )


def _read_requirements(who: str, path: Path) -> list[str]:
    """Requirements of a requirements.txt. Their hashes are left out: the lock has hashes of its own."""
    lines = []
    for line in read_text(who, path).replace("\\\n", " ").splitlines():
        plain = _HASH.sub("", re.sub(r"(^|\s)#.*", "", line)).strip()
        if plain.startswith("-"):
            raise ConfigError(f"{who}: requirements.txt: option '{plain}' is not understood; have plain requirements")
        if plain:
            lines.append(plain)
    return lines


def _parse_toml(who: str, name: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{who}: {name}: not TOML: {' '.join(str(error).split())}") from error
