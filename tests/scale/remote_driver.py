"""A driver with files that no node sees, and the project of a user for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cli_runner import BANK
from ray_nodes import RayCluster

from gymcp.mcp_servers.sandbox.bwrap_program import find_bwrap

WAIT_S = 300.0
AGENT = """
from pathlib import Path
from gymcp.agents.strategies.scripted import SCRIPTED
WORDS = Path(__file__).with_name("words.txt").read_text()
def own(task, seed):
    return SCRIPTED["oracle"](task, seed)
"""
HEAD = """
import sys
from pathlib import Path, PurePosixPath
from gymcp.mcp_servers.sandbox import Mount
sys.path.insert(0, str(Path(__file__).parent))
import debts_of_project
NOTES = Mount(source=Path(__file__).parents[1] / "notes", target=PurePosixPath("/srv/notes"))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A folder of the driver: `seen` is its path, which is empty on every node, `files` holds its content."""

    seen: Path
    files: Path

    def start(self, cluster: RayCluster, words: Sequence[object]) -> subprocess.Popen[str]:
        """The command, typed in the project. bubblewrap mounts the files at their path, for the driver alone."""
        mount = [find_bwrap(), "--dev-bind", "/", "/", "--bind", self.files, self.seen, "--chdir", self.seen]
        command = [*mount, sys.executable, "-m", "gymcp.cli", *words, "--ray", cluster.address]
        environment = {**os.environ, **cluster.environment}
        return subprocess.Popen(
            list(map(str, command)), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, cluster: RayCluster, *words: object) -> subprocess.CompletedProcess[str]:
        """The finished command."""
        process = self.start(cluster, words)
        out, said = process.communicate(timeout=WAIT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, said)


def make_project(folder: Path) -> Project:
    """An environment with a module and a seed of its own, an agent that reads a file, and a list of tasks."""
    project = Project(seen=folder / "project", files=folder / "files")
    project.seen.mkdir()
    for name in ("envs", "agents", "notes"):
        (project.files / name).mkdir(parents=True)
    text = BANK.read_text()
    assert "(5, 30, 100)" in text
    assert 'native_server("bank", Bank)' in text
    text = text.replace("(5, 30, 100)", "debts_of_project.DEBTS")
    text = text.replace('native_server("bank", Bank)', 'native_server("bank", Bank, mounts=(NOTES,))')
    (project.files / "envs" / "shop.py").write_text(HEAD + text)
    (project.files / "envs" / "debts_of_project.py").write_text("DEBTS = (5, 30, 100)\n")
    (project.files / "notes" / "note.txt").write_text("Ann owes Bob.\n")
    (project.files / "agents" / "own.py").write_text(AGENT)
    (project.files / "agents" / "words.txt").write_text("Hello.\n")
    (project.files / "tasks.txt").write_text("pay_back_5\npay_back_100\n")
    return project
