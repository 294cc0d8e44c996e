"""Commands, URLs and configuration files become install requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gymcp.errors import ConfigError
from gymcp.mcp_servers.packages.commands import parse_command, read_config
from gymcp.mcp_servers.packages.install_request import InstallRequest
from gymcp.mcp_servers.variables import substitute_variables


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "npx -y @modelcontextprotocol/server-memory@2026.8.31",
            InstallRequest(
                name="memory", runtime="node", package="@modelcontextprotocol/server-memory", version="2026.8.31"
            ),
        ),
        (
            "npx -y -p some-tools@1.0.0 serve --root '/work space'",
            InstallRequest(
                name="some-tools",
                runtime="node",
                package="some-tools",
                version="1.0.0",
                program="serve",
                args=("--root", "/work space"),
            ),
        ),
        ("npx weather-mcp", InstallRequest(name="weather", runtime="node", package="weather-mcp", version=None)),
        ("npx weather@latest", InstallRequest(name="weather", runtime="node", package="weather", version=None)),
        (
            "uvx mcp-server-time==2026.10.19 --local-timezone UTC",
            InstallRequest(
                name="time",
                runtime="python",
                package="mcp-server-time",
                version="2026.10.19",
                args=("--local-timezone", "UTC"),
            ),
        ),
        ("uvx calc@1.2.0", InstallRequest(name="calc", runtime="python", package="calc", version="1.2.0")),
        (
            "uvx --with 'mcp<2' calc==1.2.0",
            InstallRequest(name="calc", runtime="python", package="calc", version="1.2.0", added=("mcp<2",)),
        ),
        (
            "uvx --with 'mcp>=1,<2' --with=rich calc==1.2.0",
            InstallRequest(name="calc", runtime="python", package="calc", version="1.2.0", added=("mcp<2,>=1", "rich")),
        ),
        (
            "uvx --from 'calc[all]==1.2.0' calc-serve",
            InstallRequest(
                name="calc", runtime="python", package="calc", version="1.2.0", extras=("all",), program="calc-serve"
            ),
        ),
    ],
)
def test_a_command_becomes_an_install_request(line: str, wanted: InstallRequest) -> None:
    assert parse_command(line) == wanted
    if wanted.version is not None:
        assert parse_command(wanted.command(wanted.version)) == wanted


def test_the_python_of_a_package_is_the_one_that_uvx_is_told() -> None:
    assert parse_command("uvx --python 3.12 calc==1.2.0").python == "3.12"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://mcp.example.com/mcp", "example"),
        ("https://www.api.some-where.example.org:8443/v1", "some-where-example"),
        ("https://mcp.so/x", "mcp-so"),
        ("http://localhost:3001/mcp", "localhost"),
        ("http://127.0.0.1:3001/mcp", "host-127-0-0-1"),
        ("http://[::1]:3001/mcp", "host-1"),
        (f"https://{'a' * 63}.{'b' * 20}.example.org", "a" * 63),
    ],
)
def test_a_remote_server_gets_a_valid_name(url: str, name: str) -> None:
    assert parse_command(url).name == name
    assert parse_command(url, name="mine").name == "mine"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "an empty command"),
        ("podman run -i some/server", "command 'podman' is not one that can be locked; have 'npx -y"),
        ("npx -y", "npx of no package"),
        ("npx --node-options=x pkg", "npx option '--node-options=x' is not understood"),
        ("npx -y git+ssh://git@example.invalid/x", "is not PACKAGE@VERSION of a package registry; it is a repository"),
        ("npx -y ../folder", "it is a folder or a file of your own: lock it with --path ../folder"),
        (
            "uvx --from git+https://example.invalid/kv kv",
            "it is a repository or a file elsewhere: fetch it, and lock its",
        ),
        ("uvx --from ./pkg kv", "'./pkg' is not PACKAGE==VERSION: it is a folder or a file of your own: lock it with"),
        ("uvx --refresh y", "uvx option '--refresh' is not understood; have --from, --with, --python"),
        ("uvx --with 'x @ https://example.invalid/x.whl' y", "--with: 'x @ https://example.invalid/x.whl' is not from"),
        ("uvx calc>=1", "is not PACKAGE==VERSION"),
        ("uvx 'calc @ https://example.invalid/calc.whl'", "is not PACKAGE==VERSION"),
        ("uvx 'calc", "No closing quotation"),
    ],
)
def test_an_unsupported_command_names_the_supported_ones(line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_command(line)
    assert said in str(caught.value)


def test_a_secret_never_enters_a_lock() -> None:
    with pytest.raises(ConfigError, match=r"env 'API_KEY' looks like a secret.*write '\$\{API_KEY\}'") as caught:
        parse_command("uvx calc==1", name="calc", env={"API_KEY": "sk-12345"})
    assert "sk-12345" not in str(caught.value)
    assert parse_command("uvx calc==1", env={"API_KEY": "${API_KEY}"}).env == {"API_KEY": "${API_KEY}"}


def config(folder: Path, servers: object) -> Path:
    path = folder / "claude_desktop_config.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def test_a_configuration_file_is_read_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTES_TOKEN", "t0p")
    path = config(
        tmp_path,
        {
            "clock": {"command": "uvx", "args": ["mcp-server-time==2026.10.19"]},
            "my notes": {"command": "npx", "args": ["-y", "x@1"]},
            "notes": {"command": "/usr/bin/npx", "args": ["-y", "x@1"], "env": {"TOKEN": "${NOTES_TOKEN}"}},
        },
    )
    clock, notes = read_config(path, only=["clock", "notes"])
    assert (clock.name, clock.package) == ("clock", "mcp-server-time")
    assert (notes.name, dict(notes.env)) == ("notes", {"TOKEN": "${NOTES_TOKEN}"})
    with pytest.raises(ConfigError, match="server name 'my notes'"):
        read_config(path)


def test_one_entry_of_a_file_is_read_as_claude_and_vs_code_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTES_TOKEN", "t0p")
    monkeypatch.delenv("MORE", raising=False)
    notes = {"type": None, "command": "npx", "args": ["-y", "x@1"], "env": {"TOKEN": "${env:NOTES_TOKEN}"}}
    others = {"more": {"command": "uvx", "args": ["y==1"], "env": {"C": "${MORE}"}}, "bad": {}}
    for name, key in (("claude_desktop_config.json", "mcpServers"), ("mcp.json", "servers"), ("a:b.json", "servers")):
        path = tmp_path / name
        path.write_text(json.dumps({key: {"notes": notes, **others}}))
        (found,) = read_config(f"{path}:notes")
        assert (found.name, found.package, dict(found.env)) == ("notes", "x", {"TOKEN": "${NOTES_TOKEN}"})
        with pytest.raises(ConfigError, match="no server 'nope'; have notes, more, bad"):
            read_config(f"{path}:nope")
        with pytest.raises(ConfigError, match="names no server after the colon; have notes, more, bad"):
            read_config(f"{path}:")


def test_one_error_names_every_unset_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTES_TOKEN", raising=False)
    entry = {"command": "npx", "args": ["x@1", "${NOTES_DIR}"], "env": {"TOKEN": "${NOTES_TOKEN}", "A": "${B:-b}"}}
    path = config(tmp_path, {"notes": entry, "more": {"command": "uvx", "args": ["y==1"], "env": {"C": "${MORE}"}}})
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert "not set: server 'notes': NOTES_DIR, NOTES_TOKEN; server 'more': MORE" in str(caught.value)


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        ({}, "has no servers"),
        ({"a": {}}, "server 'a': has no command and no url"),
        ({"a": {"command": "npx", "args": "x"}}, "server 'a': args must be a list of texts"),
        ({"a": {"command": "npx", "args": ["x"], "env": {"A": 1}}}, "server 'a': env must map names to texts"),
        ({"a": {"command": "node", "args": ["server.js"]}}, "server.js' is not there"),
    ],
)
def test_a_malformed_configuration_names_the_server(servers: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(config(tmp_path, servers))
    assert said in str(caught.value)


def test_variables_are_filled_in() -> None:
    assert substitute_variables("a ${B} ${C:-c} $D", {"B": "b"}) == "a b c $D"
    with pytest.raises(KeyError):
        substitute_variables("${E}", {})
