"""What people write to start a server, as what to install: ``npx``, ``uvx`` and ``docker run`` lines, Claude's
configuration file."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qsl, urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from gymcp.errors import ConfigError
from gymcp.mcp_servers.packages.lockfile import MAX_NAME, Runtime, checked_name
from gymcp.mcp_servers.variables import VARIABLE, is_secret
from gymcp.types import Json

_NPM = re.compile(r"(?P<name>(@[\w.~-]+/)?[\w.~-]+)(@(?P<version>[\w.+-]+))?")
_WORDLESS = ("mcp-server-", "server-", "mcp-")
_HAVE = "have 'npx -y PACKAGE@VERSION', 'uvx PACKAGE==VERSION', 'docker run -i --rm IMAGE' and 'https://HOST/PATH'"
_GENERIC = ("www", "mcp", "api")
_ADDRESS = re.compile(r"[\d.]+|.*:.*")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_IMAGE = re.compile(
    r"(?P<name>([\w.-]+(:\d+)?/)?[\w.-]+(/[\w.-]+)*)(:(?P<tag>[\w.-]+))?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_DOCKER_FLAGS = ("-i", "--interactive", "--rm", "--init")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A server to lock."""

    name: str
    runtime: Runtime
    package: str
    """Of an image its name without tag and digest, or the path of a Dockerfile, which begins with a dot or a slash."""
    version: str | None
    """None: the newest, which the lock then pins. Of an image its tag, or its digest in a registry."""
    extras: tuple[str, ...] = ()
    program: str | None = None
    """Which of the package's programs to start; None: the one of the package's own name, or the only one."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    http: str = ""
    """PORT/PATH where it listens inside the sandbox; empty: it speaks over standard input and output."""
    url: str = ""
    """Of a remote server."""
    headers: Mapping[str, str] = field(default_factory=dict)
    build: tuple[str, ...] = ()
    """Names of packages, as ``NAME`` or ``NAME==VERSION``, that may be built in a sandbox where they must be."""
    base: Path = field(default=Path(), compare=False)
    """The folder from which the path of a Dockerfile counts."""

    @property
    def dockerfile(self) -> Path | None:
        """Where the server is an image that is built here."""
        return self.base / self.package if self.runtime == "image" and self.package[0] in "./" else None

    def command(self, version: str) -> tuple[str, ...]:
        """As a person would start it, with that version; of a remote server its URL."""
        if self.runtime == "remote":
            return (self.url,)
        if self.runtime == "node":
            pinned = f"{self.package}@{version}"
            start = ["npx", "-y", pinned] if self.program is None else ["npx", "-y", "-p", pinned, self.program]
        elif self.runtime == "image":
            start = ["docker", "run", "-i", "--rm", image_reference(self, version)]
        else:
            pinned = f"{self.package}{'[' + ','.join(self.extras) + ']' if self.extras else ''}=={version}"
            start = ["uvx", pinned] if self.program is None else ["uvx", "--from", pinned, self.program]
        return (*start, *self.args)


def parse_command(
    words: str | Sequence[str],
    *,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    http: str = "",
    headers: Mapping[str, str] | None = None,
    base: Path = Path(),
) -> Wanted:
    """From an ``npx``, ``uvx`` or ``docker run`` line, or a URL. Raises ConfigError, naming what is not understood."""
    try:
        line = tuple(shlex.split(words) if isinstance(words, str) else words)
    except ValueError as error:
        raise ConfigError(f"server command {words!r}: {error}") from error
    who = f"server '{name}'" if name else "server"
    if not line:
        raise ConfigError(f"{who}: an empty command; {_HAVE}")
    if line[0].startswith(("http://", "https://")):
        return _parse_url(who, line, name, env, http, headers or {})
    if headers:
        raise ConfigError(f"{who}: headers are for servers at a url; for the environment of a command there is env")
    parse = {"npx": _parse_npx, "uvx": _parse_uvx, "docker": _parse_docker}.get(Path(line[0]).name)
    if parse is None:
        raise ConfigError(f"{who}: command '{line[0]}' is not one that can be locked; {_HAVE}")
    wanted = parse(who, line[1:])
    values = {**wanted.env, **(env or {})}
    _refuse_secrets(who, "env", values)
    return replace(wanted, name=checked_name(name or default_name(wanted.package)), env=values, http=http, base=base)


def read_config(path: Path, only: Iterable[str] = ()) -> list[Wanted]:
    """The servers of a ``claude_desktop_config.json``, or only some. Raises ConfigError, one for all that is unset."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"config '{path}': cannot be read: {error}") from error
    rows = content.get("mcpServers") if isinstance(content, dict) else None
    if not isinstance(rows, dict) or not rows:
        raise ConfigError(f'config \'{path}\': has no servers; expected {{"mcpServers": {{NAME: {{"command": ...}}}}}}')
    if unknown := sorted(set(only) - set(rows)):
        raise ConfigError(f"config '{path}': no server '{unknown[0]}'; have {', '.join(rows)}")
    chosen = {name: row for name, row in rows.items() if name in set(only) or not set(only)}
    found = [_from_entry(path, name, row) for name, row in chosen.items()]
    unset = [f"server '{wanted.name}': {', '.join(names)}" for wanted in found if (names := unset_in(wanted))]
    if unset:
        raise ConfigError(f"config '{path}': environment variables that it refers to are not set: {'; '.join(unset)}")
    return found


