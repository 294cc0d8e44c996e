"""The frame of the attempts: what runs inside a sandbox, and unconfined as its own control. Standard library only.

An attempt is a function of what it was `given`. It returns in words what it has achieved, with proof: a token that only
the harness's side knows, or the kernel's yes. What stands in its way it raises.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

Given = dict[str, Any]  # by name: places, numbers and the token, as the harness knows them
T = TypeVar("T")
ATTEMPT_S = 10
"""Seconds after which the kernel ends an attempt, which then counts as hung."""
WAIT_S = 8
"""Seconds to wait for what comes at once if it comes, on a machine that is busy with other attempts."""

libc = ctypes.CDLL(None, use_errno=True)


class Attempt(NamedTuple):
    name: str
    group: str
    act: Callable[[Given], str]
    control: str
    """The user for whom it succeeds without a sandbox: "any", or "root" alone."""


class Prevented(Exception):
    """The attempt did not get what it wanted, without an error of the system."""


ATTEMPTS: dict[str, Attempt] = {}
_NEW_NS, _NEW_USER, _NEW_PID = 0x20000, 0x10000000, 0x20000000
_SETTINGS = ("sys/kernel/core_pattern", "sys/kernel/panic", "sys/vm/overcommit_memory", "irq/default_smp_affinity")


def _open_settings(procs: tuple[str, ...]) -> list[str]:
    """Settings of the kernel that this process could change; nothing is written."""
    found = []
    for path in (f"{proc}/{name}" for proc in procs for name in _SETTINGS):
        try:
            os.close(os.open(path, os.O_WRONLY))
        except OSError:
            continue
        found.append(path)
    return found


def _open_in_a_new_proc() -> list[str]:
    """The same in a /proc that this process mounts in namespaces of its own, which imports in a template may make."""
    child = os.fork()
    if child == 0:
        status = 1
        if libc.unshare(_NEW_USER | _NEW_NS | _NEW_PID) == 0:
            first = os.fork()
            if first == 0:
                mounted = libc.mount(b"proc", b"/tmp", b"proc", 0, None) == 0
                os._exit(0 if mounted and _open_settings(("/tmp",)) else 1)
            status = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        os._exit(status)
    return ["a setting in a /proc of its own"] if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 else []


_IS_INSIDE = os.path.isdir("/srv/program") or os.path.isdir("/srv/server")
OPENED_AT_IMPORT = _open_settings(("/.proc", "/proc")) + (_open_in_a_new_proc() if _IS_INSIDE else [])
"""By the process that imported this: in a forked server its template."""


def attempt(group: str, *, control: str = "any") -> Callable[[Callable[[Given], str]], Callable[[Given], str]]:
    """Adds the function to the table under its own name."""

    def add(act: Callable[[Given], str]) -> Callable[[Given], str]:
        ATTEMPTS[act.__name__] = Attempt(act.__name__, group, act, control)
        return act

    return add


def first_of(targets: Iterable[T], act: Callable[[T], str]) -> str:
    """Result of the act on the first target with which it succeeds; raises the last failure if there is none."""
    failure: Exception = Prevented("there was nothing to try it on")
    for target in targets:
        try:
            return act(target)
        except (OSError, Prevented) as error:
            failure = error
    raise failure


def token_in(text: str | bytes, given: Given) -> str:
    """Report that the token was read. Raises Prevented if it is not in the text."""
    content = text.decode(errors="replace") if isinstance(text, bytes) else text
    if given["token"] not in content:
        raise Prevented("what could be read is not what was looked for")
    return "read the token"


def read(path: str, given: Given) -> str:
    with open(path, "rb") as file:
        return token_in(file.read(1_000_000), given)


def check_result(result: int, doing: str) -> int:
    """The result of a C function. Raises OSError if it is -1."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{doing}: {os.strerror(number)}")
    return result


def syscall(doing: str, number: int, *arguments: Any) -> int:
    return check_result(libc.syscall(ctypes.c_long(number), *arguments), doing)


def number_of(x86_64: int, aarch64: int) -> int:
    return x86_64 if os.uname().machine == "x86_64" else aarch64


def play(names: list[str], given: Given) -> dict[str, list[Any]]:
    """name -> [whether it achieved something, in words what or why not], each tried in a process of its own."""
    return {name: _make_attempt(ATTEMPTS[name], given) for name in names}


def _make_attempt(what: Attempt, given: Given) -> list[Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(ATTEMPT_S)
        os.write(writer, json.dumps(_outcome(what, given)).encode() + b"\n")
        os._exit(0)
    os.close(writer)
    said = _line(reader)
    os.close(reader)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if said:
        return list(json.loads(said))
    return ["hung" if status == -signal.SIGALRM else False, f"ended with status {status}"]


def _outcome(what: Attempt, given: Given) -> list[Any]:
    try:
        return [True, str(what.act(given))[:500]]
    except (OSError, Prevented) as error:
        return [False, f"{type(error).__name__}: {error}"[:500]]
    except BaseException as error:
        return ["broken", f"{type(error).__name__}: {error}"[:500]]


def _line(reader: int) -> bytes:
    """Up to a line's end: what an attempt leaves behind may hold the pipe open."""
    said = b""
    while not said.endswith(b"\n"):
        if not select.select([reader], [], [], ATTEMPT_S + 5)[0]:
            break
        chunk = os.read(reader, 65536)
        if not chunk:
            break
        said += chunk
    return said
