"""Marks in the HTML of a page that its style sheet needs on narrow screens."""

from __future__ import annotations

import html
import re

MAX_UNBROKEN = 32
"""Characters of inline code that stays on one line: it fits on a phone of 390 px."""
MAX_BESIDE_BUTTON = 74
"""Characters of a line of a block that the button to copy it does not cover, in a window of 1,280 px."""
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_BLOCK = re.compile(r'<div class="([^"]*\bhighlight)">(<pre>.*?</pre>)</div>', re.DOTALL)
_CODE = re.compile(r"(<pre>.*?</pre>|<h[1-6].*?</h[1-6]>)|<code>(.*?)</code>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_REASON = re.compile(r"^<!-- not run: (.*?) -->$", re.MULTILINE)


def mark_page(page: str) -> str:
    """The page with marks on cells, short code and long lines of blocks."""
    page = _TABLE.sub(lambda match: _mark_cells(match[0]), page)
    page = _BLOCK.sub(_mark_block, page)
    return _CODE.sub(_mark_code, page)


def show_reasons(markdown: str) -> str:
    """The text with a line before each block that no test runs, which says why."""
    return _REASON.sub(r"*No test runs these commands: \1.*\n", markdown)


def read_text(markup: str) -> str:
    """Words of a piece of HTML."""
    return html.unescape(_TAG.sub("", markup)).strip()


def _mark_cells(table: str) -> str:
    """The table with each cell's column as an attribute, and with roles: on a phone its rows become blocks."""
    columns = [read_text(cell) for cell in re.findall(r"<th\b[^>]*>(.*?)</th>", table, re.DOTALL)]
    head, row, body = table.partition("<tbody>")
    head = re.sub(r"<th\b", '<th role="columnheader"', head).replace("<tr>", '<tr role="row">')
    rows = [_mark_row(part, columns) for part in body.split("</tr>")]
    marked = head + row + "</tr>".join(rows)
    marked = re.sub(r"<(thead|tbody)>", r'<\1 role="rowgroup">', marked)
    return marked.replace("<table>", '<table role="table">')


def _mark_row(row: str, columns: list[str]) -> str:
    names = iter(columns)

    def mark(match: re.Match[str]) -> str:
        name = html.escape(next(names, ""), quote=True)
        return f'<td role="cell" data-column="{name}"{match[1]}>'

    return re.sub(r"<td\b([^>]*)>", mark, row).replace("<tr>", '<tr role="row">')


def _mark_block(match: re.Match[str]) -> str:
    lines = html.unescape(_TAG.sub("", match[2])).splitlines()
    wide = max(map(len, lines), default=0) > MAX_BESIDE_BUTTON
    return f'<div class="{match[1]}{" wide" if wide else ""}">{match[2]}</div>'


def _mark_code(match: re.Match[str]) -> str:
    if match[1] is not None or len(read_text(match[2])) > MAX_UNBROKEN:
        return match[0]
    return f'<code class="unbroken">{match[2]}</code>'
