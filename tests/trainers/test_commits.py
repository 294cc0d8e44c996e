"""A registration counts only as it is committed (benchmarks/comparisons/commits.py)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from comparisons.commits import check_committed

from gymcp.errors import ConfigError

WHO = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]


def test_a_file_counts_only_as_it_is_committed(tmp_path: Path) -> None:
    path, other = tmp_path / "rounds-1.toml", tmp_path / "grpo-0.001.json"
    path.write_text("seeds = [1]\n")
    with pytest.raises(ConfigError, match="no git commit here"):
        check_committed([path])
    for words in (["init", "-q"], ["add", "."], [*WHO, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    assert len(check_committed([path])) == 40
    other.write_text("{}")
    with pytest.raises(ConfigError, match=r"grpo-0\.001\.json: is not committed as it is"):
        check_committed([path, other])
    path.write_text("seeds = [2]\n")
    with pytest.raises(ConfigError, match=r"rounds-1\.toml: is not committed as it is: commit it before the first"):
        check_committed([path])
