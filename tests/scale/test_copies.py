"""Copies of the driver's files in the cache of a node, without Ray: a node is a cache folder of its own here."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from equipment import usable

from gymcp.agents.policies.specs import parse_policy
from gymcp.cli.configs import EvalConfig, ModelConfig, ProgramConfig
from gymcp.errors import ConfigError, GymcpError, IntegrityError
from gymcp.mcp_servers.sandbox.bwrap_program import find_bwrap
from gymcp.scale.copies import collect
from gymcp.scale.copies.collect import FileCollector, collect_cache_entry, list_cache_entries
from gymcp.scale.copies.records import FileSet, PlacedFiles
from gymcp.scale.copies.sending import PACK_BYTES, RunFiles, copy_files

BIG = b"0123456789abcdef" * (PACK_BYTES // 16 + 1000)
"""Content that takes two packs."""


class Home:
    """A node: functions run with its cache, and while the folder `unseen` of the driver is not there."""

    def __init__(self, home: Path, unseen: Path | None = None, process: Executor | None = None) -> None:
        """`process`: runs the functions; None: this process does."""
        self.home, self.unseen, self._process = home, unseen, process
        self.name = home.name

    async def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
        before = os.environ["GYMCP_HOME"]
        os.environ["GYMCP_HOME"] = str(self.home)
        away = None if self.unseen is None else self.unseen.rename(self.unseen.with_name("away"))
        try:
            return (
                function(*arguments) if self._process is None else self._process.submit(function, *arguments).result()
            )
        finally:
            os.environ["GYMCP_HOME"] = before
            if away is not None and self.unseen is not None:
                away.rename(self.unseen)


def start_process(program: Path | None = None) -> Executor:
    """A process of a node, which is started at its first call; `program`: in place of Python."""
    context = multiprocessing.get_context("spawn")
    context.set_executable(sys.executable if program is None else str(program))
    return ProcessPoolExecutor(1, mp_context=context)


@pytest.fixture(autouse=True)
def driver_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The driver's own cache."""
    home = tmp_path / "driver-home"
    monkeypatch.setenv("GYMCP_HOME", str(home))
    return home


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user, in which the command is typed."""
    folder = tmp_path / "project"
    (folder / "seed" / "empty").mkdir(parents=True)
    (folder / "seed" / "a.txt").write_text("a")
    (folder / "seed" / "a.txt").chmod(0o640)
    (folder / "seed" / "link").symlink_to("a.txt")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "big.bin").write_bytes(BIG)
    monkeypatch.chdir(folder)
    return folder


def collect_all(*paths: Path) -> FileSet:
    collector = FileCollector()
    for path in paths:
        collector.add(path)
    return collector.finish()


def copy(files: FileSet | RunFiles, *nodes: Home) -> tuple[list[PlacedFiles | GymcpError], list[str]]:
    """The places, and the lines about what was sent."""
    run = files if isinstance(files, RunFiles) else RunFiles(files=files)
    said: list[str] = []
    return asyncio.run(copy_files(nodes, run, share=lambda pack: pack, say=said.append)), said


def list_tree(folder: Path) -> Mapping[str, tuple[object, ...]]:
    """Mode, and content or target, of everything below the folder."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        what = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (0 if path.is_symlink() else path.stat().st_mode, what)
    return found


def test_a_node_gets_what_it_lacks_and_nothing_twice(project: Path, tmp_path: Path) -> None:
    node = Home(tmp_path / "node", project)
    files = collect_all(project)
    (placed,), said = copy(files, node)
    assert isinstance(placed, PlacedFiles)
    assert list_tree(Path(f"{placed.root}{project}")) == list_tree(project)
    assert said == [f"copied 3 files ({(len(BIG) + 11) / 1e6:.1f} MB) to node node"]
    assert copy(files, node) == ([placed], [])
    (project / "run.sh").write_text("#!/bin/sh\nexit\n")
    (changed,), said = copy(collect_all(project), node)
    assert isinstance(changed, PlacedFiles)
    assert changed.root != placed.root
    assert said == ["copied 1 file (0.0 MB) to node node"]


def test_files_at_the_same_path_are_neither_sent_nor_copied(project: Path, tmp_path: Path) -> None:
    files = collect_all(project)
    lacking, having = Home(tmp_path / "lacking", project), Home(tmp_path / "having")
    (there, here), said = copy(files, lacking, having)
    assert isinstance(there, PlacedFiles)
    assert there.root.startswith(str(tmp_path / "lacking"))
    assert here == PlacedFiles(folder=str(project), named=(str(project),))
    assert [line.rpartition(" ")[2] for line in said] == ["lacking"]
    assert not (tmp_path / "having").exists()


