"""Strict grammar of the words in a lock.

Words of a lock become lines and arguments for uv, npm and the Docker engine. Therefore each word must have the exact
form of its kind; any other word raises a ValueError that names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

MAX_WORD_CHARS = 4_000
"""Most characters of one word in a lock."""

_PYTHON_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")  # PEP 508
_PYTHON_VERSION = re.compile(r"[A-Za-z0-9.!+_-]+")
_PYTHON_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.(whl|tar\.gz|tar\.bz2|tar\.xz|tgz|zip)")
_NODE_NAME = r"(@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~_-][A-Za-z0-9._~-]*"
_NODE_PATH = re.compile(rf"node_modules/{_NODE_NAME}(/node_modules/{_NODE_NAME})*")
_NODE_VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")  # semver
_INTEGRITY = re.compile(r"sha(1|256|384|512)-[A-Za-z0-9+/]+={0,2}( sha(1|256|384|512)-[A-Za-z0-9+/]+={0,2})*")
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_IMAGE_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]*(:\d+)?/)?[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*")
_IMAGE_VERSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}|sha256:[0-9a-f]{64}")
_DOCKERFILE = re.compile(r"[./][^\x00-\x1f\x7f]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110
_MINOR_VERSION = re.compile(r"3\.\d{1,2}")
_HTTP = re.compile(r":?\d{1,5}(/[\x21-\x7e]*)?")
_HEX = re.compile(r"[0-9a-f]{16,64}")
_PLATFORM = re.compile(r"[a-z0-9_.-]+")
_HASH_START = re.compile(r"[0-9a-f]{12}")
_SHA256_HEX = re.compile(r"[0-9a-f]{64}")
_PATH = re.compile(r"(?!/)(?!(.*/)?\.\.(/|$))[^\x00-\x1f\x7f]+")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_IMAGE_FILES = frozenset({"id", "digest", "context"})


def check_server(row: Mapping[str, Any]) -> None:
    """Check the words of a server's entry, except its packages. Raises ValueError."""
    runtime = row["runtime"]
    package, version = text(row["package"], "package"), text(row["version"], "version")
    if "source" in row:
        check_source(row["source"], runtime)
        _match(_DOCKERFILE, package, "package", "the path of a source")
        _match(_HASH_START, version, "version", "the beginning of a hash")
    elif runtime in ("python", "native"):
        _match(_PYTHON_NAME, package, "package", "the name of a Python package")
        check_python_version(version, "version")
    elif runtime == "node":
        _match(re.compile(_NODE_NAME), package, "package", "the name of an npm package")
        _match(_NODE_VERSION, version, "version", "a semantic version")
    elif runtime == "image":
        known = _DOCKERFILE if package[:1] in ("/", ".") else _IMAGE_NAME
        _match(known, package, "package", "the name of an image or the path of a Dockerfile")
        _match(_IMAGE_VERSION, version, "version", "a tag or a digest")
    words = row["command"]
    if not isinstance(words, list) or not words:
        raise ValueError(f"command {words!r:.80}: expected a list of words")
    for word in words:
        text(word, "command")
    if runtime == "remote":
        check_url(words[0])
    if python := row.get("python", ""):
        check_specifiers(text(python, "python"))
    if chosen := row.get("python_version", ""):
        _match(_MINOR_VERSION, text(chosen, "python_version"), "python_version", "a minor version such as 3.12")
        if runtime != "python":
            raise ValueError(f"python_version: a server of the kind {runtime} has none")
    if http := row.get("http", ""):
        _match(_HTTP, text(http, "http"), "http", "PORT or PORT/PATH")
    _check_requirements(row.get("constraints", []), "constraints")
    if "until" in row:
        _match(_TIME, row["until"], "until", "a time such as 2025-03-31T00:00:00Z")
    sdk = row.get("sdk_major")
    if sdk is not None and (not isinstance(sdk, int) or isinstance(sdk, bool) or not 0 <= sdk < 1000):
        raise ValueError(f"sdk_major {sdk!r:.80}: expected a small whole number")
    _check_table(row.get("env", {}), "env", _VARIABLE, "the name of a variable")
    _check_table(row.get("headers", {}), "headers", _HEADER, "the name of a header")
    for name, value in _check_table(row.get("trees", {}), "trees", _PLATFORM, "a platform").items():
        _match(_HEX, value, f"trees.{name}", "a hash in hex digits")


def check_source(row: Any, runtime: str) -> None:
    """Check the words of a source of the user's own. Raises ValueError."""
    if not isinstance(row, dict) or runtime not in ("python", "node"):
        raise ValueError("source: expected a table, of a server of Python or node")
    _match(_SHA256_HEX, row.get("sha256", ""), "source.sha256", "64 hex digits")
    for name, value in _check_table(row.get("files"), "source.files", _PATH, "a path below the source").items():
        _match(_SHA256_HEX, value, f"source.files.{name:.80}", "64 hex digits")
    for key in ("requires", "include"):
        words = row.get(key, [])
        if not isinstance(words, list):
            raise ValueError(f"source.{key} {words!r:.80}: expected a list of texts")
        for word in words:
            _match(_PATH, word, f"source.{key}", "a path below the source") if key == "include" else text(word, key)


