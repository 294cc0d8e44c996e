"""HTML that is escaped by construction: text becomes markup only through `element`."""

from __future__ import annotations

import html
from dataclasses import dataclass

from gymcp.visible_text import visible

_VOID = {"meta", "br"}
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


def table(headings: tuple[str, ...], rows: list[tuple[Html | str, ...]]) -> Html:
    """A table; a heading that begins with ``#`` makes a column of numbers."""
    kinds = ["number" if heading.startswith("#") else "text" for heading in headings]
    head = [
        element("th", heading.removeprefix("#"), class_=kind, scope="col")
        for heading, kind in zip(headings, kinds, strict=True)
    ]
    body = [
        element("tr", *(element("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)))
        for row in rows
    ]
    return element(
        "div", element("table", element("thead", element("tr", *head)), element("tbody", *body)), class_="scroll"
    )