def test_a_file_that_changes_on_its_way_is_refused(project: Path, tmp_path: Path) -> None:
    node = Home(tmp_path / "node", project)
    files = collect_all(project)
    (project / "big.bin").write_bytes(BIG[::-1])
    (error,), _ = copy(files, node)
    assert isinstance(error, IntegrityError)
    assert str(error).startswith(f"{project}/big.bin: its copy has another digest than the file had")
    assert not (tmp_path / "node" / "copies").exists()
    assert len(list((tmp_path / "node" / "copied-files").iterdir())) <= 2


def test_a_file_beside_the_code_may_change_on_its_way(project: Path, tmp_path: Path) -> None:
    (project / "env.py").write_text("ENV = None\n")
    (project / "run.log").write_text("first\n")
    with (project / "output.log").open("w") as output:
        collector = FileCollector()
        kept = os.dup(2)
        os.dup2(output.fileno(), 2)
        try:
            collector.add_code(project / "env.py")
        finally:
            os.dup2(kept, 2)
            os.close(kept)
    run = RunFiles(files=collector.finish(), contents=collector.contents)
    (project / "run.log").write_text("first\nsecond\n")
    (placed,), _ = copy(run, Home(tmp_path / "node", project))
    assert isinstance(placed, PlacedFiles)
    there = Path(f"{placed.root}{project}")
    assert (there / "run.log").read_text() == "first\n"
    assert not (there / "output.log").exists()


def test_a_copy_that_was_changed_is_made_anew_once_no_run_uses_it(project: Path, tmp_path: Path) -> None:
    files = collect_all(project / "seed")
    with start_process() as process:
        (placed,), _ = copy(files, Home(tmp_path / "node", project, process))
        assert isinstance(placed, PlacedFiles)
        changed = Path(f"{placed.root}{project}/seed/a.txt")
        changed.write_text("b")
        (error,), _ = copy(files, Home(tmp_path / "node", project))
        assert "another run works with these copies, and has changed them" in str(error)
    again, said = copy(files, Home(tmp_path / "node", project))
    assert again == [placed]
    assert changed.read_text() == "a"
    assert said == ["copied 1 file (0.0 MB) to node node"]


def test_a_full_disk_is_named_and_leaves_nothing(project: Path, tmp_path: Path) -> None:
    usable("bwrap")
    (tmp_path / "small").mkdir()
    program = tmp_path / "python"
    disk = ["--size", str(PACK_BYTES), "--tmpfs", str(tmp_path / "small")]
    program.write_text(f'#!/bin/sh\nexec {find_bwrap()} --dev-bind / / {" ".join(disk)} {sys.executable} "$@"\n')
    program.chmod(0o755)
    with start_process(program) as process:
        small = Home(tmp_path / "small" / "home", project, process)
        (error, placed), _ = copy(collect_all(project), small, Home(tmp_path / "node", project))
        left = process.submit(os.listdir, tmp_path / "small" / "home" / "copied-files").result()
    assert isinstance(error, ConfigError)
    assert str(error).startswith(f"{project}/big.bin: cannot be copied into the cache {tmp_path}/small/home (")
    assert "No space left on device; free space there, or set GYMCP_HOME" in str(error)
    assert isinstance(placed, PlacedFiles)
    assert [name for name in left if name.startswith(".")] == []


def test_an_item_that_is_too_large_must_be_on_the_node(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "MAX_ITEM_BYTES", len(BIG) - 1)
    files = collect_all(project / "big.bin", project / "run.sh")
    assert files.large == (f"{project}/big.bin",)
    (error,), said = copy(files, Home(tmp_path / "node", project))
    assert (
        str(error)
        == f"{project}/big.bin: is too large to be copied, and is not there; put it at the same path on this node"
    )
    assert said == []
    (project / "run.sh").rename(tmp_path / "run.sh")
    files = replace(files, entries=tuple(entry for entry in files.entries if entry.target or entry.sha256))
    (placed,), _ = copy(replace(files, entries=collect_all(tmp_path / "run.sh").entries), Home(tmp_path / "node"))
    assert placed == PlacedFiles(folder=str(project), named=files.named)


def test_code_is_copied_with_its_folder_without_caches_secrets_and_runs(project: Path) -> None:
    for name in (
        ".git/config",
        ".env",
        "__pycache__/env.pyc",
        "python/pyvenv.cfg",
        "node_modules/a.js",
        "runs/one/trajectories.sqlite",
    ):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x")
    (project / "env.py").write_text("ENV = None\n")
    collector = FileCollector()
    collector.add_code(project / "env.py")
    paths = {entry.path.removeprefix(f"{project}") for entry in collector.finish().entries}
    seed = {"/seed", "/seed/a.txt", "/seed/empty", "/seed/link"}
    assert paths == {"", "/big.bin", "/env.py", "/run.sh", "/runs", "/runs/one", "/python", *seed}
    assert collector.notes == []


