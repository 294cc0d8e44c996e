"""Programs of one's own that cannot be locked: each is one line that names the file and the reason. Nothing is run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from source_folders import PROJECT, SCRIPT, source, write, write_shop

from gymcp.errors import ConfigError
from gymcp.mcp_servers.packages.commands import parse_command
from gymcp.mcp_servers.packages.own_source import files as files_module
from gymcp.mcp_servers.packages.own_source.lines import words_of_folder
from gymcp.mcp_servers.packages.own_source.source import read_source


@pytest.mark.parametrize(
    ("tree", "line", "said"),
    [
        ({}, "python nope.py", "nope.py' is not there"),
        ({"a.txt": ""}, "python a.txt", "is not a program; have FILE.py"),
        ({}, "python -c pass", "python '-c pass' is not understood; have python FILE.py, python -m MODULE"),
        ({}, "uv add x", "uv option 'add' is not understood; have uv run"),
        ({}, "uv run", "uv run of no program"),
        ({"s.py": ""}, "uv run fastmcp dev s.py", "'fastmcp dev s.py' is not understood; have fastmcp run FILE.py"),
        ({"s.py": ""}, "uv run mcp run s.py:a-b", "'a-b' is not the name of an object"),
        ({}, "node --eval 1", "node '--eval 1' is not understood"),
        ({"s.py": "import mcp"}, "python s.py", "imports mcp, and names no dependencies; name them in the file (PEP 7"),
        ({"s.py": "def"}, "python s.py", "'s.py', line 1: invalid syntax"),
        ({"s.py": SCRIPT.replace('"rich"', '"x @ file:///x"')}, "python s.py", "'x @ file:///x' is not from a package"),
        (
            {"s.py": SCRIPT.replace('"rich"', '"a b"')},
            "python s.py",
            "PEP 723 metadata: 'a b' is not a requirement",
        ),
        ({"s.py": SCRIPT.replace('["mcp', "[mcp")}, "python s.py", "its PEP 723 metadata: not TOML"),
        (
            {"s.py": SCRIPT.replace("# ///\nimp", '# [tool.uv.sources]\n# Rich = {path = "../rich"}\n# ///\nimp')},
            "python s.py",
            "its PEP 723 metadata: 'rich' is not from a package index ([tool.uv.sources]), so it cannot be locked by",
        ),
        (
            {"p/pyproject.toml": f'{PROJECT}[tool.uv.sources]\nmcp = {{git = "https://h.invalid/mcp"}}\n'},
            "uv run --directory p weather",
            "pyproject.toml: 'mcp' is not from a package index ([tool.uv.sources])",
        ),
        ({"s.py": "", "requirements.txt": "-r more.txt"}, "python s.py", "option '-r more.txt' is not understood"),
        ({"s.py": "", "pyproject.toml": "["}, "python s.py", "pyproject.toml: not TOML"),
        (
            {"p/pyproject.toml": '[project]\nname = "p"\ndynamic = ["dependencies"]'},
            "uv run --directory p x",
            "its dependencies are dynamic, so only its build backend knows them",
        ),
        ({"p/pyproject.toml": PROJECT}, "uv run --directory p other", "no program 'other' in [project.scripts]"),
        ({"p/pyproject.toml": PROJECT}, "uv run --directory p weather", "no module 'weather' in"),
        (
            {"p/pyproject.toml": PROJECT.replace("weather.cli:main", "os;os:x")},
            "uv run --directory p weather",
            "'os;os' is not the name of a module or a function",
        ),
        ({"p/x.py": ""}, "uv run --directory p python -m 'x;y'", "is not the name of a module"),
        ({"s.js": "", "package.json": "["}, "node s.js", "'package.json' is not JSON"),
    ],
)
def test_an_unlockable_program_is_named(tree: dict[str, str], line: str, said: str, tmp_path: Path) -> None:
    write(tmp_path, tree)
    with pytest.raises(ConfigError) as caught:
        source(line, tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tree", "words", "said"),
    [
        ({"a.py": ""}, (), "has neither pyproject.toml nor package.json"),
        ({"a.py": ""}, ("python", "a.py"), "has no pyproject.toml and no requirements.txt"),
        ({"pyproject.toml": PROJECT, "package.json": "{}"}, (), "has both pyproject.toml and package.json"),
        ({"pyproject.toml": "[project]\nname = 'x'"}, (), r"has no program \(\[project.scripts\]: none\)"),
        ({"package.json": "{}"}, (), "names no program"),
    ],
)
def test_a_folder_without_metadata_is_one_line(
    tree: dict[str, str], words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        words_of_folder("server", write(tmp_path, tree), words)


def test_a_file_in_the_place_of_a_folder_is_one_line(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": ""})
    with pytest.raises(
        ConfigError, match=r"a\.py' is a file, not a folder; give it as a command, such as python FILE\.py"
    ):
        words_of_folder("server", tmp_path / "a.py", ())


def test_a_file_that_is_not_utf_8_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_bytes(b"name = '\xe9'")
    with pytest.raises(ConfigError, match=r"'s\.py' is not UTF-8 \(byte 8\)"):
        source("python s.py", tmp_path)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    shop = write_shop(tmp_path)
    folder = write(tmp_path / "own", {"s.py": "import store", "pkg/__init__.py": ""})
    (folder / "store.py").symlink_to(shop / "store.py")
    with pytest.raises(ConfigError, match=r"'store\.py' is a link out of the folder"):
        source("python s.py", folder)
    (folder / "s.py").write_text("import pkg")
    (folder / "pkg" / "data").symlink_to(shop)
    with pytest.raises(ConfigError, match="is a link to a folder"):
        source("python s.py", folder)
    (folder / "linked").symlink_to(shop / "deep")
    (folder / "s.py").write_text("import linked")
    with pytest.raises(ConfigError, match="is a link out of the folder"):
        source("python s.py", folder)


def test_a_pipe_among_the_files_blocks_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"s.py": "import pkg", "pkg/__init__.py": ""})
    os.mkfifo(tmp_path / "pkg" / "pipe")
    with pytest.raises(ConfigError, match="'pkg/pipe' cannot be read: is not a plain file"):
        source("python s.py", tmp_path)


def test_a_name_that_a_lock_cannot_hold_is_one_line(tmp_path: Path) -> None:
    write(tmp_path, {"s.py": "import pkg", "pkg/__init__.py": "", "pkg/a\nb": ""})
    with pytest.raises(ConfigError, match=r"'pkg/a\\nb' has characters in its name that a lock cannot hold"):
        source("python s.py", tmp_path)
    (tmp_path / "pkg" / "a\nb").rename(tmp_path / "pkg" / os.fsdecode(b"\xff"))
    with pytest.raises(ConfigError, match="has characters in its name"):
        source("python s.py", tmp_path)


def test_a_deep_source_is_one_line(tmp_path: Path) -> None:
    write(tmp_path, {"s.py": "import pkg", "pkg/__init__.py": "", f"pkg/{'d/' * 60}x": ""})
    with pytest.raises(ConfigError, match="has folders more than 50 deep"):
        source("python s.py", tmp_path)


def test_a_huge_source_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"s.py": "import pkg", "pkg/__init__.py": ""})
    with (tmp_path / "pkg" / "data.bin").open("wb") as file:
        file.truncate(2_000_000_000)  # sparse
    with pytest.raises(ConfigError, match=r"has more than 100 MB: too much to hash before each run"):
        source("python s.py", tmp_path)
    (tmp_path / "pkg" / "data.bin").unlink()
    monkeypatch.setattr(files_module, "MAX_FILES", 20)
    write(tmp_path, {f"pkg/{number}.txt": "" for number in range(50)})
    with pytest.raises(ConfigError, match=r"has more than 20 files"):
        source("python s.py", tmp_path)


def test_no_folder_with_the_lock_becomes_part_of_a_source(tmp_path: Path) -> None:
    """Environments lie beside the lock, and they hold the gold."""
    write(tmp_path, {"s.py": "import pkg", "pkg/__init__.py": ""})
    wanted = parse_command("python ../s.py", base=tmp_path / "pkg")
    with pytest.raises(ConfigError, match="would be mounted with the lock and the environments beside it"):
        read_source(wanted)
