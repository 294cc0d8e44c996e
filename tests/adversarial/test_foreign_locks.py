"""Locks that somebody else has written: no word of one becomes a line or an argument of an installer."""

from __future__ import annotations

from pathlib import Path

import pytest

from gymcp.errors import ConfigError
from gymcp.mcp_servers.packages.lockfile import LockedPackage, read_lock
from gymcp.mcp_servers.packages.wheels import make_venv

HASH = "sha256:" + "0" * 64
PYTHON = """format = 1
[[server]]
name = "calc"
runtime = "python"
package = "{package}"
version = "{version}"
command = ["uvx", "mcp-calc==1.2.0"]
python = "{python}"
tools_sha256 = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
[server.trees]
linux = "{tree}"
[server.packages."{name}==1.2.0"]
marker = "{marker}"
files = ["{file} {hash}"]
"""
NODE = """format = 1
[[server]]
name = "notes"
runtime = "node"
package = "{package}"
version = "{version}"
command = ["npx", "-y", "notes@1.2.0"]
tools_sha256 = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
[server.packages."{name}==1.2.0"]
files = ["integrity {integrity}"]
needs = ["{needs}"]
"""
IMAGE = """format = 1
[[server]]
name = "shout"
runtime = "image"
package = "{package}"
version = "{version}"
command = ["docker", "run", "-i", "--rm", "shout:1"]
tools_sha256 = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
[server.packages."{name}==1"]
files = ["id {id}"]
"""
REMOTE = """format = 1
[[server]]
name = "far"
runtime = "remote"
package = "example.com"
version = ""
command = ["{url}"]
tools_sha256 = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
packages = {{}}
[server.headers]
"{header}" = "{value}"
"""
FAIR: dict[str, dict[str, str]] = {
    PYTHON: {
        "package": "mcp-calc", "version": "1.2.0", "python": ">=3.11", "name": "mcp-calc", "marker": "", "hash": HASH,
        "file": "mcp_calc-1.2.0-py3-none-any.whl", "tree": "0" * 64,
    },
    NODE: {
        "package": "@scope/notes", "version": "1.2.0", "name": "node_modules/@scope/notes", "needs": "a",
        "integrity": "sha512-YQ==",
    },
    IMAGE: {"package": "docker.io/library/shout", "version": "1", "name": "docker.io/library/shout", "id": HASH},
    REMOTE: {"url": "https://example.com/mcp", "header": "X-Key", "value": "${KEY}"},
}  # fmt: skip
NEW_LINE = r"\n--index-url http://127.0.0.1:9/\n"
ATTEMPTS = (
    (PYTHON, "name", "idna" + NEW_LINE),
    (PYTHON, "name", "idna @ http://127.0.0.1:9/idna.whl #"),
    (PYTHON, "name", "-r /etc/hostname"),
    (PYTHON, "name", "--index-url=http://127.0.0.1:9/"),
    (PYTHON, "name", "idna[extra]"),
    (PYTHON, "hash", HASH + NEW_LINE),
    (PYTHON, "hash", HASH + " --index-url http://127.0.0.1:9/"),
    (PYTHON, "hash", "md5:" + "0" * 32),
    (PYTHON, "hash", HASH.upper()),
    (PYTHON, "file", "../../x-1.2.0-py3-none-any.whl"),
    (PYTHON, "file", "/etc/passwd"),
    (PYTHON, "marker", "python_version > '3'" + NEW_LINE),
    (PYTHON, "marker", "python_version > '3' --hash=x"),
    (PYTHON, "marker", "python_version > '3' # comment"),
    (PYTHON, "version", "1.2.0" + NEW_LINE),
    (PYTHON, "version", " 1.2.0"),
    (PYTHON, "version", "1.2.*"),
    (PYTHON, "package", "mcp-calc" + NEW_LINE),
    (PYTHON, "package", "../mcp"),
    (PYTHON, "python", ">=3.11" + NEW_LINE),
    (PYTHON, "tree", "0" * 63 + "/"),
    (NODE, "version", "git+https://127.0.0.1:9/x.git"),
    (NODE, "version", "file:/etc"),
    (NODE, "version", "npm:other@1.0.0"),
    (NODE, "package", "--registry=http://127.0.0.1:9/"),
    (NODE, "package", "../../x"),
    (NODE, "name", "node_modules/../../x"),
    (NODE, "name", "node_modules/a/../../../x"),
    (NODE, "name", "/etc/x"),
    (NODE, "needs", "git+ssh://x"),
    (NODE, "integrity", "sha512-"),
    (NODE, "integrity", "none"),
    (IMAGE, "id", "latest"),
    (IMAGE, "id", "sha256:" + "0" * 63),
    (IMAGE, "package", "shout?fromSrc=http://127.0.0.1:9"),
    (IMAGE, "version", "1&platform=x"),
    (IMAGE, "name", "shout" + NEW_LINE),
    (REMOTE, "url", "file:///etc/passwd"),
    (REMOTE, "url", "https://key@example.com/mcp"),
    (REMOTE, "url", "https://example.com/mcp" + NEW_LINE),
    (REMOTE, "header", "X-Key: a\\r\\nHost"),
    (REMOTE, "value", "a\\r\\nHost: x"),
)


@pytest.mark.parametrize("form", FAIR, ids=("python", "node", "image", "remote"))
def test_a_fair_lock_is_read(form: str, tmp_path: Path) -> None:
    """The control: the same lock without the attempt."""
    (tmp_path / "servers.lock").write_text(form.format(**FAIR[form]))
    assert len(read_lock(tmp_path / "servers.lock", consistent=False)) == 1


@pytest.mark.parametrize(("form", "key", "value"), ATTEMPTS)
def test_an_unexpected_value_in_a_lock_is_one_line(form: str, key: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "servers.lock").write_text(form.format(**{**FAIR[form], key: value}))
    with pytest.raises(ConfigError) as caught:
        read_lock(tmp_path / "servers.lock", consistent=False)
    assert str(caught.value).startswith(f"lock '{tmp_path / 'servers.lock'}': server 1: ValueError: ")
    assert "\n" not in str(caught.value)


WHEEL = "idna-1-py3-none-any.whl"
HOSTILE = (
    LockedPackage(name="idna\n--index-url http://127.0.0.1:9/\nidna", version="1", files={WHEEL: HASH}),
    LockedPackage(name="idna", version="1", files={WHEEL: f"{HASH}\n-r /etc/hostname"}),
    LockedPackage(name="idna", version="1", files={WHEEL: HASH}, marker="python_version > '3'\n-e /tmp"),
)


@pytest.mark.parametrize("package", HOSTILE, ids=("name", "hash", "marker"))
def test_uv_is_given_no_line_that_is_not_a_package(package: LockedPackage, tmp_path: Path) -> None:
    """Whatever way a package came, other than through a lock."""
    with pytest.raises(ConfigError, match=r"is not the name|is not sha256|control character"):
        make_venv("server 'x'", tmp_path / "venv", [package])
    assert "127.0.0.1" not in "".join(file.read_text() for file in tmp_path.glob("requirements.txt"))
