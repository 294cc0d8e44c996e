"""The wheel, the links and the imports: an installation has exactly the code of the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from prose import python_files

ROOT = Path(__file__).parents[1]
PAGES = {".html", ".css", ".js", ".svg"}
of_one_wheel = pytest.mark.xdist_group("wheel")
FOREIGN_PAGES = {"gguf.md"}
"""Pages of other projects, which comments name as sources."""
FOLDERS = ("mcp_servers", "envs", "agents", "evaluators", "trainers")


def start(*command: object, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """The ended command, which has the shell's variables, but none of its modules: PYTHONPATH would hide the wheel."""
    shell = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**shell, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def run(*command: object, cwd: Path | None = None, **variables: str) -> str:
    done = start(*command, cwd=cwd, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a release is: from the checkout an sdist, from the sdist the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    checkout = folder / "checkout"
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for name in names:
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name, follow_symlinks=False)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, checkout)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a virtualenv that has the wheel, and its dependencies from ours."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "dependencies.pth").write_text(ours + "\n")  # as a path: the .pth files in there are not read
    return folder / "bin" / "python"


@of_one_wheel
def test_the_wheel_holds_the_five_folders_and_nothing_generic(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert archive.read("gymcp/trainers/recipe/demo.toml") == (ROOT / "recipes" / "demo.toml").read_bytes()
    assert {name.split("/")[0] for name in names} == {"gymcp", "gymcp-0.1.0.dist-info"}
    sources = {f"gymcp/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    core = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "gymcp").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources | core
    policy = {f"gymcp/{path.relative_to(ROOT)}" for path in (ROOT / "agents" / "policies" / "tiny").iterdir()}
    assert {
        "gymcp/py.typed",
        "gymcp/agents/policies/engine/slot_forward.cpp",
        "gymcp/envs/catalog/servers.lock",
        "gymcp/envs/suites/agentdojo/agentdojo.lock",
        "gymcp/evaluators/report/registered/rounds-1.json",
        *policy,
    } <= set(names)
    pages = {f"gymcp/{path.relative_to(ROOT)}" for path in (ROOT / "evaluators").rglob("*") if path.suffix in PAGES}
    assert pages <= set(names)
    assert "gymcp/evaluators/viewer/static/main.js" in pages


NAMED_PAGES = re.compile(r"""\bdocs/([\w/-]+\.md)|find_page\(["']([\w/-]+\.md)""")
MAX_DOCS_BYTES = 400_000
"""Bytes of all pages in the wheel, compressed."""


@of_one_wheel
def test_every_page_that_the_code_names_is_in_the_wheel(wheel: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in python_files((*FOLDERS, "src/gymcp"))]
    named = {"".join(names) for text in texts for names in NAMED_PAGES.findall(text)} - FOREIGN_PAGES
    assert {"judge.md", "adding-a-server.md", "index.md"} <= named
    with zipfile.ZipFile(wheel) as archive:
        pages = {each.filename: each.compress_size for each in archive.infolist() if "/docs/" in each.filename}
    assert {f"gymcp/docs/{name}" for name in named} <= set(pages)
    assert {Path(name).suffix for name in pages} == {".md"}
    assert sum(pages.values()) < MAX_DOCS_BYTES


@of_one_wheel
def test_help_and_messages_of_an_installed_wheel_name_pages_that_are_there(installed: Path, tmp_path: Path) -> None:
    package = next(installed.parents[1].glob("lib/python*/site-packages/gymcp"))
    for words in ((), ("judge", "agreement")):
        said = run(installed, "-m", "gymcp.cli", *words, "--help", cwd=tmp_path)
        assert said.rstrip().splitlines()[-2:] == ["Documentation (docs/):", f"  {package}/docs"]
    wrong = start(installed, "-m", "gymcp.cli", "judge", "run", "mine", cwd=tmp_path)
    (page,) = re.findall(r"see (/\S+\.md)", wrong.stderr)
    assert Path(page).is_relative_to(package)
    assert Path(page).is_file()


@of_one_wheel
def test_the_wheel_works_from_a_clean_install_and_importing_it_prints_nothing(installed: Path, tmp_path: Path) -> None:
    """Nor does the import read environment variables of ours: the home that this one names cannot be made."""
    code = (
        "import os; os.environ['GYMCP_HOME'] = '/proc/nope';"
        "import sys, gymcp.cli.app, gymcp.trainers.credit.assign, gymcp.trainers.credit.step_batch, gymcp.envs;"
        f"print(gymcp.__file__); print(sorted(set(sys.modules) & set({FOLDERS!r})))"
    )
    where, bare = run(installed, "-c", code, cwd=tmp_path).splitlines()
    assert where.startswith(str(installed.parents[1]))
    assert bare == "[]"


@of_one_wheel
def test_a_checkout_and_its_wheel_are_the_same_code_for_nodes_of_a_cluster(installed: Path, tmp_path: Path) -> None:
    code = "from gymcp.scale.agreement import digest_code; print(digest_code())"
    of_checkout = run(
        sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); {code}", cwd=tmp_path
    )
    assert run(installed, "-c", code, cwd=tmp_path) == of_checkout


@of_one_wheel
def test_no_server_can_read_the_gold_with_the_built_wheel_installed(installed: Path, tmp_path: Path) -> None:
    """Both suites: ours in one file, and BFCL, whose own wheel carries the answers."""
    shutil.copy2(ROOT / "examples" / "bank.py", tmp_path / "bank.py")
    code = (
        "import asyncio, json, sys\n"
        "from gymcp.envs import load_env, load_spec\n"
        "from gymcp.envs.audit.leaks import find_leaks, gold_texts\n"
        "from gymcp.mcp_servers.sandbox import get_sandbox\n"
        "for name in sys.argv[1:]:\n"
        "    env = load_env(load_spec(name))\n"
        "    leaks = asyncio.run(find_leaks(env, get_sandbox('bwrap')))\n"
        "    count = sum(len(gold_texts(task)) for task in env.suite.tasks)\n"
        "    print(json.dumps([count, [leak.file + ': ' + leak.text for leak in leaks]]))\n"
    )
    least = {"bank.py": 6, "bfcl": 5000}
    lines = run(installed, "-c", code, *least, cwd=tmp_path).splitlines()
    for line, fewest in zip(lines, least.values(), strict=True):
        count, leaks = json.loads(line)
        assert (leaks, count >= fewest) == ([], True)


CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
FORBIDDEN = [contract for contract in CONTRACTS if contract["type"] == "forbidden"]
LAYERS = {contract["containers"][0]: contract["layers"] for contract in CONTRACTS if contract["type"] == "layers"}
MAP = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def rooms_of_table(folder: str) -> list[set[str]]:
    """The rooms in each row of a folder's table, lowest row first."""
    table = MAP.split(f"\n**`{folder}/`**", 1)[1].split("|---|---|\n", 1)[1].split("\n\n", 1)[0]
    return [set(re.findall(r"`(\w+)/?`", row.split("|")[1])) for row in table.splitlines()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_map_of_a_folder_is_its_import_contract(folder: str) -> None:
    layers = [set(layer.split(" | ")) for layer in LAYERS[f"gymcp.{folder}"]]
    assert rooms_of_table(folder) == layers[::-1]


def test_the_order_of_imports_on_the_map_is_the_contract() -> None:
    (order,) = re.findall(r"```\n([^`]*← store ←[^`]*)```", MAP)
    assert " ".join(order.split()).split(" ← ") == LAYERS["gymcp"][::-1]


@pytest.mark.parametrize("contract", FORBIDDEN, ids=lambda contract: contract["name"])
def test_code_in_a_sandbox_may_import_no_other_part_of_gymcp(contract: dict[str, list[str]]) -> None:
    parts = {f"gymcp.{part}" for layer in LAYERS["gymcp"] for part in layer.split(" | ")}
    assert set(contract["forbidden_modules"]) == parts - {"gymcp.mcp_servers"}


def test_imports_point_one_way() -> None:
    run(Path(sys.executable).with_name("lint-imports"), "--no-logo", cwd=ROOT, PYTHONPATH=str(ROOT / "src"))


def test_a_checkout_whose_links_became_text_says_what_to_do(tmp_path: Path) -> None:
    package = tmp_path / "gymcp"
    package.mkdir()
    shutil.copy2(ROOT / "src" / "gymcp" / "__init__.py", package)
    (package / "envs").write_text("../../envs")
    done = start(sys.executable, "-S", "-c", "import gymcp", PYTHONPATH=str(tmp_path))
    assert "git config core.symlinks true" in done.stderr
