"""The digest program's service in this process, for tests of what it reads: nothing here needs a sandbox."""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gymcp.mcp_servers.programs.digest.server import DigestService, Files
from gymcp.mcp_servers.programs.digest.tree import Recorded, Tree
from gymcp.mcp_servers.spec import FileState
from gymcp.types import Json

Time = tuple[int, int, int, int, int, int]
NOON: Time = (2026, 1, 2, 12, 0, 0)
LATER: Time = (2027, 3, 4, 5, 6, 8)


@contextmanager
def open_service(folder: Path, source: FileState) -> Iterator[DigestService]:
    options = source.to_options()
    readers = tuple((each["files"], each["kind"]) for each in options["readers"])
    recorded = Recorded(source.recorded_file_bytes, source.recorded_bytes, readers)
    tree = Tree(options["limits"], options["masks"], time.time_ns(), recorded)
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield DigestService(tree, Files(tree), root, ".")
    finally:
        os.close(root)


def read_state(folder: Path, source: FileState) -> Json:
    """The answer of a new service: key and all files."""
    with open_service(folder, source) as service:
        return service.answer({"op": "state", "since": None})


def write_zip(path: Path, parts: dict[str, str], when: Time = NOON) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(zipfile.ZipInfo(name, when), text)


def write_workbook(path: Path, cells: str, when: Time = NOON) -> None:
    """A workbook with one sheet, as a library writes it: with the time in its properties and in every member."""
    moment = "-".join(map(str, when))
    parts = {
        "docProps/core.xml": f'<a xmlns:dcterms="d"><dcterms:modified type="t">{moment}</dcterms:modified></a>',
        "xl/workbook.xml": '<workbook xmlns:r="r"><sheets><sheet name="Sales" r:id="rId1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": '<a><Relationship Id="rId1" Type="o/worksheet" Target="worksheets/1.xml"/></a>',
        "xl/sharedStrings.xml": "<sst><si><t>north</t></si><si><r><t>so</t></r><r><t>uth</t></r></si></sst>",
        "xl/worksheets/1.xml": f'<worksheet xmlns="m"><sheetData><row>{cells}</row></sheetData></worksheet>',
    }
    write_zip(path, parts, when)
