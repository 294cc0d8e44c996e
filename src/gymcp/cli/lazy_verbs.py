"""Verbs that are imported when they are typed, and work that is imported when it begins."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import inspect
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from gymcp.cli.verbs import VERBS, Verb

log = logging.getLogger(__name__)
Face = TypeVar("Face", bound=Callable[..., None])


@contextlib.contextmanager
def pause_gc() -> Iterator[None]:
    """Collect no garbage, and afterwards do not look for it in what is there by then: modules stay.

    The search takes a fifth of the time of a verb's imports.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def import_place(place: str) -> Any:
    """The object at ``MODULE:NAME`` below ``gymcp.cli``."""
    module, _, name = place.partition(":")
    path = f"gymcp.cli.{module}"
    started = time.perf_counter()
    with contextlib.nullcontext() if path in sys.modules else pause_gc():
        value = getattr(importlib.import_module(path), name)
    log.debug("imported %s in %.2f s", path, time.perf_counter() - started)
    return value


def defer_to(place: str) -> Callable[[Face], Face]:
    """Decorator of a function that has only a verb's options: called, it imports the function at `place`, which takes
    the same arguments, and calls it. Options under a name that begins with ``old_`` are not passed on."""

    def decorate(face: Face) -> Face:
        signature = inspect.signature(face)

        @functools.wraps(face)
        def call(*arguments: Any, **options: Any) -> None:
            bound = signature.bind(*arguments, **options)
            bound.apply_defaults()
            passed = {name: value for name, value in bound.arguments.items() if not name.startswith("old_")}
            import_place(place)(**passed)

        setattr(call, "deferred_to", place)  # noqa: B010 - functions have no such attribute to the type checker
        return call  # type: ignore[return-value]

    return decorate


def load_command(verb: Verb) -> Any:
    """The verb's command, with its options; imports its module."""
    loaded = import_place(verb.place)
    if not isinstance(loaded, typer.Typer):
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(verb.name)(loaded)
        loaded = single
    command = typer.main.get_command(loaded)
    command.name = verb.name
    command.epilog = "\n\n".join(("Examples:", *verb.examples)) if verb.examples else None
    for each in (command, *getattr(command, "commands", {}).values()):
        each.format_help = functools.partial(_print_help, each)
    return command


def list_verbs_with(option: str) -> list[str]:
    """Verbs, with their commands, that show the option in their help; imports the options of all."""
    found = []
    for verb in VERBS:
        command = load_command(verb)
        for name, each in {"": command, **getattr(command, "commands", {})}.items():
            if any(option in parameter.opts and not getattr(parameter, "hidden", False) for parameter in each.params):
                found.append(f"{verb.name} {name}".rstrip())
    return found


def _print_help(command: Any, context: Any, formatter: Any) -> None:
    """Print the help in place of Typer, which shows Python's types and cuts long words."""
    import_place("help.page:print_help")(command, context)


class LazyGroup(TyperGroup):
    """The group of all verbs. Its list of commands is the table of verbs; only the verb that is typed is imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for verb in VERBS:
            self.add_command(TyperCommand(verb.name, help=verb.help, rich_help_panel=verb.group))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the first page of the help."""
        _print_help(self, ctx, formatter)

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the table."""
        return [verb.name for verb in VERBS]

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """(name, command with its options, other words) for the words that were typed."""
        name, _, rest = super().resolve_command(ctx, args)
        verb = next((verb for verb in VERBS if verb.name == name), None)
        return name, None if verb is None else load_command(verb), rest
