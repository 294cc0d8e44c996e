"""Commands of servers, locks and configurations that cannot be used, and what a machine may lack."""

from __future__ import annotations

from case import Case
from things import make_folder

CLOCK = "'uvx mcp-server-time==2026.10.19'"
UNSET = '{"mcpServers": {"notes": {"command": "npx", "args": ["-y", "x@1"], "env": {"TOKEN": "${GYMCP_TEST_UNSET}"}}}}'

CASES: tuple[Case, ...] = (
    Case("no lock in this folder", "servers list", ""),
    Case("a lock that is not there", "servers check --lock my.lock", ""),
    Case("a lock that is a folder", "servers list", "", given={"servers.lock": make_folder}),
    Case("a lock that is not TOML", "servers list", "", given={"servers.lock": "["}),
    Case("a lock that is no text", "servers sync", "", given={"servers.lock": b"\xff\xfe\x00"}),
    Case("a lock of a newer format", "servers lock", "", given={"servers.lock": "format = 99\n"}),
    Case("a lock without a format", "servers check", "", given={"servers.lock": "x = 1\n"}),
    Case("a lock whose servers are no tables", "servers list", "", given={"servers.lock": "format = 1\nserver = 3\n"}),
    Case(
        "a lock with half a server", "servers list", "", given={"servers.lock": 'format = 1\n[[server]]\nname = "x"\n'}
    ),
    Case(
        "a server that the lock does not have", "servers check nope --lock LOCKED", "", given={"LOCKED": "format = 1\n"}
    ),
    Case("a broken lock that is added to", f"servers add {CLOCK}", "", given={"servers.lock": "["}),
    Case("a program that cannot be locked", "servers add 'podman run x'", ""),
    Case("a command with an open quote", 'servers add "uvx \'x==1"', ""),
    Case("an empty command", "servers add ''", ""),
    Case("a name that is a path", "servers add 'npx -y x@1' --name a/b", ""),
    Case("a secret in the environment", "servers add 'npx -y x@1' --env TOKEN=sk-table-0123456789abcdef", ""),
    Case("an environment variable without =", "servers add 'npx -y x@1' --env TOKEN", ""),
    Case("a header without =", "servers add https://mcp.example.invalid/mcp --header Authorization", ""),
    Case(
        "a secret in a header",
        "servers add https://mcp.example.invalid/mcp --header Authorization=Bearer-sk-table-0123456789abcdef",
        "",
    ),
    Case("a server where nobody listens", "servers add http://127.0.0.1:9/mcp", ""),
    Case("a server that is no MCP server", "servers add {model}", "", model="answers HTML"),
    Case("a port that is no number", "servers add 'uvx x==1' --http eighty", ""),
    Case("an address without a host", "servers add https://", ""),
    Case("a command and a configuration", "servers add 'npx -y x@1' --config c.json", ""),
    Case("a configuration that is not there", "servers add --config c.json", ""),
    Case("a configuration that is not JSON", "servers add --config c.json", "", given={"c.json": "{"}),
    Case("a configuration of 40,000 brackets", "servers add --config c.json", "", given={"c.json": "[" * 40_000}),
    Case("a configuration without servers", "servers add --config c.json", "", given={"c.json": "{}"}),
    Case(
        "a configuration with a number as command",
        "servers add --config c.json",
        "",
        given={"c.json": '{"mcpServers": {"x": {"command": 3}}}'},
    ),
    Case(
        "a server that the configuration does not have",
        "servers add --config c.json --only y",
        "",
        given={"c.json": '{"mcpServers": {"x": {"command": "npx", "args": ["-y", "x@1"]}}}'},
    ),
    Case(
        "a configuration with an unset secret",
        "servers add --config c.json",
        "",
        given={"c.json": UNSET},
    ),
    Case("an image outside Docker", "servers add --image x:1 --sandbox bwrap", ""),
    Case("an image without an engine", "servers add --image x:1", "", env={"DOCKER_HOST": "tcp://127.0.0.1:9"}),
    Case("an engine at no address", "servers add --image x:1", "", env={"DOCKER_HOST": "nonsense"}),
    Case("an environment's name with a space", f"new 'my env' --server {CLOCK}", ""),
    Case("an environment's file that is there already", f"new clock --server {CLOCK}", "", given={"clock.py": "mine"}),
    Case("a new environment without a server", "new clock", ""),
    Case("a new environment with a server and an image", f"new clock --server {CLOCK} --image x:1", ""),
    Case("a new environment in a folder that is not there", f"new clock --server {CLOCK} --dir nope", ""),
    Case("a new environment in a file", f"new clock --server {CLOCK} --dir notes.txt", "", given={"notes.txt": "x"}),
    Case("a new environment with an old option", f"new clock --server {CLOCK} --name time", ""),
    Case("a new environment beside a broken lock", f"new clock --server {CLOCK}", "", given={"servers.lock": "["}),
    Case("check of an environment that is not there", "check nope", ""),
    Case("clean with a lock that is not there", "clean --dry-run --lock nowhere.lock", ""),
    Case(
        "clean with a lock that is broken",
        "clean --dry-run --servers --lock servers.lock",
        "",
        given={"servers.lock": "["},
    ),
    Case("an image of a Dockerfile that is not there", "sandbox build nowhere/Dockerfile", ""),
    Case("an image of a folder", "sandbox build mine", "", given={"mine": make_folder}),
    Case(
        "an image without an engine",
        "sandbox build Dockerfile",
        "",
        given={"Dockerfile": "FROM scratch\n"},
        env={"DOCKER_HOST": "tcp://127.0.0.1:9"},
    ),
    Case("a demo of fewer than no tasks", "demo --limit -1", ""),
)
