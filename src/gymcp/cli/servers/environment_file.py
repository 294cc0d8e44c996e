"""The environment file that `gymcp new` writes over a server: its tools in comments, a first task, and a grader."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from gymcp.cli.servers.state_kinds import MAX_NAMES, describe_state
from gymcp.cli.servers.trial import Trial
from gymcp.mcp_servers.packages.lockfile import DEFAULT_LOCK, LockedServer, Runtime
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

from gymcp import GoldTurn, Suite, Task, ToolCall
from gymcp.envs import EnvSpec
from gymcp.evaluators.graders import as_target, calls_made
from gymcp.mcp_servers import {server_imports}

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
    grade=calls_made(),
)
'''


def next_commands(runtime: Runtime, file: str, sandbox: str) -> tuple[str, str]:
    """The next two commands to type. `sandbox`: name of the one in which the server was tried."""
    if runtime == "remote":
        return f"gymcp eval {file} --agent oracle --cassette record", f"gymcp check {file}"
    option = "" if sandbox == "bwrap" else f" --sandbox {sandbox}"
    return f"gymcp check {file}{option}", f"gymcp eval {file} --agent oracle{option}"


_CALL_NOTES = {
    True: "works on a fresh server",
    False: "the schema allows (the server answers it with an error)",
    None: "the schema allows (it was not tried: what it does elsewhere, nobody could undo)",
}


def write_text(name: str, path: Path, entry: LockedServer, found: Trial, sandbox: str) -> str:
    """Text of the file. `sandbox`: name of the one in which the server was tried."""
    remote, state = entry.runtime == "remote", found.state.state
    first, second = next_commands(entry.runtime, path.name, sandbox)
    return _FILE.format(
        name=name,
        first=first,
        second=second,
        cassette=f'CASSETTE = Path(__file__).with_name("{path.stem}.cassette.jsonl")\n' if remote else "",
        play=", cassette=CASSETTE" if remote else "",
        state="" if state == "opaque" else f", state={describe_state(state)}",
        state_kind="in its files" if isinstance(state, FileState) else state,
        state_reason=_comment_text(found.state.reason),
        server_imports="FileState, locked_server" if isinstance(state, FileState) else "locked_server",
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
    names = [str(kind["type"]) for kind in kinds if isinstance(kind, dict) and "type" in kind]
    return " | ".join(dict.fromkeys(names)) or "any"