def unset_in(wanted: Wanted) -> list[str]:
    """The environment variables that URL, arguments, environment and headers refer to and that are not set."""
    names = []
    for text in (wanted.url, *wanted.args, *wanted.env.values(), *wanted.headers.values()):
        for match in VARIABLE.finditer(text):
            name, _, default = match["name"].partition(":-")
            if name not in os.environ and not default and name not in names:
                names.append(name)
    return names


def image_reference(wanted: Wanted, version: str) -> str:
    """The image's name with tag or digest; of a Dockerfile its path."""
    if wanted.dockerfile is not None:
        return wanted.package
    return f"{wanted.package}{'@' if version.startswith('sha256:') else ':'}{version}"


def default_name(package: str) -> str:
    """What people call it: ``@modelcontextprotocol/server-memory`` is ``memory``, ``./a/Dockerfile`` is ``a``."""
    place = PurePosixPath(package)
    name = place.parent.name if place.name.endswith("Dockerfile") and place.parent.name else place.name
    for start in _WORDLESS:
        name = name.removeprefix(start)
    return _as_name(name.removesuffix("-mcp").removesuffix("-server")) or name


def name_of_host(host: str) -> str:
    """What people call it: ``mcp.example.com`` is ``example``, ``127.0.0.1`` is ``host-127-0-0-1``."""
    labels = [] if _ADDRESS.fullmatch(host) else host.split(".")
    telling = [label for label in (labels[:-1] or labels) if label not in _GENERIC]
    return _as_name("-".join(telling or labels)) or _as_name(f"host {host}")


def _as_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text)[:MAX_NAME].strip("-_")


def _from_entry(path: Path, name: str, row: Json) -> Wanted:
    who = f"config '{path}': server '{name}'"
    if not isinstance(row, dict) or not (isinstance(row.get("command"), str) or isinstance(row.get("url"), str)):
        raise ConfigError(f"{who}: has no command and no url; {_HAVE}")
    args, env, headers = row.get("args", []), row.get("env", {}), row.get("headers", {})
    if not isinstance(args, list) or not all(isinstance(word, str) for word in args):
        raise ConfigError(f"{who}: args must be a list of texts")
    for what, values in (("env", env), ("headers", headers)):
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise ConfigError(f"{who}: {what} must map names to texts")
    if row.get("type") == "sse":
        raise ConfigError(f"{who}: type 'sse' is the transport of 2024, which is not spoken; have streamable HTTP")
    if "command" not in row:
        return parse_command((row["url"], *args), name=name, env=env, headers=headers)
    http = _port_of(who, row["url"]) if "url" in row else ""
    return parse_command((row["command"], *args), name=name, env=env, http=http)


def _port_of(who: str, url: Json) -> str:
    """Of a server that is started here and listens: where, as PORT/PATH."""
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
) -> Wanted:
    url = line[0]
    host = urlsplit(url).hostname
    if len(line) > 1 or env or http:
        raise ConfigError(f"{who}: {url} runs elsewhere: it takes no arguments, env or http; have headers")
    if not host:
        raise ConfigError(f"{who}: '{url}' has no host; {_HAVE}")
    _refuse_secrets(who, "header", headers)
    _refuse_secrets(who, "query", dict(parse_qsl(urlsplit(url).query)))
    return Wanted(
        name=checked_name(name or name_of_host(host)),
        runtime="remote",
        package=host,
        version="",
        url=url,
        headers=dict(headers),
    )


