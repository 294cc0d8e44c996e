"""Text of a Word document: ``{"paragraphs": [text, ...], "tables": [[[cell, ...], ...], ...]}``.

Paragraphs outside of tables, in their order; then each table as rows of cells. Headers, footnotes, comments and deleted
text are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any
from xml.etree.ElementTree import Element

from gymcp.mcp_servers.programs.digest.readers.archives import open_archive, parse_xml
from gymcp.mcp_servers.programs.digest.readers.source import Source, TooLarge, Unreadable

_SIGNS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}


def read(source: Source) -> Any:
    """Paragraphs and tables. Raises Unreadable, TooLarge."""
    with open_archive(source.content) as archive:
        body = parse_xml(archive.read("word/document.xml")).find("body")
    if body is None:
        raise Unreadable("the document has no body")
    paragraphs: list[str] = []
    tables: list[Element] = []
    for block in _blocks(body):
        if block.tag == "p":
            paragraphs.append(_text(block, source.deadline))
        else:
            tables.append(block)
    return {"paragraphs": paragraphs, "tables": [_rows(table, source.deadline) for table in tables]}


def _blocks(body: Element) -> list[Element]:
    """Paragraphs and tables at the top, also those in content controls."""
    found: list[Element] = []
    for child in body:
        if child.tag in ("p", "tbl"):
            found.append(child)
        elif child.tag == "sdt":
            found += [block for content in child.findall("sdtContent") for block in _blocks(content)]
    return found


def _rows(table: Element, deadline: float) -> list[list[str]]:
    return [
        ["\n".join(_text(each, deadline) for each in _until(deadline, cell.iter("p"))) for cell in row.findall("tc")]
        for row in table.findall("tr")
    ]


def _text(paragraph: Element, deadline: float) -> str:
    parts = [
        (part.text or "") if part.tag == "t" else _SIGNS.get(part.tag, "")
        for run in _until(deadline, paragraph.iter("r"))
        for part in run
    ]
    return "".join(parts)


def _until(deadline: float, elements: Iterable[Element]) -> Iterator[Element]:
    """The elements. Raises TooLarge at the deadline: paragraphs within paragraphs are read once for each of them."""
    for element in elements:
        if time.monotonic() > deadline:
            raise TooLarge("reading its text takes too long")
        yield element
