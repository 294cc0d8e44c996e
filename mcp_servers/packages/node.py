"""Servers from npm's registry: resolved and installed by npm, with the integrity of every package, without scripts.

Afterwards, the install scripts of those packages that the user names are run in a sandbox.
"""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.version import Version

from gymcp.errors import ConfigError, IntegrityError, SandboxUnavailable, UsageError
from gymcp.mcp_servers.packages.builds import build_sandbox, refuse_traps, run_build
from gymcp.mcp_servers.packages.install_folder import INSIDE, machine, run_tool, write_manifest
from gymcp.mcp_servers.packages.install_request import InstallRequest
from gymcp.mcp_servers.packages.lockfile import LockedPackage, LockedServer
from gymcp.mcp_servers.sandbox import Mount, Sandbox
from gymcp.scratch import scratch_folder
from gymcp.types import Json

NODE = Path("/usr/bin/node")
"""Node interpreter: the only one that is visible in the sandbox."""
_HEADERS = Path("/usr/include/node")
_SDK = "node_modules/@modelcontextprotocol/sdk"
_INSTALL_NODE = "install it with: apt-get install nodejs npm (Debian, Ubuntu), dnf install nodejs (Fedora)"
_KINDS = ("dependencies", "optionalDependencies", "peerDependencies")
_QUIET = ("--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev", "--loglevel=error")


def resolve(request: InstallRequest) -> LockedServer:
    """Lock entry with the closure and the integrity of every package.

    Raises ConfigError if there is no closure, or if it has a package that must be built and is not allowed to be.
    """
    who = f"server '{request.name}': resolve"
    wanted = _root({request.package: request.version or "latest"})
    packages, sdk_major = resolve_closure(who, wanted, request.build)
    version = next(p.version for p in packages if p.name == f"node_modules/{request.package}")
    return LockedServer(
        name=request.name,
        runtime="node",
        package=request.package,
        version=version,
        command=request.command(version),
        env=request.env,
        sdk_major=sdk_major,
        packages=packages,
    )


def resolve_closure(
    who: str, root: Mapping[str, Json], build: Sequence[str], *, package_lock: str | None = None
) -> tuple[tuple[LockedPackage, ...], int | None]:
    """(packages that the package.json `root` needs, major version of the MCP library among them).

    `package_lock`: text of a package-lock.json, whose versions are kept if they fit. Raises the errors of `resolve`.
    """
    with tempfile.TemporaryDirectory(prefix="resolve-", dir=scratch_folder()) as path:
        folder = Path(path)
        _write_json(folder / "package.json", dict(root))
        if package_lock is not None:
            (folder / "package-lock.json").write_text(package_lock, encoding="utf-8")
        try:
            run_tool([_npm(who), "install", "--package-lock-only", *_QUIET], who, cwd=folder)
        except SandboxUnavailable:
            raise
        except UsageError as error:
            raise ConfigError(str(error)) from error
        rows = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    used = {path: row for path, row in sorted(rows.items()) if path and _for_linux(row)}
    names = {path.rpartition("node_modules/")[2] for path in used}
    packages = tuple(_to_package(who, path, row, names, build) for path, row in used.items())
    sdk = rows.get(_SDK)
    return packages, Version(sdk["version"]).major if sdk else None


def platform_name(server: LockedServer) -> str:
    """Name of the platform, on which the installed files depend beside the lock."""
    return f"{machine()}-node"


def install(server: LockedServer, folder: Path) -> None:
    """Install into an empty folder. Raises UsageError; IntegrityError if a package does not have its integrity."""
    who = f"server '{server.name}': install"
    top = (p for p in server.packages if p.name.count("node_modules/") == 1)
    versions = {package.name.removeprefix("node_modules/"): package.version for package in top}
    root = _root({server.package: server.version} if server.source is None else versions)
    rows: dict[str, Json] = {"": root}
    for package in server.packages:
        needs = dict.fromkeys(package.needs, "*")
        pinned = {"version": package.version, "integrity": package.files["integrity"]}
        rows[package.name] = {**pinned, "dependencies": needs}
    _write_json(folder / "package.json", root)
    _write_json(folder / "package-lock.json", {**root, "lockfileVersion": 3, "requires": True, "packages": rows})
    try:
        run_tool([_npm(who), "ci", "--legacy-peer-deps", *_QUIET], who, cwd=folder)
    except UsageError as error:
        if "EINTEGRITY" in str(error):
            raise IntegrityError(f"{error}; the registry has other files than the lock") from error
        raise
    if names := sorted({p.name.rpartition("node_modules/")[2] for p in server.packages if p.build is not None}):
        run_scripts(who, folder, names, sandbox=build_sandbox(who))
    write_manifest(folder)


