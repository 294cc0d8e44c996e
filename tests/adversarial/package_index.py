"""Package indexes of the test's own on loopback, with packages that would run code when they are installed."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import io
import json
import threading
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from archives import make_tar

_INSIDE = Path(__file__).with_name("inside.py").read_text(encoding="utf-8")


class _Handler(http.server.BaseHTTPRequestHandler):
    pages: Mapping[str, tuple[str, bytes]] = {}

    def do_GET(self) -> None:
        kind, content = self.pages.get(self.path, ("", b""))
        self.send_response(200 if kind else 404)
        self.send_header("Content-Type", kind or "text/plain")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def index(marker: Path) -> Iterator[str]:
    """The address; every package would write the marker."""

    class Handler(_Handler):
        pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        Handler.pages = {**_npm(address, marker), **_python(marker)}
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield address
        finally:
            server.shutdown()
            thread.join()


def _npm(address: str, marker: Path) -> dict[str, tuple[str, bytes]]:
    """`open-script` says that it has a script, `hidden-script` has one that only its archive knows of."""
    pages = {}
    for name, says_so in (("open-script", True), ("hidden-script", False)):
        about = {"name": name, "version": "1.0.0", "bin": {name: "main.js"}}
        scripts = {"scripts": {"postinstall": f"touch {marker}", "preinstall": f"touch {marker}"}}
        archive = make_tar(
            {"package/package.json": json.dumps(about | scripts), "package/main.js": "#!/usr/bin/env node\n"}
        )
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
        dist = {"tarball": f"{address}/{name}.tgz", "integrity": integrity, "shasum": hashlib.sha1(archive).hexdigest()}
        told = {**about, "dist": dist, **({**scripts, "hasInstallScript": True} if says_so else {})}
        page = {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": told}}
        pages[f"/{name}"] = ("application/json", json.dumps(page).encode())
        pages[f"/{name}.tgz"] = ("application/octet-stream", archive)
    return pages


def _python(marker: Path) -> dict[str, tuple[str, bytes]]:
    """`source-only` must be built; `path-file` has a line of code that every start of its Python would run."""
    touch = f"import pathlib; pathlib.Path({str(marker)!r}).touch()"
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    project += '[project]\nname = "source-only"\nversion = "1.0"\n'
    about = "Metadata-Version: 2.1\nName: source-only\nVersion: 1.0\n"
    source = make_tar(
        {
            f"source_only-1.0/{name}": text
            for name, text in {
                "pyproject.toml": project,
                "backend.py": touch,
                "setup.py": touch,
                "PKG-INFO": about,
            }.items()
        }
    )
    files = {
        "source-only": ("source_only-1.0.tar.gz", source),
        "path-file": ("path_file-1.0-py3-none-any.whl", _wheel("path_file", {"path_file.pth": touch + "\n"})),
        "hostile-import": (
            "hostile_import-1.0-py3-none-any.whl",
            _wheel("hostile_import", {"hostile_import.py": HOSTILE_IMPORT, "hostile_inside.py": _INSIDE}),
        ),
        "climber": ("climber-1.0-py3-none-any.whl", _wheel("climber", {f"../../../../../../..{marker}": "x"})),
    }
    pages = {}
    for name, (filename, content) in files.items():
        link = f'<a href="/files/{filename}#sha256={hashlib.sha256(content).hexdigest()}">{filename}</a>'
        pages[f"/simple/{name}/"] = ("text/html", f"<!DOCTYPE html><html><body>{link}</body></html>".encode())
        pages[f"/files/{filename}"] = ("application/octet-stream", content)
    return pages


HOSTILE_IMPORT = """
import json, sys
from hostile_inside import OPENED_AT_IMPORT

def main():
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        result = {"tools": [{"name": "opened" if OPENED_AT_IMPORT else "held", "inputSchema": {"type": "object"}}]}
        if asked["method"] == "initialize":
            about = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}}
            result = {**about, "serverInfo": {"name": "hostile", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
"""A server that lists, as the name of its tool, what its import could do."""


def _wheel(name: str, files: Mapping[str, str]) -> bytes:
    info = f"{name}-1.0.dist-info"
    public = name.replace("_", "-")
    content = {
        f"{name}.py": "def main(): pass\n",
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {public}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\nserve = {name}:main\n",
    }
    content[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*content, f"{info}/RECORD"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return buffer.getvalue()
