"""Commands of servers, locks and configurations that cannot be used, and what a machine may lack."""

from __future__ import annotations

from case import Case
from things import make_folder

CLOCK = "'uvx mcp-server-time==2026.10.19'"
UNSET = '{"mcpServers": {"notes": {"command": "npx", "args": ["-y", "x@1"], "env": {"TOKEN": "${GYMCP_TEST_UNSET}"}}}}'

CASES: tuple[Case, ...] = (
    Case(
        "no lock in this folder",
        "servers list",
        "lock 'servers.lock': not found in this folder; make it with: gymcp servers add 'uvx PACKAGE==VERSION'; or",
    ),
    Case(
        "a lock that is not there",
        "servers check --lock my.lock",
        "lock 'my.lock': not found; make it with: gymcp servers add 'uvx PACKAGE==VERSION' --lock my.lock",
    ),
    Case(
        "a lock that is a folder",
        "servers list",
        "lock 'servers.lock': cannot be read: Is a directory",
        given={"servers.lock": make_folder},
    ),
    Case(
        "a lock that is not TOML",
        "servers list",
        "lock 'servers.lock': not TOML:",
        given={"servers.lock": "["},
    ),
    Case(
        "a lock that is no text",
        "servers sync",
        "lock 'servers.lock': is not UTF-8 text:",
        given={"servers.lock": b"\xff\xfe\x00"},
    ),
    Case(
        "a lock of a newer format",
        "servers lock",
        "lock 'servers.lock': format 99; this gymcp reads format 1",
        given={"servers.lock": "format = 99\n"},
    ),
    Case(
        "a lock without a format",
        "servers check",
        "lock 'servers.lock': does not say its format; this gymcp reads format 1",
        given={"servers.lock": "x = 1\n"},
    ),
    Case(
        "a lock whose servers are no tables",
        "servers list",
        "lock 'servers.lock': its servers must be tables, [[server]]",
        given={"servers.lock": "format = 1\nserver = 3\n"},
    ),
    Case(
        "a lock with half a server",
        "servers list",
        "lock 'servers.lock': server 1: has no 'runtime'",
        given={"servers.lock": 'format = 1\n[[server]]\nname = "x"\n'},
    ),
    Case(
        "a server that the lock does not have",
        "servers check nope --lock LOCKED",
        "lock 'LOCKED': no server 'nope'; have none",
        given={"LOCKED": "format = 1\n"},
    ),
    Case(
        "a broken lock that is added to",
        f"servers add {CLOCK}",
        "lock 'servers.lock': not TOML:",
        given={"servers.lock": "["},
    ),
    Case(
        "a program that cannot be locked",
        "servers add 'podman run x'",
        "server: command 'podman' is not one that can be locked; have 'npx -y PACKAGE@VERSION', 'uvx",
    ),
    Case(
        "a command with an open quote", 'servers add "uvx \'x==1"', 'server command "uvx \'x==1": No closing quotation'
    ),
    Case(
        "an empty command",
        "servers add ''",
        "server: an empty command; have 'npx -y PACKAGE@VERSION', 'uvx",
    ),
    Case(
        "a name that is a path",
        "servers add 'npx -y x@1' --name a/b",
        "server name 'a/b': letters, digits, - and _ only, at most 64; give another with --name (of gymcp new:",
    ),
    Case(
        "a secret in the environment",
        "servers add 'npx -y x@1' --env TOKEN=sk-table-0123456789abcdef",
        "server: env 'TOKEN' looks like a secret, which must not be written into a lock; write '${TOKEN}' in its",
    ),
    Case(
        "an environment variable without =", "servers add 'npx -y x@1' --env TOKEN", "--env TOKEN: expected NAME=VALUE"
    ),
    Case(
        "a header without =",
        "servers add https://mcp.example.invalid/mcp --header Authorization",
        "--header Authorization: expected NAME=VALUE",
    ),
    Case(
        "a secret in a header",
        "servers add https://mcp.example.invalid/mcp --header Authorization=Bearer-sk-table-0123456789abcdef",
        "server: header 'Authorization' looks like a secret, which must not be written into a lock; write",
    ),
    Case(
        "a server where nobody listens",
        "servers add http://127.0.0.1:9/mcp",
        "server 'host-127-0-0-1': handshake: 127.0.0.1: ConnectError: All connection attempts failed",
        code=1,
    ),
    Case(
        "a server that is no MCP server",
        "servers add {model}",
        "server 'host-127-0-0-1': handshake: its answer is no message of MCP (without a content type):",
        model="answers HTML",
        code=1,
    ),
    Case(
        "a port that is no number",
        "servers add 'uvx x==1' --http eighty",
        "http port 'eighty': expected PORT or PORT/PATH, such as 3000/mcp",
    ),
    Case(
        "a Python that is no minor version",
        "servers add 'uvx x==1' --python 3.12.1",
        "server 'x': --python '3.12.1': expected a minor version of Python 3, such as 3.12",
    ),
    Case(
        "a Python for node", "servers add 'npx -y x@1' --python 3.12", "server 'x': --python is for servers in Python"
    ),
    Case(
        "a service without a check",
        "servers add 'uvx x==1' --service 'redis-server'",
        "server 'x': 1 --service and 0 --ready: each service needs a check that it is ready: --ready tcp:PORT,",
    ),
    Case(
        "a service with an unknown check",
        "servers add 'uvx x==1' --service redis-server --ready udp:1",
        "service 'redis-server': no ready check 'udp:1'; have tcp:PORT, file:PATH, command:LINE",
    ),
    Case(
        "a service beside a server elsewhere",
        "servers add https://mcp.example.invalid/mcp --service redis-server --ready tcp:1",
        "server 'example': --service is for servers that the lock starts here",
    ),
    Case(
        "an address without a host",
        "servers add https://",
        "server: 'https://' has no host; have 'npx -y PACKAGE@VERSION', 'uvx",
    ),
    Case(
        "a command and a configuration",
        "servers add 'npx -y x@1' --config c.json",
        "servers add: give either a command, --path FOLDER, --image IMAGE, or --config FILE",
    ),
    Case(
        "a configuration that is not there",
        "servers add --config c.json",
        "config 'c.json': cannot be read: No such file or directory",
    ),
    Case(
        "a configuration that is not JSON",
        "servers add --config c.json",
        "config 'c.json': is not JSON:",
        given={"c.json": "{"},
    ),
    Case(
        "a configuration of 40,000 brackets",
        "servers add --config c.json",
        "config 'c.json': is not JSON:",
        given={"c.json": "[" * 40_000},
    ),
    Case(
        "a configuration without servers",
        "servers add --config c.json",
        'config \'c.json\': has no servers; expected {"mcpServers": {NAME: {"command": ...}}}',
        given={"c.json": "{}"},
    ),
    Case(
        "a configuration with a number as command",
        "servers add --config c.json",
        "config 'c.json': server 'x': has no command and no url; have 'npx -y PACKAGE@VERSION', 'uvx",
        given={"c.json": '{"mcpServers": {"x": {"command": 3}}}'},
    ),
    Case(
        "one name for two servers of a configuration",
        "servers add --config c.json --name z",
        "servers add: --name z: 'c.json' has 2 servers: x, y; give FILE:NAME",
        given={"c.json": '{"servers": {"x": {"command": "npx", "args": ["x@1"]}, "y": {"url": "https://h.invalid"}}}'},
    ),
    Case(
        "a server that the configuration does not have",
        "servers add --config c.json --only y",
        "config 'c.json': no server 'y'; have x",
        given={"c.json": '{"mcpServers": {"x": {"command": "npx", "args": ["-y", "x@1"]}}}'},
    ),
    Case(
        "an entry that the configuration does not have",
        "servers add --config c.json:y",
        "config 'c.json': no server 'y'; have x",
        given={"c.json": '{"mcpServers": {"x": {"command": "npx", "args": ["-y", "x@1"]}}}'},
    ),
    Case(
        "an entry of a configuration that is not there",
        "servers add --config c.json:y",
        "config 'c.json': cannot be read: No such file or directory",
    ),
    Case(
        "an entry with a transport that is not spoken",
        "servers add --config c.json:x",
        "config 'c.json': server 'x': type 'ws' is not supported; have stdio, http, streamable-http, streamableHttp",
        given={"c.json": '{"mcpServers": {"x": {"type": "ws", "url": "ws://h.invalid/"}}}'},
    ),
    Case(
        "an entry that an editor would ask a secret for",
        "servers add --config c.json:x",
        "config 'c.json': server 'x': only an editor asks for ${input:...}: write ${NAME} and set that variable",
        given={"c.json": '{"servers": {"x": {"command": "npx", "args": ["x@1"], "env": {"T": "${input:t}"}}}}'},
    ),
    Case(
        "a configuration with an unset secret",
        "servers add --config c.json",
        "config 'c.json': environment variables that it refers to are not set: server 'notes': GYMCP_TEST_UNSET",
        given={"c.json": UNSET},
    ),
    Case(
        "an image outside Docker",
        "servers add --image x:1 --sandbox bwrap",
        "--sandbox bwrap: servers from images need --sandbox docker",
    ),
    Case(
        "an image without an engine",
        "servers add --image x:1",
        (
            "docker: DOCKER_HOST=tcp://",
            ": servers need folders of this machine, so the engine must be on it, at a unix:// address; unset",
        ),
        env={"DOCKER_HOST": "tcp://127.0.0.1:9"},
    ),
    Case(
        "an engine at no address",
        "servers add --image x:1",
        "docker: DOCKER_HOST=nonsense: servers need folders of this machine, so the engine must be on it, at a",
        env={"DOCKER_HOST": "nonsense"},
    ),
    Case(
        "an environment's name with a space",
        f"new 'my env' --server {CLOCK}",
        "new: name 'my env': letters, digits, - and _ only, at most 64",
    ),
    Case(
        "an environment's file that is there already",
        f"new clock --server {CLOCK}",
        "new: clock.py is there already; choose another name, or remove it",
        given={"clock.py": "mine"},
    ),
    Case(
        "a new environment with a server and an image",
        f"new clock --server {CLOCK} --image x:1",
        "new: give either --server LINE, --path FOLDER or --image IMAGE",
    ),
    Case(
        "a new environment in a folder that is not there",
        f"new clock --server {CLOCK} --dir nope",
        "new: folder nope is not there; make it first",
    ),
    Case(
        "a new environment in a file",
        f"new clock --server {CLOCK} --dir notes.txt",
        "new: folder notes.txt is not there; make it first",
        given={"notes.txt": "x"},
    ),
    Case(
        "a new environment with an old option",
        f"new clock --server {CLOCK} --name time",
        "--name: has been replaced by: --server-name",
    ),
    Case(
        "a new environment beside a broken lock",
        f"new clock --server {CLOCK}",
        "lock 'servers.lock': not TOML:",
        given={"servers.lock": "["},
    ),
    Case(
        "check of an environment that is not there", "check nope", "no environment 'nope'; have agentdojo, backoffice, "
    ),
    Case(
        "clean with a lock that is not there",
        "clean --dry-run --lock nowhere.lock",
        "clean: --lock nowhere.lock: not found, so its servers would be removed; give its path",
    ),
    Case(
        "clean with a lock that is broken",
        "clean --dry-run --servers --lock servers.lock",
        "/servers.lock': not TOML:",
        given={"servers.lock": "["},
    ),
    Case(
        "an image of a Dockerfile that is not there",
        "sandbox build nowhere/Dockerfile",
        ("docker: no Dockerfile at ", "/nowhere/Dockerfile"),
    ),
    Case("an image of a folder", "sandbox build mine", "docker: no Dockerfile at ", given={"mine": make_folder}),
    Case(
        "a Dockerfile without an engine",
        "sandbox build Dockerfile",
        (
            "docker: DOCKER_HOST=tcp://",
            ": servers need folders of this machine, so the engine must be on it, at a unix:// address; unset",
        ),
        given={"Dockerfile": "FROM scratch\n"},
        env={"DOCKER_HOST": "tcp://127.0.0.1:9"},
    ),
    Case(
        "a demo of fewer than no tasks",
        "demo --limit -1",
        "demo: invalid value for '--limit': must be greater than or equal to 0; see gymcp demo --help",
    ),
    Case("a relay to nowhere", "connect", "connect: no address: give a URL, or set GYMCP_MCP_URL"),
    Case(
        "a relay to what is no address",
        "connect ftp://127.0.0.1/mcp",
        "connect: 'ftp://127.0.0.1/mcp' is no address of an MCP server: write http://HOST:PORT/PATH",
    ),
    Case(
        "a relay with a token that is not there",
        "connect http://127.0.0.1:9/mcp --token nowhere",
        "connect: --token nowhere: No such file or directory",
    ),
    Case(
        "a relay with a token of two lines",
        "connect http://127.0.0.1:9/mcp --token token",
        ("connect: header 'Authorization': its value has a line break", "nothing else?"),
        given={"token": "first\nsecond"},
    ),
)
