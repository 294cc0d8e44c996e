"""Harbor's own ATIF schema, in a virtualenv in gymcp's cache; the first session needs a package index."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from equipment import is_required
from verdicts import Verdicts

from gymcp.atomic import make_once
from gymcp.paths import gymcp_home
from gymcp.types import Json

HARBOR = "harbor==0.25.0 --hash=sha256:51923ac567fc57b03279e93468b105f689628bcac2cd3d541d4e44aa5c0ec309"
CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
CHECKER = Path(__file__).with_name("harbor_checker.py")


@pytest.fixture(scope="session")
def harbor() -> Verdicts:
    """Harbor's verdict on each document: its objections, or the parsed content if it has none."""
    try:
        python = _virtualenv() / "bin" / "python"
    except subprocess.CalledProcessError as error:
        if is_required("harbor"):
            raise
        pytest.skip(f"Harbor cannot be installed: {error.stderr.strip().splitlines()[-1:]}")

    def check(documents: Iterable[Json]) -> list[Json]:
        lines = "".join(json.dumps(document) + "\n" for document in documents)
        argv = [str(python), "-I", str(CHECKER)]
        done = subprocess.run(argv, input=lines, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return check


def _virtualenv() -> Path:
    """Harbor with pydantic only: its schema imports nothing else, and runs on an older Python than the rest."""

    def make(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        wanted = folder / "harbor.txt"
        wanted.write_text(HARBOR + "\n")
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--quiet", "install"]
        pip += ["--disable-pip-version-check", "--no-input", "--only-binary", ":all:"]
        options = ["--no-deps", "--ignore-requires-python", "--require-hashes", "-r", str(wanted)]
        for words in (options, ["--constraint", str(CONSTRAINTS), "pydantic"]):
            subprocess.run([*pip, *words], check=True, capture_output=True, text=True, timeout=600)

    return make_once(gymcp_home() / "tests" / f"harbor-0.25.0-py{sys.version_info.major}{sys.version_info.minor}", make)