def _check_requirements(lines: object, who: str) -> None:
    if not isinstance(lines, list):
        raise ValueError(f"{who} {lines!r:.80}: expected a list of requirements")
    for line in lines:
        try:
            url = Requirement(text(line, who)).url
        except InvalidRequirement as error:
            raise ValueError(f"{who} {line!r:.80} is not a requirement") from error
        if url:
            raise ValueError(f"{who} {line!r:.80} names a URL")


def check_package(runtime: str, name: str, version: str, files: Mapping[str, str], marker: str) -> None:
    """Check the words of one package. Raises ValueError."""
    who = f"package {name!r:.80}"
    if runtime == "python":
        _match(_PYTHON_NAME, name, who, "the name of a Python package")
        check_python_version(version, who)
        for file, digest in files.items():
            _match(_PYTHON_FILE, file, f"{who}: file", "the name of a wheel or a source archive")
            _match(_SHA256, digest, f"{who}: hash", "sha256: and 64 hex digits")
        check_marker(marker, who)
    elif runtime == "node":
        _match(_NODE_PATH, name, who, "a folder below node_modules")
        if ".." in name.split("/"):
            raise ValueError(f"{who}: leads out of its folder")
        _match(_NODE_VERSION, version, f"{who}: version", "a semantic version")
        if files.keys() != {"integrity"}:
            raise ValueError(f"{who}: files: expected its integrity and no more")
        _match(_INTEGRITY, files["integrity"], f"{who}: integrity", "sha512-BASE64")
    elif runtime == "image":
        _match(_DOCKERFILE if name[:1] in ("/", ".") else _IMAGE_NAME, name, who, "the name of an image")
        _match(_IMAGE_VERSION, version, f"{who}: version", "a tag or a digest")
        if not files or not files.keys() <= _IMAGE_FILES:
            raise ValueError(f"{who}: files: expected {', '.join(sorted(_IMAGE_FILES))}")
        for what, digest in files.items():
            _match(_SHA256, digest, f"{who}: {what}", "sha256: and 64 hex digits")
    else:
        raise ValueError(f"{who}: a {runtime} server has no packages")
    if marker and runtime != "python":
        raise ValueError(f"{who}: only Python packages have a marker")


def check_needs(needs: object, who: str) -> None:
    """Check that `needs` is a list of names of npm packages. Raises ValueError."""
    if not isinstance(needs, list):
        raise ValueError(f"{who}: needs {needs!r:.80}: expected a list of names")
    for name in needs:
        _match(re.compile(_NODE_NAME), text(name, "needs"), f"{who}: needs", "the name of an npm package")


def check_python_version(version: str, who: str) -> None:
    """Check that the text is a PEP 440 version and nothing else. Raises ValueError."""
    _match(_PYTHON_VERSION, version, who, "a version")
    try:
        Version(version)
    except InvalidVersion as error:
        raise ValueError(f"{who}: {version!r:.80} is not a version") from error


def check_marker(marker: str, who: str) -> None:
    """Check that the text is a PEP 508 marker on one line, or empty. Raises ValueError."""
    if not marker:
        return
    _refuse_controls(marker, f"{who}: marker")
    if not re.fullmatch(r"""[A-Za-z0-9_ .'"<>=!~()+*,-]+""", marker):
        raise ValueError(f"{who}: marker {marker!r:.80}: has characters that no marker has")
    try:
        Marker(marker)
    except (InvalidMarker, RecursionError) as error:
        raise ValueError(f"{who}: marker {marker!r:.80} is not one of PEP 508") from error


def check_specifiers(python: str) -> None:
    """Check that the text is a specifier of Python versions. Raises ValueError."""
    _refuse_controls(python, "python")
    try:
        SpecifierSet(python)
    except InvalidSpecifier as error:
        raise ValueError(f"python {python!r:.80}: expected something like '>=3.10'") from error


def check_url(url: str) -> None:
    """Check that the text is http(s)://HOST/PATH without credentials and blanks. Raises ValueError."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known or "@" in parts.netloc or not re.fullmatch(r"[\x21-\x7e]+", url):
        raise ValueError(f"command: url {url!r:.80}: expected http(s)://HOST/PATH")


def text(value: object, who: str) -> str:
    """The value, if it is a text. Raises ValueError for other types, long texts and control characters."""
    if not isinstance(value, str):
        raise ValueError(f"{who} {value!r:.80}: expected a text")
    _refuse_controls(value, who)
    return value


def _refuse_controls(value: str, who: str) -> None:
    if len(value) > MAX_WORD_CHARS:
        raise ValueError(f"{who}: is longer than {MAX_WORD_CHARS} characters")
    if any(character < " " or character == "\x7f" for character in value):
        raise ValueError(f"{who} {value!r:.80}: holds a control character")


def _check_table(table: object, who: str, known: re.Pattern[str], what: str) -> Mapping[str, str]:
    if not isinstance(table, dict):
        raise ValueError(f"{who} {table!r:.80}: expected a table")
    for name, value in table.items():
        _match(known, name, f"{who}: name", what)
        text(value, f"{who}.{name}")
    return table


def _match(known: re.Pattern[str], value: object, who: str, what: str) -> None:
    if not isinstance(value, str) or len(value) > MAX_WORD_CHARS or not known.fullmatch(value):
        raise ValueError(f"{who}: {value!r:.80} is not {what}")
