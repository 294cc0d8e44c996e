"""``gymcp host`` on the command line, and the verbs that read what it records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from cli_runner import BANK, gymcp
from page_blocks import DOCS, ROOT, play_page

from gymcp.host.openapi import describe_api


def test_the_page_plays_and_its_run_is_read_as_any(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    assert play_page(DOCS / "host.md", tmp_path) == 1
    run = tmp_path / "runs" / "hosted" / "bank-payer"
    gold = tmp_path / "runs" / "gold"
    assert gymcp("eval", BANK, "--out", gold).returncode == 0
    for words in (("grade", run), ("compare", run, gold)):
        done = gymcp(*words, cwd=tmp_path)
        assert done.returncode == 0, (words, done.stderr)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (run, gold)]
    assert [(each["episodes"], each["success"]) for each in summaries] == [(3, 1.0), (3, 1.0)]
    assert [path.name for path in (tmp_path / "runs" / "hosted").iterdir()] == ["bank-payer"]


def test_the_openapi_document_needs_no_environment() -> None:
    done = gymcp("host", "--openapi")
    assert (done.returncode, json.loads(done.stdout)) == (0, describe_api())
