"""Parse the usual ways to name a server into install requests.

These are ``npx``, ``uvx`` and ``docker run`` command lines, programs of one's own (``python``, ``node``,
``uv run``), the packages of a native server (``pip install``), URLs, and the configuration files of Claude and VS Code.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qsl, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from gymcp.errors import ConfigError
from gymcp.mcp_servers.packages.install_request import InstallRequest
from gymcp.mcp_servers.packages.lockfile import MAX_NAME_CHARS, check_name
from gymcp.mcp_servers.packages.own_source.files import to_plain_path
from gymcp.mcp_servers.packages.own_source.lines import (
    NODE_FILES,
    PYTHON_FILES,
    advise_source,
    parse_node,
    parse_python,
    parse_uv,
    replace_runner,
)
from gymcp.mcp_servers.packages.own_source.metadata import check_requirements, split_requirements
from gymcp.mcp_servers.variables import VARIABLE, is_secret
from gymcp.types import Json

_NPM = re.compile(r"(?P<name>(@[\w.~-]+/)?[\w.~-]+)(@(?P<version>[\w.+-]+))?")
_COMMON_PREFIXES = ("mcp-server-", "mcp_server_", "server-", "mcp-", "mcp_")
_COMMON_SUFFIXES = ("-mcp", "_mcp", "-server", "_server")
_COMMON_STEMS = ("server", "main", "index", "app", "__main__")
_PROGRAM_SUFFIXES = (*PYTHON_FILES, *NODE_FILES)
_EXPECTED = (
    "have 'npx -y PACKAGE@VERSION', 'uvx PACKAGE==VERSION', 'docker run -i --rm IMAGE', 'https://HOST/PATH', and of "
    "your own 'python FILE.py', 'uv run FILE.py', 'node FILE.js' and --path FOLDER"
)
_OWN = {"python": parse_python, "python3": parse_python, "uv": parse_uv, "node": parse_node}
_COMMON_LABELS = ("www", "mcp", "api")
_IP_ADDRESS = re.compile(r"[\d.]+|.*:.*")
_TYPES = ("stdio", "http", "streamable-http", "streamableHttp")
"""Transports that an entry of a configuration file may name."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_IMAGE = re.compile(
    r"(?P<name>([\w.-]+(:\d+)?/)?[\w.-]+(/[\w.-]+)*)(:(?P<tag>[\w.-]+))?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_DOCKER_FLAGS = ("-i", "--interactive", "--rm", "--init")


def parse_command(
    words: str | Sequence[str],
    *,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    http: str = "",
    headers: Mapping[str, str] | None = None,
    base: Path = Path(),
    start: Path | None = None,
) -> InstallRequest:
    """Parse the command line that starts a server, or its URL. Raises ConfigError, naming the part that it rejects.

    `base`: folder of the lock, to which the request's paths are relative. `start`: folder that the paths in the words
    of an own program are relative to; None: `base`.
    """
    line = replace_runner(split_words(words))
    who = f"server '{name}'" if name else "server"
    if not line:
        raise ConfigError(f"{who}: an empty command; {_EXPECTED}")
    if line[0].startswith(("http://", "https://")):
        return _parse_url(who, line, name, env, http, headers or {})
    if headers:
        raise ConfigError(f"{who}: headers are for servers at a url; for the environment of a command there is env")
    program = Path(line[0]).name
    if program in _OWN:
        request = _OWN[program](who, line[1:], base, start or base)
        return _complete(who, request, name, env, http, base)
    parse = _PARSERS.get(program)
    if parse is None:
        raise ConfigError(f"{who}: command '{line[0]}' is not one that can be locked; {_EXPECTED}")
    return _complete(who, parse(who, line[1:]), name, env, http, base)


def _complete(
    who: str, request: InstallRequest, name: str | None, env: Mapping[str, str] | None, http: str, base: Path
) -> InstallRequest:
    """The parsed request with its name and its settings. Raises ConfigError."""
    values = {**request.env, **(env or {})}
    if request.runtime == "native":
        if not name:
            raise ConfigError(f"{who}: pip install: for which native server? give the name it has there with --name")
        if values or http:
            raise ConfigError(f"{who}: pip install: packages take no env and no http; native_server has those")
    _refuse_secrets(who, "env", values)
    known_as = request.package if request.own is None else str(to_plain_path(base / request.package))
    return replace(request, name=check_name(name or default_name(known_as)), env=values, http=http, base=base)


