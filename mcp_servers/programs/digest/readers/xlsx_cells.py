"""Cells of an Excel workbook: ``{"sheets": {name: {"cells": {"B2": value}, "formulas": {"B3": text}}}}``.

A value is a number, a text or a boolean; a date is the number that the file has for it, and an error is its text, such
as ``#DIV/0!``. A formula's value is the one that was computed when the file was saved, if any: a library that writes
workbooks computes none. Empty cells are left out.
"""

from __future__ import annotations

import math
import posixpath
from typing import Any
from xml.etree.ElementTree import Element

from gymcp.mcp_servers.programs.digest.readers.archives import Archive, open_archive, parse_xml
from gymcp.mcp_servers.programs.digest.readers.source import Source, Unreadable

Json = Any


def read(source: Source) -> Json:
    """Cells and formulas of each sheet, in the workbook's order. Raises Unreadable, TooLarge."""
    with open_archive(source.content) as archive:
        names = {member.filename for member in archive.members}
        texts: list[str] = []
        if "xl/sharedStrings.xml" in names:
            texts = [_text(item) for item in parse_xml(archive.read("xl/sharedStrings.xml")).findall("si")]
        parts = _sheet_parts(archive)
        return {"sheets": {name: _sheet(parse_xml(archive.read(part)), texts) for name, part in parts.items()}}


def _sheet_parts(archive: Archive) -> dict[str, str]:
    """Sheet name -> name of its part in the archive; charts on sheets of their own are left out."""
    links = {
        link.get("Id", ""): posixpath.normpath(posixpath.join("/xl", link.get("Target", ""))).lstrip("/")
        for link in parse_xml(archive.read("xl/_rels/workbook.xml.rels")).iter("Relationship")
        if link.get("Type", "").endswith("/worksheet")
    }
    sheets = parse_xml(archive.read("xl/workbook.xml")).iter("sheet")
    return {sheet.get("name", ""): links[sheet.get("id", "")] for sheet in sheets if sheet.get("id", "") in links}


def _sheet(root: Element, texts: list[str]) -> Json:
    cells: dict[str, Json] = {}
    formulas: dict[str, str] = {}
    for cell in root.iter("c"):
        place = cell.get("r", "")
        value = _value(cell, texts)
        if value is not None:
            cells[place] = value
        formula = cell.find("f")
        if formula is not None and formula.text:
            formulas[place] = formula.text
    return {"cells": cells, "formulas": formulas}


def _value(cell: Element, texts: list[str]) -> Json:
    """Value of the cell; None if it is empty. Raises Unreadable."""
    kind = cell.get("t", "n")
    if kind == "inlineStr":
        inline = cell.find("is")
        return None if inline is None else _text(inline)
    raw = cell.findtext("v")
    if raw is None or raw == "":
        return None
    try:
        if kind == "s":
            return texts[int(raw)]
        if kind == "b":
            return bool(int(raw))
        return _number(raw) if kind == "n" else raw
    except (ValueError, IndexError):
        raise Unreadable(f"cell {cell.get('r')} of the kind '{kind}' has the value {raw[:40]!r}") from None


def _number(raw: str) -> Json:
    number = float(raw)
    if not math.isfinite(number):
        raise ValueError("no finite number")
    return int(number) if number == int(number) and abs(number) < 2**53 else number


def _text(item: Element) -> str:
    """Text of a shared or inline string, whose runs may have formats; phonetic hints are left out."""
    runs = [item.findtext("t") or "", *(run.findtext("t") or "" for run in item.findall("r"))]
    return "".join(runs)
