"""Parts of files that differ from run to run: they are hidden before a file is digested, recorded or read.

A hidden part becomes `HIDDEN`, or a fixed time. A file that is not what its mask expects is digested as it is.
"""

from __future__ import annotations

import fnmatch
import importlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

Json = Any

HIDDEN = "<masked>"
MAX_MASKED_BYTES = 64_000_000
"""Largest file whose parts are hidden."""


class Masks:
    """The masks of a state, as rows of `gymcp.mcp_servers.file_state.Mask`; a text is a pattern that is ignored."""

    def __init__(self, rows: list[Json]) -> None:
        masks = [{"files": row, "kind": "ignore"} if isinstance(row, str) else row for row in rows]
        self._ignored = [(n, mask["files"]) for n, mask in enumerate(masks) if mask["kind"] == "ignore"]
        self._partial = [
            (n, mask["files"], _HIDERS[mask["kind"]](mask["pattern"]))
            for n, mask in enumerate(masks)
            if mask["kind"] != "ignore"
        ]
        self.used: set[int] = set()
        """Positions of the masks that have left out or changed something."""

    def leaves_out(self, path: str) -> bool:
        matching = [n for n, pattern in self._ignored if fnmatch.fnmatchcase(path, pattern)]
        self.used.update(matching)
        return bool(matching)

    def hides_parts(self, path: str) -> bool:
        """True if `hide` may change the content of the file."""
        return any(fnmatch.fnmatchcase(path, pattern) for _, pattern, _ in self._partial)

    def hide(self, path: str, content: bytes) -> bytes:
        """The content without its volatile parts."""
        for n, pattern, hider in self._partial:
            if fnmatch.fnmatchcase(path, pattern):
                hidden = _apply(hider, content)
                if hidden is not None:
                    content = hidden
                    self.used.add(n)
        return content


Hider = Callable[[bytes], "bytes | None"]
"""Content without its volatile parts; None if there are none."""


def _apply(hider: Hider, content: bytes) -> bytes | None:
    """Return the content that the hider leaves; None if it fails: no untrusted file may end the digest helper."""
    try:
        return hider(content)
    except MemoryError:
        raise
    except Exception:
        return None


def hide_matches(pattern: str) -> Hider:
    expression = re.compile(pattern, re.MULTILINE)

    def hide(content: bytes) -> bytes | None:
        text, count = expression.subn(HIDDEN, content.decode("utf-8", "surrogateescape"))
        return text.encode("utf-8", "surrogateescape") if count else None

    return hide


def hide_values(pointer: str) -> Hider:
    """Hider of the values in a JSON document to which the pointer leads; the document is then written anew."""
    keys = [key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")[1:]]

    def hide(content: bytes) -> bytes | None:
        try:
            document = json.loads(content)
            places = list(_places(document, 0, keys))
            for holder, key in places:
                holder[key] = HIDDEN
            return json.dumps(document, indent=1).encode() if places else None
        except (ValueError, RecursionError):
            return None

    return hide


def _places(value: Json, at: int, keys: list[str]) -> Iterator[tuple[Json, Any]]:
    """(object or list, key or index) of each value that the keys lead to."""
    if isinstance(value, dict):
        found: list[Any] = list(value) if keys[at] == "*" else [keys[at]] if keys[at] in value else []
    elif isinstance(value, list):
        indices = range(len(value))
        found = [n for n in indices if keys[at] in ("*", str(n))]
    else:
        return
    for key in found:
        if at + 1 == len(keys):
            yield value, key
        else:
            yield from _places(value[key], at + 1, keys)


def load_zip_hider(_: str) -> Hider:
    """Hider of times in zip archives, imported only when needed: `zipfile` would add to every start."""
    module = importlib.import_module("gymcp.mcp_servers.programs.digest.zip_times")
    return module.hide_zip_times  # type: ignore[no-any-return]


_HIDERS: dict[str, Callable[[str], Hider]] = {
    "zip_timestamps": load_zip_hider,
    "regex": hide_matches,
    "json_pointer": hide_values,
}