def split_words(words: str | Sequence[str]) -> tuple[str, ...]:
    """Words of a command line, as a shell splits it. Raises ConfigError."""
    try:
        return tuple(shlex.split(words) if isinstance(words, str) else words)
    except ValueError as error:
        raise ConfigError(f"server command {words!r}: {error}") from error


def read_config(config: str | Path, only: Iterable[str] = (), *, base: Path | None = None) -> list[InstallRequest]:
    """Servers of FILE, a ``claude_desktop_config.json`` or a ``mcp.json``: all, or those named in `only`; or FILE:NAME.

    `base`: folder of the lock; None: the working folder. Paths in the file are relative to the file's folder. Raises
    ConfigError. One error names all environment variables that are not set.
    """
    path, entry = _split_entry(str(config))
    rows, wanted = _read_rows(path), {*only, entry} - {""}
    if path != Path(config) and not entry:
        raise ConfigError(f"config '{config}': names no server after the colon; have {', '.join(rows)}")
    if unknown := sorted(wanted - set(rows)):
        raise ConfigError(f"config '{path}': no server '{unknown[0]}'; have {', '.join(rows)}")
    chosen = {name: row for name, row in rows.items() if name in wanted or not wanted}
    requests = [_from_entry(path, name, row, base or Path.cwd()) for name, row in chosen.items()]
    unset = [f"server '{req.name}': {', '.join(names)}" for req in requests if (names := unset_variables(req))]
    if unset:
        raise ConfigError(f"config '{path}': environment variables that it refers to are not set: {'; '.join(unset)}")
    return requests


def read_entry(text: str, *, base: Path) -> InstallRequest:
    """The server that FILE:NAME names; FILE alone must have only one. Otherwise as `read_config`."""
    path, name = _split_entry(text)
    if not name and len(have := _read_rows(path)) > 1:
        raise ConfigError(f"config '{path}': has {len(have)} servers: {', '.join(have)}; name one: {path}:NAME")
    (request,) = read_config(text, base=base)
    return request


def _split_entry(text: str) -> tuple[Path, str]:
    """(file, name) of FILE:NAME; the name is empty for FILE alone."""
    file, colon, name = text.rpartition(":")
    return (Path(file), name) if colon and not Path(text).exists() else (Path(text), "")


