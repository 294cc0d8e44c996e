"""Resolve the packages that a source of the user's own needs, and make its lock entry."""

from __future__ import annotations

from dataclasses import replace

from gymcp.mcp_servers.packages import node, python
from gymcp.mcp_servers.packages.install_request import InstallRequest, Program
from gymcp.mcp_servers.packages.lockfile import LockedPackage, LockedServer
from gymcp.mcp_servers.packages.own_source.metadata import check_requirements, read_json, read_text
from gymcp.mcp_servers.packages.own_source.source import OwnSource, check_dev, lock_source, read_source
from gymcp.mcp_servers.packages.own_source.typescript import find_compiler
from gymcp.mcp_servers.packages.pythons.choice import choose_version
from gymcp.types import Json

VERSION_CHARS = 12
"""Hex digits of the source's hash that stand as the version of a source."""
_KEPT = ("name", "version", "dependencies", "optionalDependencies", "overrides")
"""Keys of a package.json that the closure depends on."""


def resolve_own(request: InstallRequest) -> LockedServer:
    """Lock entry of an own source, without tools. Raises ConfigError if a package it needs cannot be obtained."""
    program = request.own
    assert program is not None
    source = read_source(request)
    locked = lock_source(source, request)
    check_dev(request)
    if request.runtime == "python":
        version = choose_version(f"server '{request.name}': source '{program.path}'", source.python, request.python)
        request = replace(request, python=version)
    request, packages, sdk_major, specifier = _resolve(request, program, source)
    version = locked.sha256[:VERSION_CHARS]
    return LockedServer(
        name=request.name,
        runtime=request.runtime,
        package=request.package,
        version=version,
        command=request.command(version),
        env=request.env,
        sdk_major=sdk_major,
        python=specifier,
        python_version=request.python,
        constraints=request.constraints,
        until=request.until,
        source=locked,
        packages=packages,
        base=request.base,
    )


def _resolve(
    request: InstallRequest, program: Program, source: OwnSource
) -> tuple[InstallRequest, tuple[LockedPackage, ...], int | None, str]:
    """(request with its interpreter, packages, major version of the MCP library, Python versions that they are for)."""
    who = f"server '{request.name}': resolve"
    if request.runtime == "node":
        packages, sdk_major = _resolve_node(who, request, program)
        return request, packages, sdk_major, ""
    added = check_requirements(f"{who}: --with", request.added)
    request, closure = python.resolve_fitting(who, [*source.requires, *added], request)
    return request, closure.packages, python.find_sdk_major(closure), closure.python


def _resolve_node(who: str, request: InstallRequest, program: Program) -> tuple[tuple[LockedPackage, ...], int | None]:
    folder = request.base / program.folder
    if not (folder / "package.json").is_file():
        return (), None
    content = read_json(who, folder / "package.json")
    root: dict[str, Json] = {key: content[key] for key in _KEPT if key in content}
    if compiler := find_compiler(who, program.name, content):
        root["dependencies"] = {**dict(root.get("dependencies", {})), **compiler}
    lock = folder / "package-lock.json"
    text = read_text(who, lock) if lock.is_file() else None
    return node.resolve_closure(who, {**root, "private": True}, request.build, package_lock=text)
