"""Harbor's own ATIF schema, in a folder in gymcp's cache; the first session needs a package index."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from equipment import is_required
from verdicts import Verdicts

from gymcp.atomic import make_once
from gymcp.paths import gymcp_home
from gymcp.types import Json

HARBOR = "harbor==0.25.0 --hash=sha256:51923ac567fc57b03279e93468b105f689628bcac2cd3d541d4e44aa5c0ec309"
CHECKER = Path(__file__).with_name("harbor_checker.py")
ANSWER_S = 120.0
"""Seconds for the verdict on a document; the first includes the start of the checker."""


@pytest.fixture(scope="session")
def harbor() -> Iterator[Verdicts]:
    """Harbor's verdict on each document: its objections, or the parsed content if it has none."""
    try:
        folder = _install()
    except subprocess.CalledProcessError as error:
        if is_required("harbor"):
            raise
        pytest.skip(f"Harbor cannot be installed: {error.stderr.strip().splitlines()[-1:]}")
    argv = [sys.executable, "-I", str(CHECKER), str(folder)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as checker:
        yield lambda documents: [_ask(checker, document) for document in documents]


def _ask(checker: subprocess.Popen[str], document: Json) -> Json:
    assert checker.stdin is not None
    assert checker.stdout is not None
    checker.stdin.write(json.dumps(document) + "\n")
    ready, _, _ = select.select([checker.stdout], [], [], ANSWER_S)
    assert ready, "Harbor's checker does not answer"
    line = checker.stdout.readline()
    assert line, "Harbor's checker has ended"
    return json.loads(line)


def _install() -> Path:
    """Folder of Harbor without its requirements: its schema imports pydantic only, and runs on an older Python."""

    def make(folder: Path) -> None:
        wanted = folder / "harbor.txt"
        wanted.write_text(HARBOR + "\n")
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", "install"]
        pip += ["--target", str(folder), "--only-binary", ":all:", "--no-deps", "--ignore-requires-python"]
        pip += ["--no-compile", "--require-hashes", "-r", str(wanted)]
        subprocess.run(pip, check=True, capture_output=True, text=True, timeout=600)

    return make_once(gymcp_home() / "tests" / "harbor-0.25.0", make)
