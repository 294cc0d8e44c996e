"""Options of the verbs new, check, tools and servers; their work is in the modules beside this."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gymcp.cli.completion import offer
from gymcp.cli.known_names import LOCK_FILE, SANDBOXES
from gymcp.cli.lazy_verbs import defer_to
from gymcp.cli.option_types import (
    AsJson,
    Concurrency,
    EnvName,
    Limit,
    SandboxName,
    TaskPatterns,
    replaced_option,
)

servers = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Lock, install and check third-party MCP servers."
)

LockOption = Annotated[Path, typer.Option("--lock", help="Lock file.")]
RunsCodeOption = Annotated[
    bool, typer.Option("--runs-code", help="Never fork the server, because it executes code that a model wrote.")
]
ServerNames = Annotated[list[str] | None, typer.Argument(help="Servers of the lock; default: all.")]
SandboxOption = Annotated[
    str | None,
    typer.Option(
        "--sandbox",
        help="Sandbox: bwrap, docker, or none (trusted servers only); default: bwrap, and docker for images.",
        autocompletion=offer(SANDBOXES),
    ),
]
ImageOption = Annotated[
    str | None,
    typer.Option("--image", help="Image of the engine or a registry, or path of a Dockerfile; default: no image."),
]
BuildOption = Annotated[
    list[str] | None,
    typer.Option("--build", help="Package that may be built, in a sandbox, if it must be; repeatable; default: none."),
]
PathOption = Annotated[
    Path | None,
    typer.Option(
        "--path",
        help="Folder with pyproject.toml or package.json, in which the command is run, if there is one; default: none.",
    ),
]
WithOption = Annotated[
    list[str] | None,
    typer.Option("--with", help="Python package that it needs, too, such as 'mcp<2'; repeatable; default: none."),
]
ConstraintOption = Annotated[
    list[str] | None,
    typer.Option(
        "--constraint", help="Limit the version of a Python package if it is needed; repeatable; default: no limits."
    ),
]
PythonOption = Annotated[
    str | None,
    typer.Option(
        "--python",
        help="Minor version of Python, such as 3.12, which uv fetches if needed; default: what the package needs.",
    ),
]
ServiceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--service",
        help="Command of a process beside the server, such as 'redis-server --port 6379'; repeatable; default: none.",
    ),
]
ReadyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ready", help="Check that a --service is ready: tcp:PORT, file:PATH, command:LINE; repeatable; default: none."
    ),
]
ReadyTimeoutOption = Annotated[
    float, typer.Option("--ready-timeout", help="Seconds within which each --service must be ready.")
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env", help="Environment variable NAME=VALUE; secrets as NAME='${NAME}'; repeatable; default: none."
    ),
]
IncludeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--include",
        help="Another file or folder that your own server reads; repeatable; default: none.",
    ),
]
DevOption = Annotated[
    bool, typer.Option("--dev", help="Run your own source as it is at the start of each run, without comparing it.")
]
HttpOption = Annotated[
    str, typer.Option("--http", help="PORT or PORT/PATH of a command that speaks only streamable HTTP.")
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header", help="HTTP header NAME=VALUE for a URL; secrets as NAME='${NAME}'; repeatable; default: none."
    ),
]


@defer_to("servers.check:execute")
def check(
    env: EnvName,
    sandbox: SandboxName = "bwrap",
    tasks: TaskPatterns = None,
    limit: Limit = 60,
    concurrency: Concurrency = 8,
    privileges: Annotated[
        Path | None,
        typer.Option(help="TOML file with rules over tool calls, to prove that they block no gold; default: no rules."),
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="Model that the environment's grader asks, as --policy of eval; default: none.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that an environment can be trusted.

    Gymnasium's own checker, the gates (oracle 1, null 0, mutated 0), a gold call that succeeds in each task, clean
    resets, gold that ends alike when it is played twice, one call of each tool that no gold calls, answers of two fresh
    starts of each server whose state cannot be seen, and that no server can read the gold; with --privileges, all of it
    under these rules. Then a line for each part that was not checked, with the reason. Exit code 1 if a check fails.
    """


