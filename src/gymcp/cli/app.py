"""The command line: options before the verb, and what happens to errors."""

from __future__ import annotations

import logging
import platform
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from gymcp import __version__
from gymcp.cli.exit_codes import USAGE_ERROR
from gymcp.cli.known_names import FOREIGN_OPTIONS
from gymcp.cli.lazy_verbs import LazyGroup, list_verbs_with
from gymcp.cli.output import clean_output, hint_at_debug, in_one_line, print_json, print_traceback
from gymcp.cli.verbs import VERBS
from gymcp.errors import GymcpError, UsageError

LOG_FORMAT = "%(asctime)s %(name)s: %(message)s"
MAX_VERBS_SHOWN = 4
"""Verbs that an error about an option names."""
_VARIABLES = (
    "GYMCP_HOME: folder of installed suites, servers and images (default: gymcp in $XDG_CACHE_HOME or ~/.cache).",
    "OPENAI_API_KEY: key of an endpoint; --key-env names another variable.",
    "VLLM_API_KEY: key of gymcp serve.",
    "DOCKER_HOST: address of the engine of --sandbox docker.",
    "GYMCP_ENGINE_FORWARD: forward pass of the embedded engine: cpp, torch or transformers (default: the fastest).",
    "NO_COLOR: no colours.",
)

log = logging.getLogger("gymcp")
app = typer.Typer(
    name="gymcp",
    cls=LazyGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},  # the verbs inherit them
    pretty_exceptions_enable=False,
    epilog="\n\n".join(("Environment variables:", *_VARIABLES, "Help of a verb, with examples: gymcp VERB --help")),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"gymcp {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print gymcp's log, and the traceback of an error, on standard error.")
    ] = False,
) -> None:
    """Any MCP tool server as a Gymnasium environment: sandboxed, cleanly reset, honestly benchmarked."""
    if debug:
        _log_everything()


def run() -> None:
    """Run the command that was typed. An error that the user can mend is one line on standard error and exit code 2.

    With --json it is an object on standard output, too.
    """
    clean_output()
    try:
        code = app(standalone_mode=False)
    except TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # Typer has printed the help instead
            sys.exit(USAGE_ERROR)
        _fail(_describe_usage_error(error), USAGE_ERROR)
    except GymcpError as error:
        print_traceback(error)
        _fail(f"{error}{hint_at_debug(error)}", USAGE_ERROR if isinstance(error, UsageError) else 1)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the output has gone
        sys.exit(1)
    sys.exit(code or 0)


def _fail(error: str, code: int) -> NoReturn:
    """Print the error and end the command with the exit code."""
    print(f"gymcp: {error}", file=sys.stderr)
    if "--json" in sys.argv[1:]:
        print_json({"error": error, "exit_code": code})
    sys.exit(code)


def _describe_usage_error(error: TyperException) -> str:
    """One line on what is wrong with the words that were typed."""
    words = getattr(error, "format_message", error.__str__)()
    words = _describe_option_elsewhere(error) or in_one_line(words).rstrip(".?")
    for long, short in (("Input should be", "must be"), ("Value error, ", ""), (". Did you mean", "; did you mean")):
        words = words.replace(long, short)
    context = getattr(error, "ctx", None)
    words += _hint_at_folder_like_command(error)
    typed = next((verb.name for verb in VERBS if verb.name in sys.argv[1:]), "")
    verb = typed if context is None else context.command_path.partition(" ")[2]
    who = f"{verb}: " if verb else ""
    help_command = " ".join(("gymcp", *verb.split(), "--help"))
    return f"{who}{words[:1].lower()}{words[1:]}; see {help_command}"


def _hint_at_folder_like_command(error: TyperException) -> str:
    """Words for one who meant a folder by the name of the command that a group runs by default, else empty."""
    context = getattr(error, "ctx", None)
    group = getattr(getattr(context, "parent", None), "command", None)
    name = getattr(context, "info_name", None)
    if type(error).__name__ != "MissingParameter" or name is None or getattr(group, "default", None) != name:
        return ""
    return f"; if the folder '{name}' is meant, write ./{name}" if Path(name).is_dir() else ""


def _describe_option_elsewhere(error: TyperException) -> str:
    """Words about an option of another framework, with the verb's own in its place, or about one that was typed before
    the verb; empty for every other error."""
    context = getattr(error, "ctx", None)
    if context is None or not hasattr(error, "possibilities"):  # the error about an unknown option, which Typer hides
        return ""
    there = {name for parameter in context.command.params for name in parameter.opts}
    name = str(getattr(error, "option_name", "")).replace("_", "-")
    if context.parent is None:
        return _describe_verbs_option(name)
    here = [option for option in FOREIGN_OPTIONS.get(name, ()) if option in there]
    return f"no such option: {name}; here it is {' or '.join(here)}" if here else ""


def _describe_verbs_option(name: str) -> str:
    """Words about an option that was typed without a verb, with the verbs that have it; empty if none has."""
    for option in FOREIGN_OPTIONS.get(name, (name,)):
        verbs = list_verbs_with(option)
        if verbs:
            shown, more = ", ".join(verbs[:MAX_VERBS_SHOWN]), len(verbs) - MAX_VERBS_SHOWN
            here = f"here it is {option}, " if option != name else "it is "
            return f"no such option: {name}; {here}an option of {shown}{f' and {more} more' if more > 0 else ''}"
    return ""


def _log_everything() -> None:
    """Print gymcp's log on standard error. The logs of libraries may hold keys, so they stay as they are."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    log.handlers[:] = [handler]
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.debug("gymcp %s, Python %s, %s", __version__, platform.python_version(), " ".join(sys.argv[1:]))