def _read_rows(path: Path) -> dict[str, Json]:
    """The entries of a configuration file by name, at least one. Raises ConfigError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8").replace("${env:", "${"))  # as VS Code writes it
    except OSError as error:
        raise ConfigError(f"config '{path}': cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"config '{path}': is not JSON: {error}") from error
    rows = content.get("mcpServers", content.get("servers")) if isinstance(content, dict) else None
    if not isinstance(rows, dict) or not rows:
        raise ConfigError(f'config \'{path}\': has no servers; expected {{"mcpServers": {{NAME: {{"command": ...}}}}}}')
    return rows


def unset_variables(request: InstallRequest) -> list[str]:
    """Environment variables that URL, arguments, environment or headers refer to and that are not set."""
    names = []
    for text in (request.url, *request.args, *request.env.values(), *request.headers.values()):
        for match in VARIABLE.finditer(text):
            name, _, default = match["name"].partition(":-")
            if name not in os.environ and not default and name not in names:
                names.append(name)
    return names


def default_name(package: str) -> str:
    """Short name of a package or a path: ``@modelcontextprotocol/server-memory`` is ``memory``, ``./kv_server.py`` is
    ``kv``, ``./a/Dockerfile`` and ``./a/server.py`` are ``a``."""
    path = PurePosixPath(package)
    is_file = package[0] in "./" and path.suffix in _PROGRAM_SUFFIXES
    name = path.stem if is_file else path.name
    if (name.endswith("Dockerfile") or (is_file and name in _COMMON_STEMS)) and path.parent.name not in ("", ".."):
        name = path.parent.name
    for prefix in _COMMON_PREFIXES:
        name = name.removeprefix(prefix)
    for suffix in _COMMON_SUFFIXES:
        name = name.removesuffix(suffix)
    return _to_name(name) or _to_name(path.name) or "server"


def name_of_host(host: str) -> str:
    """Short name of a host: ``mcp.example.com`` is ``example``, ``127.0.0.1`` is ``host-127-0-0-1``."""
    labels = [] if _IP_ADDRESS.fullmatch(host) else host.split(".")
    specific = [label for label in (labels[:-1] or labels) if label not in _COMMON_LABELS]
    return _to_name("-".join(specific or labels)) or _to_name(f"host {host}")


def _to_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text)[:MAX_NAME_CHARS].strip("-_")


def _from_entry(path: Path, name: str, row: Json, base: Path) -> InstallRequest:
    who = f"config '{path}': server '{name}'"
    if not isinstance(row, dict) or not (isinstance(row.get("command"), str) or isinstance(row.get("url"), str)):
        raise ConfigError(f"{who}: has no command and no url; {_EXPECTED}")
    args, env, headers = row.get("args", []), row.get("env", {}), row.get("headers", {})
    if not isinstance(args, list) or not all(isinstance(word, str) for word in args):
        raise ConfigError(f"{who}: args must be a list of texts")
    for what, values in (("env", env), ("headers", headers)):
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise ConfigError(f"{who}: {what} must map names to texts")
    if row.get("type") == "sse":
        raise ConfigError(f"{who}: type 'sse' is the transport of 2024, which is not spoken; have streamable HTTP")
    if (row.get("type") or "stdio") not in _TYPES:
        raise ConfigError(f"{who}: type '{row['type']}' is not supported; have {', '.join(_TYPES)}")
    if "${input:" in json.dumps(row):
        raise ConfigError(f"{who}: only an editor asks for ${{input:...}}: write ${{NAME}} and set that variable")
    if "command" not in row:
        return parse_command((row["url"], *args), name=name, env=env, headers=headers)
    http = _port_of(who, row["url"]) if "url" in row else ""
    start = path.absolute().parent / str(row.get("cwd", ""))
    return parse_command((row["command"], *args), name=name, env=env, http=http, base=base, start=start)


def _port_of(who: str, url: Json) -> str:
    """PORT/PATH from the url of a server that is started here and listens."""
    parts = urlsplit(str(url))
    if parts.hostname not in _LOOPBACK or parts.port is None:
        raise ConfigError(
            f"{who}: has a command and the url '{url}': where it listens must be http://127.0.0.1:PORT/PATH"
        )
    return f"{parts.port}{parts.path or '/'}"


def _parse_url(
    who: str,
    line: Sequence[str],
    name: str | None,
    env: Mapping[str, str] | None,
    http: str,
    headers: Mapping[str, str],
) -> InstallRequest:
    url = line[0]
    host = urlsplit(url).hostname
    if len(line) > 1 or env or http:
        raise ConfigError(f"{who}: {url} runs elsewhere: it takes no arguments, env or http; have headers")
    if not host:
        raise ConfigError(f"{who}: '{url}' has no host; {_EXPECTED}")
    _refuse_secrets(who, "header", headers)
    _refuse_secrets(who, "query", dict(parse_qsl(urlsplit(url).query)))
    return InstallRequest(
        name=check_name(name or name_of_host(host)),
        runtime="remote",
        package=host,
        version="",
        url=url,
        headers=dict(headers),
    )


def _parse_npx(who: str, words: Sequence[str]) -> InstallRequest:
    rest, package = list(words), None
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-p", "--package") and rest:
            package = rest.pop(0)
        elif option.startswith("--package="):
            package = option.partition("=")[2]
        elif option not in ("-y", "--yes", "--"):
            raise ConfigError(f"{who}: npx option '{option}' is not understood; have -y, -p PACKAGE")
    if not rest:
        raise ConfigError(f"{who}: npx of no package; {_EXPECTED}")
    program = rest.pop(0) if package else None
    package = package or rest.pop(0)
    match = _NPM.fullmatch(package)
    if match is None:
        advice = advise_source(package, _EXPECTED)
        raise ConfigError(f"{who}: '{package}' is not PACKAGE@VERSION of a package registry; {advice}")
    version = match["version"]
    return InstallRequest(
        name="",
        runtime="node",
        package=match["name"],
        version=None if version in (None, "latest") else version,
        program=program,
        args=tuple(rest),
    )


def _parse_uvx(who: str, words: Sequence[str]) -> InstallRequest:
    rest, source, added, python = list(words), None, list[str](), ""
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option not in ("--from", "--with", "--python", "-p") or not (equals or rest):
            raise ConfigError(f"{who}: uvx option '{option}' is not understood; have --from, --with, --python")
        value = value if equals else rest.pop(0)
        if option == "--from":
            source = value
        elif option == "--with":
            added += split_requirements(value)
        else:
            python = value
    if not rest:
        raise ConfigError(f"{who}: uvx of no package; {_EXPECTED}")
    program = rest.pop(0) if source else None
    text = re.sub(r"@(latest)?$", "", source or rest.pop(0))
    try:
        requirement = Requirement(re.sub(r"@(?=[\w.+!-]+$)", "==", text))
    except InvalidRequirement as error:
        raise ConfigError(f"{who}: '{text}' is not PACKAGE==VERSION: {advise_source(text, str(error))}") from error
    pins = list(requirement.specifier)
    if requirement.url or len(pins) > 1 or any(pin.operator != "==" or "*" in pin.version for pin in pins):
        raise ConfigError(f"{who}: '{text}' is not PACKAGE==VERSION of a package index; {_EXPECTED}")
    return InstallRequest(
        name="",
        runtime="python",
        package=requirement.name,
        version=pins[0].version if pins else None,
        extras=tuple(sorted(requirement.extras)),
        program=program,
        args=tuple(rest),
        added=check_requirements(f"{who}: --with", added),
        python=python,
    )


def _parse_pip(who: str, words: Sequence[str]) -> InstallRequest:
    """Parse ``pip install``, which names the packages of a native server."""
    if not words or words[0] != "install" or not words[1:]:
        raise ConfigError(f"{who}: of pip only 'pip install PACKAGE==VERSION ...' can be locked, for a native server")
    if options := [word for word in words[1:] if word.startswith("-")]:
        raise ConfigError(f"{who}: pip option '{options[0]}' is not understood; have PACKAGE==VERSION")
    requirements = tuple(parse_requirement(who, word, pinned=False) for word in words[1:])
    own = Requirement(requirements[0])
    version = next((pin.version for pin in own.specifier), None)
    return InstallRequest(name="", runtime="native", package=own.name, version=version, requirements=requirements)


def parse_requirement(who: str, text: str, *, pinned: bool) -> str:
    """PACKAGE==VERSION with its extras, the name in its canonical form. Raises ConfigError for anything else.

    PACKAGE alone is fine if it need not be `pinned`.
    """
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise ConfigError(f"{who}: '{text}' is not PACKAGE==VERSION: {advise_source(text, str(error))}") from error
    pins = list(requirement.specifier)
    exact = all(pin.operator == "==" and "*" not in pin.version for pin in pins) and len(pins) <= 1
    if requirement.url or requirement.marker or not exact or (pinned and not pins):
        raise ConfigError(f"{who}: '{text}' is not PACKAGE==VERSION of a package index")
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{canonicalize_name(requirement.name)}{extras}" + (f"=={pins[0].version}" if pins else "")


def _parse_docker(who: str, words: Sequence[str]) -> InstallRequest:
    """Parse ``docker run``. Options that would give the server more than its sandbox does are refused."""
    rest, env = list(words), {}
    if not rest or rest.pop(0) != "run":
        raise ConfigError(f"{who}: of docker only 'docker run -i --rm IMAGE' can be locked")
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-e", "--env") and rest:
            option = f"--env={rest.pop(0)}"
        if option.startswith("--env="):
            name, equals, value = option.removeprefix("--env=").partition("=")
            env[name] = value if equals else f"${{{name}}}"
        elif option not in _DOCKER_FLAGS:
            raise ConfigError(
                f"{who}: docker option '{option}' is not understood; have -i, --rm, --init, -e NAME; folders, networks "
                "and limits are the sandbox's"
            )
    if not rest:
        raise ConfigError(f"{who}: docker run of no image; {_EXPECTED}")
    image = rest.pop(0)
    if image[0] in "./":
        return InstallRequest(name="", runtime="image", package=image, version=None, args=tuple(rest), env=env)
    match = _IMAGE.fullmatch(image)
    if match is None:
        raise ConfigError(f"{who}: '{image}' is not the name of an image")
    version = match["digest"] or match["tag"] or "latest"
    return InstallRequest(name="", runtime="image", package=match["name"], version=version, args=tuple(rest), env=env)


def _refuse_secrets(who: str, what: str, values: Mapping[str, str]) -> None:
    """Raise ConfigError for a value that looks like a secret: a lock is committed, so it may hold only its name."""
    for name, value in values.items():
        if value and is_secret(name) and not VARIABLE.search(value):
            raise ConfigError(
                f"{who}: {what} '{name}' looks like a secret, which must not be written into a lock; write "
                f"'${{{_variable_name(name)}}}' in its place and set that environment variable"
            )


def _variable_name(name: str) -> str:
    """Name for an environment variable: a header's name may hold characters that a variable's cannot."""
    return name if name.isidentifier() else re.sub(r"\W", "_", name).upper()


_PARSERS = {"npx": _parse_npx, "uvx": _parse_uvx, "docker": _parse_docker, "pip": _parse_pip}
"""Program -> parser of its command line."""
