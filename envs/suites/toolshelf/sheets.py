"""Workbooks for the spreadsheet server to read: the few files that an .xlsx must have, always the same bytes.

Source: ECMA-376, Office Open XML, parts 1 (SpreadsheetML) and 2 (packages).
"""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

from gymcp.types import Json

_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_PARTS = {
    "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPE}.sheet.main+xml"/>'
    f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{_TYPE}.worksheet+xml"/></Types>',
    "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}">'
    '<sheets><sheet name="Sheet1" sheetId="1" r:id="rId1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{_OFFICE}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
}


def make_sheet(header: Sequence[str], rows: Iterable[Sequence[Json]], name: str = "figures.xlsx") -> Json:
    """The initial state of a server that has one workbook with this table on its only sheet."""
    lines = "".join(_row(number, values) for number, values in enumerate([header, *rows], start=1))
    sheet = f'<worksheet xmlns="{_MAIN}"><sheetData>{lines}</sheetData></worksheet>'
    workbook = io.BytesIO()
    with zipfile.ZipFile(workbook, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in {**_PARTS, "xl/worksheets/sheet1.xml": sheet}.items():
            archive.writestr(zipfile.ZipInfo(path, date_time=(2026, 1, 1, 0, 0, 0)), _HEAD + text)
    return {"files": {name: {"base64": base64.b64encode(workbook.getvalue()).decode()}}}


def _row(number: int, values: Iterable[Json]) -> str:
    cells = "".join(_cell(f"{chr(ord('A') + place)}{number}", value) for place, value in enumerate(values))
    return f'<row r="{number}">{cells}</row>'


def _cell(at: str, value: Json) -> str:
    if isinstance(value, int | float):
        return f'<c r="{at}"><v>{value}</v></c>'
    return f'<c r="{at}" t="inlineStr"><is><t>{escape(str(value))}</t></is></c>'