def run_scripts(who: str, folder: Path, names: Sequence[str], *, sandbox: Sandbox) -> None:
    """Run the install scripts of packages in the folder, in a sandbox without network.

    Raises UsageError if a script fails, IntegrityError if it leaves files that must not be in the folder.
    """
    npm = Path(_npm(who)).resolve()
    root = npm.parents[1]
    env = {"npm_config_cache": "/tmp/npm", "npm_config_update_notifier": "false"}
    if _HEADERS.is_dir():
        env["npm_config_nodedir"] = str(_HEADERS.parents[1])  # else node-gyp would fetch them
    argv = [str(NODE), str(npm), "rebuild", "--offline", "--foreground-scripts", "--no-audit", "--no-fund", *names]
    # The lock names no programs, and npm believes it; scripts call each other's, so they are linked first.
    (folder / "node_modules" / ".package-lock.json").unlink(missing_ok=True)
    run_tool([str(npm), "rebuild", "--offline", *_QUIET], who, cwd=folder)
    mounts = [Mount(source=root, target=PurePosixPath(root))]
    run_build(f"{who}: scripts of {', '.join(names)}", argv, folder, sandbox=sandbox, mounts=mounts, env=env)
    refuse_traps(f"{who}: scripts of {', '.join(names)}", folder)


def read_version(server: LockedServer, folder: Path) -> str | None:
    """Version of the server's own package; None if it is not installed."""
    try:
        return str(_package_json(server, folder)["version"])
    except (OSError, ValueError, KeyError):
        return None


def argv_inside(server: LockedServer, folder: Path, program: str | None) -> tuple[str, ...]:
    """Command that starts the server in the sandbox. Raises ConfigError if the package has no such program."""
    who = f"server '{server.name}': install: package '{server.package}'"
    entry = _package_json(server, folder).get("bin", {})
    own = server.package.rsplit("/", 1)[-1]
    programs = {own: entry} if isinstance(entry, str) else dict(entry)
    name = program or (own if own in programs else next(iter(programs), own) if len(programs) == 1 else own)
    if name not in programs:
        raise ConfigError(f"{who} has no program '{name}'; have {', '.join(programs) or 'none'}")
    file = PurePosixPath("node_modules", server.package, programs[name])
    if not NODE.exists():
        raise SandboxUnavailable(f"{who}: needs {NODE}, which alone is seen in a sandbox; {_INSTALL_NODE}")
    if ".." in file.parts or not (folder / file).is_file():
        raise ConfigError(f"{who}: program '{name}' is {file}, which is not there")
    return (str(NODE), str(INSIDE / file))


def _to_package(who: str, path: str, row: Mapping[str, Any], names: Set[str], allowed: Sequence[str]) -> LockedPackage:
    name = path.rpartition("node_modules/")[2]
    if "integrity" not in row or row.get("link"):
        raise ConfigError(f"{who}: package '{name}' does not come from a registry, so it has no integrity to lock")
    built = bool(row.get("hasInstallScript"))
    if built and name not in allowed:
        raise ConfigError(
            f"{who}: package '{name}' {row['version']} runs scripts when it is installed; nothing is built unasked: to "
            f"run them in a sandbox add --build {name}"
        )
    required = {name for kind in _KINDS for name in row.get(kind, {})}
    return LockedPackage(
        name=path,
        version=row["version"],
        files={"integrity": row["integrity"]},
        needs=tuple(sorted(required & names)),
        build=() if built else None,
    )


def _for_linux(row: Mapping[str, Any]) -> bool:
    """False for development packages and for optional packages of other systems."""
    systems = row.get("os", ["linux"])
    return not row.get("dev") and ("linux" in systems or any(name.startswith("!") for name in systems))


def _root(dependencies: Mapping[str, str]) -> dict[str, Json]:
    return {"name": "gymcp-server", "version": "1.0.0", "private": True, "dependencies": dict(dependencies)}


def _package_json(server: LockedServer, folder: Path) -> dict[str, Any]:
    content = json.loads((folder / "node_modules" / server.package / "package.json").read_text(encoding="utf-8"))
    return dict(content)


@functools.cache
def _which_npm() -> str | None:
    return shutil.which("npm")


def _npm(who: str) -> str:
    if (path := _which_npm()) is None:
        raise SandboxUnavailable(f"{who}: npm is not in PATH; {_INSTALL_NODE}")
    return path


def _write_json(path: Path, value: Json) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
