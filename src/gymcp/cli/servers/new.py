"""``gymcp new``: write an environment file over a server, ready to run."""

from __future__ import annotations

import asyncio
import json
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from gymcp.atomic import write_atomically
from gymcp.cli.output import console, in_one_line
from gymcp.cli.servers.scaffold import write_scaffold
from gymcp.cli.servers.servers import (
    add_packages,
    add_services,
    add_source_options,
    choose_python,
    make_request,
    parse_pairs,
    refuse_other_server,
    sandbox_for,
)
from gymcp.cli.servers.state_kinds import MAX_NAMES, describe_state
from gymcp.cli.servers.trial import Trial, try_out
from gymcp.cli.summary_table import network_line
from gymcp.errors import ConfigError
from gymcp.mcp_servers.packages.locked_server import lock_server
from gymcp.mcp_servers.packages.lockfile import DEFAULT_LOCK, MAX_NAME_CHARS, LockedServer, check_name, edit_lock
from gymcp.mcp_servers.spec import FileState
from gymcp.types import Json, Tool

GOAL_CHARS = 160
"""Characters of the longest sentence of a description that becomes a task's prompt."""
DESCRIPTION_LINES = 4
"""Lines of a tool's description that the comments of the file repeat."""

_FILE = '''\
"""{name}: tasks over the MCP server '{server}' ({package}{version}).

Try: {first}
     {second}
"""

from pathlib import Path

from gymcp.envs import EnvSpec
from gymcp.evaluators.graders import as_target, calls_made
from gymcp.mcp_servers.packages.locked_server import locked_server
{more_imports}from gymcp.types import GoldTurn, Suite, Task, ToolCall

LOCK = Path(__file__).with_name("{lock}")
{cassette}
# The tools, as they were when this file was written; `gymcp servers check` says when that changes.
#
{tools}

# The state of the server is {state_kind}: {state_reason}.
#
# A call that {found}. Write tasks of your own in its place: a prompt, the calls that solve it, a target.
CALL = ToolCall(
    id="call_1",
    name={call_name},
    arguments={arguments},
)

TASKS = (
    Task(
        id="first",
        prompts=({prompt},),
        target=as_target([CALL]),
        gold=(GoldTurn(calls=(CALL,), final_text="Done."),),
        last_necessary=(0, 0),
    ),
)

ENV = EnvSpec(
    name="{name}",
    description={description},
    servers=lambda: (locked_server("{server}", lock=LOCK{state}{play}),),
    suite=Suite(name="{name}", version="1", tasks=TASKS),
    grade=calls_made(must_succeed={must_succeed}),
)
'''


def execute(
    name: str,
    *,
    server: str | None,
    image: str | None,
    path: Path | None,
    more: list[str] | None,
    constraint: list[str] | None,
    python: str | None,
    service: list[str] | None,
    ready: list[str] | None,
    ready_timeout: float,
    include: list[str] | None,
    dev: bool,
    runs_code: bool,
    server_name: str | None,
    build: list[str] | None,
    http: str,
    header: list[str] | None,
    folder: Path,
    sandbox: str | None,
) -> None:
    """Write an environment file over a server: its tools, a first task that works, and a grader."""
    file = folder / f"{_check_name(name)}.py"
    if file.exists():
        raise ConfigError(f"new: {file} is there already; choose another name, or remove it")
    if not folder.is_dir():
        raise ConfigError(f"new: folder {folder} is not there; make it first")
    if server is None and path is None and image is None:
        _refuse_server_options(more, constraint, python, service, ready, include, build, header, server_name, http)
        write_scaffold(name, file)
        return
    if server is not None and image is not None:
        raise ConfigError("new: give either --server LINE, --path FOLDER or --image IMAGE")
    lock, headers = folder / DEFAULT_LOCK, parse_pairs("--header", header or [])
    words = [server] if server else []
    wanted = make_request(words, image, path, lock, name=server_name, http=http, headers=headers)
    wanted = choose_python(add_packages(wanted, more, constraint, build), python)
    wanted = add_source_options(add_services(wanted, service, ready, ready_timeout), include, dev=dev)
    refuse_other_server(lock, wanted, option="--server-name", replaceable=False)
    backend = sandbox_for(wanted.runtime, sandbox)
    entry = lock_server(wanted, backend, runs_code=runs_code)
    found = asyncio.run(try_out(entry, backend))
    _write(name, file, entry, found)
    console.print(f"wrote {file} and {lock}: {len(found.tools)} tools, one task", highlight=False)
    kind = describe_state(found.state.state)
    console.print(in_one_line(f"state: {kind}: {found.state.reason}"), highlight=False, soft_wrap=True)
    if line := network_line(found.offline):
        console.print(in_one_line(line), highlight=False, soft_wrap=True, style="yellow")
    console.print(f"next: {_commands(entry, str(file))[0]}", style="dim", highlight=False)


def _refuse_server_options(*given: list[str] | str | None) -> None:
    """Raise ConfigError if there are options of a server, but no server."""
    if any(given):
        raise ConfigError(
            "new: has options of a server, but no server: give --server LINE, --path FOLDER or --image NAME"
        )


