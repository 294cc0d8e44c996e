"""Files that hold an environment's solutions, which agent programs must not read."""

from __future__ import annotations

import py_compile
from collections.abc import Callable
from pathlib import Path

import pytest

from gymcp.agents.programs.launch import find_program
from gymcp.agents.programs.settings import make_program
from gymcp.envs.catalog import list_own_files
from gymcp.user_code import find_plugins, load_plugin, load_user_module

Install = Callable[[str, dict[str, str], str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution with these files and entry points in a folder of packages that only this test has."""
    site = tmp_path / "lib" / "site-packages"
    site.mkdir(parents=True)
    monkeypatch.syspath_prepend(site)

    def add(name: str, files: dict[str, str], entries: str) -> None:
        about = f"{name}-1.0.dist-info"
        written = {
            **files,
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
            f"{about}/entry_points.txt": entries,
        }
        for path, text in written.items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_text(text)
        (site / about / "RECORD").write_text("".join(f"{path},,\n" for path in written))

    return add


def targets(argv: str, env: str, folder: Path) -> list[Path]:
    """Paths that are covered by an empty file or folder in the sandbox of a program that is shown the folder."""
    _, mounts = find_program(make_program(argv, mounts=[folder], env=env))
    return [Path(mount.target) for mount in mounts if mount.source != Path(mount.target)]


def test_the_package_of_a_plug_in_is_hidden_and_its_neighbours_are_not(install: Install, tmp_path: Path) -> None:
    files = {
        "shop_tasks/__init__.py": "",
        "shop_tasks/gold/pay.json": "{}",
        "shop_env.py": "ENV = None\n",
        "shared_space/shop/__init__.py": "",
        "shared_space/prices.json": "{}",
    }
    install("shop", files, "[gymcp.envs]\nshop-of-test = shop_env:ENV\n")
    install("other", {"shared_space/other/__init__.py": "", "other.py": ""}, "")
    site = tmp_path / "lib" / "site-packages"
    (site / "__pycache__").mkdir()
    found = targets("cmd:sh", "shop-of-test", tmp_path)
    assert found == [
        site / "__pycache__",
        site / "shared_space" / "prices.json",
        site / "shared_space" / "shop",
        site / "shop_env.py",
        site / "shop_tasks",
    ]


def test_an_editable_plug_in_is_hidden_where_its_source_lies(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "project" / "src"
    (source / "edited_shop").mkdir(parents=True)
    (source / "edited_shop" / "__init__.py").write_text("import edited_gold\nENV = None\n")
    (source / "edited_gold.py").touch()
    (source / "unrelated.py").touch()
    install("edited", {}, "[gymcp.envs]\nedited-shop = edited_shop:ENV\n")
    monkeypatch.syspath_prepend(source)
    load_plugin(find_plugins("gymcp.envs")["edited-shop"])
    assert list_own_files("edited-shop") == (source / "edited_gold.py", source / "edited_shop")


def test_the_modules_that_a_file_imports_are_hidden_with_their_byte_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    (folder / "own_tasks").mkdir(parents=True)
    (folder / "own_tasks" / "__init__.py").touch()
    (folder / "own_tasks" / "later.py").touch()
    (folder / "own_gold.py").touch()
    (folder / "agent.py").touch()
    (folder / "env.py").write_text("import own_gold\nimport own_tasks.later\n")
    monkeypatch.syspath_prepend(folder)
    load_user_module(folder / "env.py", what="environment", name="gymcp_env_env")
    py_compile.compile(str(folder / "own_gold.py"))  # as an import does, unless it is told not to
    (tmp_path / "link").symlink_to(folder)
    hidden = ["__pycache__", "env.py", "own_gold.py", "own_tasks"]
    assert targets("cmd:sh", str(folder / "env.py"), folder) == [folder / name for name in hidden]
    assert targets("cmd:sh", str(folder / "env.py"), tmp_path / "link") == [tmp_path / "link" / name for name in hidden]


def test_gymcps_own_environments_have_no_files_beside_gymcp() -> None:
    assert list_own_files("backoffice") == ()
    assert list_own_files("no-such-environment") == ()
