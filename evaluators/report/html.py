"""HTML that is escaped by construction: text becomes markup only through `element`."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from gymcp.visible_text import shorten, visible

_VOID = {"meta", "br"}
_COLUMN_KINDS = {"#": "number", ">": "long"}
"""First character of a heading -> class of its column."""
MAX_NAME_CHARS = 200
MAX_WHOLE_NAME_CHARS = 40
"""Longest name that a wide screen never breaks."""
_WHOLE = re.compile(r"(\bp = \d[\d.e-]*|(?<!\S)--[a-z][a-z-]*)")
"""A p-value, or an option of a command."""
_EMPTY = {"line", "rect"}
"""SVG elements that are written as one self-closing tag."""


@dataclass(frozen=True, slots=True)
class Html:
    """Markup. Only `element`, `raw` and `join` make it."""

    text: str


def element(tag: str, *children: Html | str, **attributes: str) -> Html:
    """``<tag>children</tag>``, with texts and attribute values escaped. `class_` becomes ``class``, ``_`` in a name
    ``-``."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(visible(value))}"' for name, value in attributes.items()
    )
    if tag in _VOID:
        return Html(f"<{tag}{written}>")
    if tag in _EMPTY:
        return Html(f"<{tag}{written}/>")
    return Html(f"<{tag}{written}>{join(*children).text}</{tag}>")


def join(*children: Html | str) -> Html:
    """The children one after another, texts escaped."""
    return Html("".join(child.text if isinstance(child, Html) else html.escape(visible(child)) for child in children))


def raw(trusted: str) -> Html:
    """Markup from a constant of this package; never from a record."""
    return Html(trusted)


def keep_whole(text: str) -> Html:
    """The text, in which no line break cuts a p-value or an option of a command."""
    parts = enumerate(_WHOLE.split(text))  # every second one is to stay whole
    return join(*(element("span", part, class_="word") if at % 2 else part for at, part in parts))


def name_code(name: str) -> Html:
    """A name from a record as code, which a wide screen breaks only if it is long."""
    if len(name) <= MAX_WHOLE_NAME_CHARS:
        return element("code", name, class_="name")
    return element("code", shorten(name, MAX_NAME_CHARS))


def fold_if_narrow(words: str, *children: Html | str) -> Html:
    """The children, which a narrow screen hides behind these words until they are asked for."""
    return element("details", element("summary", words), *children, class_="fold")


def table(headings: tuple[str, ...], rows: list[tuple[Html | str, ...]]) -> Html:
    """A table whose rows become blocks on a narrow screen, each cell beside the name of its column.

    A heading that begins with ``#`` makes a column of numbers, one that begins with ``>`` a column of long texts.
    """
    kinds = [_COLUMN_KINDS.get(heading[:1], "text") for heading in headings]
    names = [heading.lstrip("".join(_COLUMN_KINDS)) for heading in headings]
    head = [
        element("th", name, class_=kind, scope="col", role="columnheader")
        for name, kind in zip(names, kinds, strict=True)
    ]
    # roles keep it a table for screen readers when the style sheet makes blocks of its rows
    body = [
        element(
            "tr",
            *(
                element("td", cell, class_=kind, role="cell", **({"data_label": name} if name and at else {}))
                for at, (cell, kind, name) in enumerate(zip(row, kinds, names, strict=True))
            ),
            role="row",
        )
        for row in rows
    ]
    rows_of_table = (
        element("thead", element("tr", *head, role="row"), role="rowgroup"),
        element("tbody", *body, role="rowgroup"),
    )
    return element("div", element("table", *rows_of_table, role="table"), class_="scroll")