def _write(name: str, file: Path, entry: LockedServer, found: Trial) -> None:
    """Write the lock entry and the environment file. Raises ConfigError if the lock got another such server."""
    lock = file.with_name(str(DEFAULT_LOCK))
    with edit_lock(lock) as servers:
        if entry.name in servers and servers[entry.name].command != entry.command:
            there = " ".join(servers[entry.name].command)
            raise ConfigError(
                f"new: {lock} has a server '{entry.name}' already: {there}; choose another --server-name or --dir"
            )
        servers[entry.name] = entry
    write_atomically(file, _text(name, file, entry, found).encode())


def _check_name(name: str) -> str:
    """The environment's name, if it can be a file name. Raises ConfigError."""
    try:
        return check_name(name)
    except ConfigError as error:
        raise ConfigError(f"new: name {name!r}: letters, digits, - and _ only, at most {MAX_NAME_CHARS}") from error


def _commands(entry: LockedServer, file: str) -> tuple[str, str]:
    """The next two commands to type."""
    if entry.runtime == "remote":
        return f"gymcp eval {file} --agent oracle --cassette record", f"gymcp check {file}"
    option = " --sandbox docker" if entry.runtime == "image" else ""
    return f"gymcp check {file}{option}", f"gymcp eval {file} --agent oracle{option}"


_CALL_NOTES = {
    True: "works on a fresh server",
    False: "the schema allows (the server answers it with an error)",
    None: "the schema allows (it was not tried: what it does elsewhere, nobody could undo)",
}


def _text(name: str, path: Path, entry: LockedServer, found: Trial) -> str:
    remote, state = entry.runtime == "remote", found.state.state
    first, second = _commands(entry, path.name)
    return _FILE.format(
        name=name,
        first=first,
        second=second,
        cassette=f'CASSETTE = Path(__file__).with_name("{path.stem}.cassette.jsonl")\n' if remote else "",
        play=", cassette=CASSETTE" if remote else "",
        state="" if state == "opaque" else f", state={describe_state(state)}",
        state_kind="in its files" if isinstance(state, FileState) else state,
        state_reason=_comment_text(found.state.reason),
        more_imports="from gymcp.mcp_servers.spec import FileState\n" if isinstance(state, FileState) else "",
        server=entry.name,
        package=_plain(entry.package),
        version=f" {entry.version}" if entry.version and entry.source is None else "",
        lock=DEFAULT_LOCK,
        tools="\n#\n".join(_comment(tool) for tool in found.tools),
        found=_describe_call(found),
        call_name=_quote(found.call.name),
        arguments=repr(found.call.arguments),
        prompt=_quote(describe_goal(found)),
        description=_quote(f"Tasks over {entry.package}."),
        must_succeed=bool(found.succeeded),
    )


def _describe_call(found: Trial) -> str:
    """The call in a comment, with the files that it changes."""
    changes = f", and changes {', '.join(found.changed[:MAX_NAMES])}" if found.changed else ""
    return _comment_text(f"{_CALL_NOTES[found.succeeded]}{changes}")


def describe_goal(found: Trial) -> str:
    """The first task's prompt: what the tool's description says that it does, and the arguments in words."""
    call, tool = found.call, next(tool for tool in found.tools if tool.name == found.call.name)
    sentence = re.split(r"(?<=[.!?])\s", " ".join(tool.description.split()))[0].rstrip(".")
    plain = "".join(char if char.isprintable() else "?" for char in sentence)
    goal = plain if 0 < len(plain) <= GOAL_CHARS else f"Use the tool {call.name}"
    arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
    words = [f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items()]
    listed = " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    return f"{goal}: {listed}." if listed else f"{goal}."


def _comment_text(text: str) -> str:
    """Untrusted text, such as names of files, for a comment of one line."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _plain(text: str) -> str:
    """The text without characters that could end the docstring that it stands in."""
    return "".join(char if char.isprintable() and char not in "\"'\\" else "_" for char in text)


def _quote(text: str) -> str:
    """The text as a Python literal, in double quotes if it needs no escapes."""
    return f'"{text}"' if text.isprintable() and not {'"', "\\"} & set(text) else repr(text)


def _comment(tool: Tool) -> str:
    """Comment lines about a tool. The server's text is untrusted: each line is a comment without control characters."""
    properties = tool.input_schema.get("properties", {})
    needed = tool.input_schema.get("required", ())
    params = [
        f"{param}{'' if param in needed else '?'}: {_describe_type(schema)}" for param, schema in properties.items()
    ]
    about = textwrap.wrap(" ".join(tool.description.split()), 100)[:DESCRIPTION_LINES]
    signature = textwrap.wrap(f"{tool.name}({', '.join(params)})", 110, subsequent_indent="    ")
    lines = [*signature, *(f"    {line}" for line in about)]
    return "\n".join("# " + "".join(c if c.isprintable() else "?" for c in line) for line in lines)


def _describe_type(schema: Json) -> str:
    if not isinstance(schema, dict):
        return "any"
    if schema.get("enum"):
        return " | ".join(repr(value) for value in schema["enum"])
    kinds = [schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    found = [str(kind["type"]) for kind in kinds if isinstance(kind, dict) and "type" in kind]
    return " | ".join(dict.fromkeys(found)) or "any"