def _parse_npx(who: str, words: Sequence[str]) -> Wanted:
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
        raise ConfigError(f"{who}: npx of no package; {_HAVE}")
    program = rest.pop(0) if package else None
    package = package or rest.pop(0)
    match = _NPM.fullmatch(package)
    if match is None:
        raise ConfigError(f"{who}: '{package}' is not PACKAGE@VERSION of a package registry; {_HAVE}")
    version = match["version"]
    return Wanted(
        name="",
        runtime="node",
        package=match["name"],
        version=None if version in (None, "latest") else version,
        program=program,
        args=tuple(rest),
    )


def _parse_uvx(who: str, words: Sequence[str]) -> Wanted:
    rest, source = list(words), None
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--from" and rest:
            source = rest.pop(0)
        elif option.startswith("--from="):
            source = option.partition("=")[2]
        else:
            raise ConfigError(f"{who}: uvx option '{option}' is not understood; have --from PACKAGE")
    if not rest:
        raise ConfigError(f"{who}: uvx of no package; {_HAVE}")
    program = rest.pop(0) if source else None
    text = re.sub(r"@(latest)?$", "", source or rest.pop(0))
    try:
        requirement = Requirement(re.sub(r"@(?=[\w.+!-]+$)", "==", text))
    except InvalidRequirement as error:
        raise ConfigError(f"{who}: '{text}' is not PACKAGE==VERSION: {str(error).splitlines()[0]}") from error
    pins = list(requirement.specifier)
    if requirement.url or len(pins) > 1 or any(pin.operator != "==" or "*" in pin.version for pin in pins):
        raise ConfigError(f"{who}: '{text}' is not PACKAGE==VERSION of a package index; {_HAVE}")
    return Wanted(
        name="",
        runtime="python",
        package=requirement.name,
        version=pins[0].version if pins else None,
        extras=tuple(sorted(requirement.extras)),
        program=program,
        args=tuple(rest),
    )


def _parse_docker(who: str, words: Sequence[str]) -> Wanted:
    """``docker run``; whatever would give the server more than its sandbox does is refused."""
    rest, env = list(words), {}
    if not rest or rest.pop(0) != "run":
        raise ConfigError(f"{who}: of docker only 'docker run -i --rm IMAGE' can be locked")
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-e", "--env") and rest:
            option = f"--env={rest.pop(0)}"
        if option.startswith("--env="):
            name, found, value = option.removeprefix("--env=").partition("=")
            env[name] = value if found else f"${{{name}}}"
        elif option not in _DOCKER_FLAGS:
            raise ConfigError(
                f"{who}: docker option '{option}' is not understood; have -i, --rm, --init, -e NAME; folders, networks "
                "and limits are the sandbox's"
            )
    if not rest:
        raise ConfigError(f"{who}: docker run of no image; {_HAVE}")
    image = rest.pop(0)
    if image[0] in "./":
        return Wanted(name="", runtime="image", package=image, version=None, args=tuple(rest), env=env)
    match = _IMAGE.fullmatch(image)
    if match is None:
        raise ConfigError(f"{who}: '{image}' is not the name of an image")
    version = match["digest"] or match["tag"] or "latest"
    return Wanted(name="", runtime="image", package=match["name"], version=version, args=tuple(rest), env=env)


def _refuse_secrets(who: str, what: str, values: Mapping[str, str]) -> None:
    """A lock is committed: what looks like a secret may be in it only by name."""
    for name, value in values.items():
        if value and is_secret(name) and not VARIABLE.search(value):
            raise ConfigError(
                f"{who}: {what} '{name}' looks like a secret, which must not be written into a lock; write "
                f"'${{{_variable(name)}}}' in its place and set that environment variable"
            )


def _variable(name: str) -> str:
    """What one would call it: a header's name is none of a variable."""
    return name if name.isidentifier() else re.sub(r"\W", "_", name).upper()
