"""Third-party Python servers that are imported once and forked: how, from the command that starts one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from gymcp.mcp_servers.sandbox.spec import Forkable, Mount

_FOLDER = PurePosixPath("/srv/script")
_MODULE = "gymcp_script"
_TAKES_ARGUMENT = "cWX"


def forkable_script(argv: Sequence[str]) -> Forkable | None:
    """How to fork the server that `argv` starts; None where that is no Python with a file or a module (``-m``)."""
    if not PurePosixPath(argv[0]).name.startswith("python"):
        return None
    words = list(argv)
    position = 1
    while position < len(words) and words[position].startswith("-") and words[position] != "-m":
        letter = words[position][-1]
        if letter in _TAKES_ARGUMENT and len(words[position]) == 2:
            position += 1
        if words[position][:2] == "-c":
            return None
        position += 1
    script = tuple(words[position:])
    if not script or script == ("-m",):
        return None
    options = "".join(word[1:] for word in words[1:position])
    own = "/workspace" if script[0] == "-m" else str(PurePosixPath(script[0]).parent)
    return Forkable(
        path=(str(_FOLDER), *([] if set(options) & set("IP") else [own])),
        module=_MODULE,
        python=tuple(words[:position]),
        script=script,
        mounts=(
            Mount(source=Path(__file__).with_name("programs") / "script.py", target=_FOLDER / f"{_MODULE}.py"),
        ),
    )