def test_of_a_large_folder_only_the_code_that_was_imported_is_copied(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "MAX_CODE_BYTES", len(BIG) - 1)
    monkeypatch.syspath_prepend(str(project))
    (project / "prices_of_test_copies.py").write_text("PRICE = 3\n")
    (project / "env.py").write_text("ENV = None\n")
    importlib.import_module("prices_of_test_copies")
    collector = FileCollector()
    collector.add_code(project / "env.py")
    collector.add_modules()
    files = collector.finish()
    assert {entry.path for entry in files.entries} >= {f"{project}/env.py", f"{project}/prices_of_test_copies.py"}
    assert f"{project}/big.bin" not in {entry.path for entry in files.entries}
    assert str(project) in files.search_path
    assert collector.notes[0].startswith(f"folder {project} has more than")
    monkeypatch.setattr(collect, "MAX_ITEM_FILES", 0)
    other = FileCollector()
    other.add_modules()
    assert other.finish().large == ()
    assert f"package {project}/prices_of_test_copies.py is too large" in "\n".join(other.notes)
    del sys.modules["prices_of_test_copies"]


def test_a_path_through_a_link_leads_to_the_same_copy(project: Path, tmp_path: Path) -> None:
    (project / "data").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "rules.toml").write_text("rules = []\n")
    files = collect_all(Path("data/rules.toml"))
    (here,), _ = copy(files, Home(tmp_path / "having"))
    assert here == PlacedFiles(folder=str(project), named=(f"{project}/data/rules.toml",))
    (placed,), _ = copy(files, Home(tmp_path / "lacking", project))
    assert isinstance(placed, PlacedFiles)
    file = Path(f"{placed.root}{project}/data/rules.toml")
    assert placed.restore(str(file.resolve())) == f"{tmp_path}/elsewhere/rules.toml"


def test_entries_of_the_cache_are_copied_to_their_place(driver_home: Path, tmp_path: Path) -> None:
    suite, server = driver_home / "suites" / "shop" / "1.0-2", driver_home / "servers" / "shop-0123"
    for folder in (suite / "server", server / "bin"):
        folder.mkdir(parents=True)
        (folder / "main.py").write_text(f"print('{folder.name}')\n")
    suite.with_name("1.0-2-tasks-ab.json").write_text("[]")
    (server / "bin" / "python").symlink_to("/no/such/python")
    entries = list_cache_entries([suite / "server", server / "bin", driver_home / "programs" / "x", tmp_path])
    assert entries == ("servers/shop-0123", "suites/shop/1.0-2", "suites/shop/1.0-2-tasks-ab.json")
    node = Home(tmp_path / "node")
    run = RunFiles(files=FileSet(folder=str(tmp_path)), cache_entries=entries)
    (placed,), said = copy(run, node)
    assert placed == PlacedFiles(folder=str(tmp_path))
    assert list_tree(node.home / "suites") == list_tree(driver_home / "suites")
    assert not (node.home / "servers").exists(), "its interpreter is not there: the node installs it itself"
    assert said == ["copied 2 files (0.0 MB) to node node"]
    assert collect_cache_entry("suites/shop/1.0-2") is not None


def test_options_name_the_copies_and_records_the_originals() -> None:
    placed = PlacedFiles(folder="/home/ann", root="/cache/copies/ab", named=("/data/my agent.py", "/data", "/m"))
    config = EvalConfig(
        env="/data/env.py",
        agent="cmd:python3 '/data/my agent.py' /database --config=/data",
        policy="local:/m",
        tasks=["easy,@/data/ids", "/datum"],
        search="beam,rubric=/data/r.toml",
        program=ProgramConfig(mounts=(Path("/data"), Path("data"))),
        model=ModelConfig(system=Path("/m/../data/x")),
    )
    there = placed.locate(config)
    root = placed.root
    assert there == replace(
        config,
        env=f"{root}/data/env.py",
        agent=f"cmd:python3 '{root}/data/my agent.py' /database --config={root}/data",
        policy=f"local:{root}/m",
        tasks=[f"easy,@{root}/data/ids", "/datum"],
        search=f"beam,rubric={root}/data/r.toml",
        program=ProgramConfig(mounts=(Path(f"{root}/data"), Path("data"))),
        model=ModelConfig(system=Path(f"{root}/m/../data/x")),
    )
    assert placed.restore(there) == config
    assert PlacedFiles(folder="/home/ann", named=("/data",)).locate(config) == config


def test_a_model_keeps_its_name_in_records(driver_home: Path) -> None:
    assert parse_policy(f"local:{driver_home}/copies/ab/data/my-model").name == "/data/my-model"
    assert parse_policy("local:/data/my-model").name == "/data/my-model"
