"""The tree of exceptions as it is drawn in `gymcp.errors`."""

from __future__ import annotations

import re

from gymcp import errors


def test_the_drawing_in_errors_is_the_tree_of_classes() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type) and each.__module__ == errors.__name__]
    parents = {each.__name__: each.__bases__[0].__name__ for each in classes}
    assert parse_drawing(errors.__doc__ or "") == parents


def parse_drawing(text: str) -> dict[str, str]:
    """Class name -> name of its parent, from the lines of a tree of box characters; the root's parent is Exception."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for indent, name in re.findall(r"^    ((?:[│├└ ][ ─]{2} )*)(\w+)(?: {2,}.*)?$", text, re.MULTILINE):
        path[len(indent) // 4 :] = [name]
        parents[name] = path[-2] if len(path) > 1 else "Exception"
    return parents