@defer_to("servers.new:execute")
def new(
    name: Annotated[str, typer.Argument(help="Name of the environment; the file is NAME.py.")],
    server: Annotated[
        str | None,
        typer.Option(
            help="Server: 'python FILE.py', 'npx -y PACKAGE@VERSION', 'uvx PACKAGE==VERSION', a URL; default: a class."
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            help="FILE or FILE:NAME, a server of a claude_desktop_config.json, in place of --server; default: none."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Then check the environment, as 'gymcp check' does: the gates are played.")
    ] = False,
    image: ImageOption = None,
    path: PathOption = None,
    more: WithOption = None,
    constraint: ConstraintOption = None,
    python: PythonOption = None,
    service: ServiceOption = None,
    ready: ReadyOption = None,
    ready_timeout: ReadyTimeoutOption = 10.0,
    include: IncludeOption = None,
    dev: DevOption = False,
    runs_code: RunsCodeOption = False,
    server_name: Annotated[
        str | None, typer.Option("--server-name", help="Name of the server; default: from the package or the host.")
    ] = None,
    old_name: Annotated[str | None, replaced_option("--name", "--server-name")] = None,
    build: BuildOption = None,
    env: EnvOption = None,
    http: HttpOption = "",
    header: HeaderOption = None,
    folder: Annotated[Path, typer.Option("--dir", help="Folder to write NAME.py and servers.lock into.")] = Path(),
    sandbox: SandboxOption = None,
) -> None:
    """Write an environment file for a server, ready to run.

    It has the server's tools, a first task that works, and a grader. Without a server, the file has a Python class as
    its server, three tasks and a test. With --check, the exit code is 1 if a check fails; the files stay.
    """


@defer_to("servers.tools:execute")
def tools(
    env: EnvName,
    search: Annotated[
        str | None,
        typer.Option(help="Words to search the tools by; the best match comes first; default: list.", metavar="WORDS"),
    ] = None,
    recall: Annotated[
        bool, typer.Option("--recall", help="Measure the share of the tools that tasks need among the first k results.")
    ] = False,
    k: Annotated[
        list[int] | None,
        typer.Option(help="Number of results, with --search or --recall; repeatable; default: 10, or 1 to 50."),
    ] = None,
    sandbox: SandboxName = "bwrap",
    as_json: AsJson = False,
) -> None:
    """List the tools of an environment, or search them.

    With --recall, measure how well they are found: recall@k of the tools of the tasks' gold
    calls, with the ranking that `gymcp eval --retrieve` uses.
    """


@servers.command("add", no_args_is_help=True)
@defer_to("servers.servers:add")
def add(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="Command 'python FILE.py', 'uv run FILE.py', 'node FILE.js', 'npx -y PACKAGE@VERSION',"
            " 'uvx PACKAGE==VERSION', or a URL; with --image: its arguments."
        ),
    ] = None,
    image: ImageOption = None,
    path: PathOption = None,
    more: WithOption = None,
    constraint: ConstraintOption = None,
    python: PythonOption = None,
    service: ServiceOption = None,
    ready: ReadyOption = None,
    ready_timeout: ReadyTimeoutOption = 10.0,
    include: IncludeOption = None,
    dev: DevOption = False,
    name: Annotated[str | None, typer.Option(help="Name of the server; default: from the package or the host.")] = None,
    env: EnvOption = None,
    http: HttpOption = "",
    header: HeaderOption = None,
    config: Annotated[
        str | None,
        typer.Option(
            help="FILE or FILE:NAME, the servers or one server of a claude_desktop_config.json or mcp.json to lock;"
            " default: a command."
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Server of --config to lock; repeatable; default: all of them.")
    ] = None,
    build: BuildOption = None,
    runs_code: RunsCodeOption = False,
    lock: LockOption = Path(LOCK_FILE),
    sandbox: SandboxOption = None,
) -> None:
    """Lock servers: resolve and install the packages, start each server in the sandbox and record its tools."""


@servers.command("lock")
@defer_to("servers.servers:relock")
def relock(names: ServerNames = None, lock: LockOption = Path(LOCK_FILE), sandbox: SandboxOption = None) -> None:
    """Lock the same versions again with the newest dependencies and the current tools; print the changes."""


@servers.command("sync")
@defer_to("servers.servers:sync")
def sync(names: ServerNames = None, lock: LockOption = Path(LOCK_FILE)) -> None:
    """Install the servers of the lock, so that later runs need no network; installed ones are verified and repaired."""


@servers.command("list")
@defer_to("servers.servers:list_all")
def list_servers(lock: LockOption = Path(LOCK_FILE), as_json: AsJson = False) -> None:
    """List the servers of the lock."""


@servers.command("check")
@defer_to("servers.servers:check")
def check_servers(
    names: ServerNames = None,
    lock: LockOption = Path(LOCK_FILE),
    sandbox: SandboxOption = None,
    as_json: AsJson = False,
) -> None:
    """Compare with the lock: every installed file, the version, and the tools that each server lists in the sandbox.

    Exit code 1 if something differs or a server does not start.
    """


@defer_to("servers.connect:execute")
def connect(
    url: Annotated[
        str | None, typer.Argument(help="Address of the server; default: the variable GYMCP_MCP_URL.")
    ] = None,
    token: Annotated[
        Path | None, typer.Option(help="File with the bearer token; default: the variable GYMCP_MCP_KEY, if it is set.")
    ] = None,
) -> None:
    """Relay standard input and output to an MCP server over HTTP.

    A program that starts MCP servers as commands, and speaks with them over standard streams, plays an episode through
    this command.
    """
