"""Programs of one's own as servers: their lines, their dependencies, and the files that they get. Nothing is run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from source_folders import PROJECT, SCRIPT, request, source, write, write_shop

from gymcp.errors import ConfigError, IntegrityError
from gymcp.mcp_servers.packages.commands import parse_command, read_config
from gymcp.mcp_servers.packages.install_request import InstallRequest
from gymcp.mcp_servers.packages.lockfile import LockedServer, read_lock, write_lock
from gymcp.mcp_servers.packages.own_source import typescript
from gymcp.mcp_servers.packages.own_source.lines import words_of_folder
from gymcp.mcp_servers.packages.own_source.source import check_dev, compare_source, lock_source, read_source


def lock(wanted: InstallRequest) -> LockedServer:
    return LockedServer(
        name=wanted.name,
        runtime=wanted.runtime,
        package=wanted.package,
        version="0" * 12,
        command=wanted.command(""),
        source=lock_source(read_source(wanted), wanted),
        base=wanted.base,
    )


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return write_shop(tmp_path)


@pytest.mark.parametrize(
    ("line", "name", "command"),
    [
        ("python kv_server.py --root /x", "kv", ("python", "./kv_server.py", "--root", "/x")),
        ("python3 -u ./kv_server.py", "kv", ("python", "./kv_server.py")),
        ("uv run kv_server.py", "kv", ("python", "./kv_server.py")),
        ("uv run --with 'mcp<2' kv_server.py", "kv", ("uv", "run", "--with", "mcp<2", "./kv_server.py")),
        (
            "uv run --with 'mcp>=1, <2,rich[a,b]' kv_server.py",
            "kv",
            ("uv", "run", "--with", "mcp>=1, <2", "--with", "rich[a,b]", "./kv_server.py"),
        ),
        (
            "mcp run kv_server.py",
            "kv",
            ("uv", "run", "--directory", ".", "mcp", "run", "kv_server.py"),
        ),
        (
            "uv run fastmcp run kv_server.py:app",
            "kv",
            ("uv", "run", "--directory", ".", "mcp", "run", "kv_server.py:app"),
        ),
        ("uv --directory deep run python inner.py", "inner", ("python", "./deep/inner.py")),
        ("uv run --directory . deep/inner.py", "inner", ("uv", "run", "--directory", ".", "deep/inner.py")),
        ("uv run --directory deep python -m x", "deep", ("uv", "run", "--directory", "./deep", "python", "-m", "x")),
        ("uv run --directory deep weather", "deep", ("uv", "run", "--directory", "./deep", "weather")),
    ],
)
def test_a_line_is_read_and_written(line: str, name: str, command: tuple[str, ...], shop: Path) -> None:
    wanted = request(line, shop)
    assert (wanted.name, wanted.command("")) == (name, command)
    assert parse_command(command, base=shop) == wanted


@pytest.mark.parametrize(
    "line",
    [
        "python3.12 kv_server.py",
        "/opt/venv/bin/python3.12 -u kv_server.py",
        "uv run --python 3.12 kv_server.py",
        "uv run -p 3.12 python kv_server.py",
    ],
)
def test_the_python_that_a_line_names_is_that_of_the_server(line: str, shop: Path) -> None:
    wanted = request(line, shop)
    assert (wanted.python, wanted.command("")) == ("3.12", ("python", "./kv_server.py"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python3.12 -m weather", ("--python", "3.12", "python", "-m", "weather")),
        ("uv run --with rich weather", ("--with", "rich", "weather")),
    ],
)
def test_a_line_of_uv_is_run_in_the_folder(line: str, words: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": PROJECT})
    assert words_of_folder("server", tmp_path, line.split()) == ("uv", "run", "--directory", str(tmp_path), *words)


def test_typescript_that_a_runner_runs_is_found_in_its_folder(tmp_path: Path) -> None:
    write(tmp_path, {"package.json": "{}", "src/index.ts": ""})
    assert words_of_folder("server", tmp_path, ("npx", "tsx", "src/index.ts")) == ("node", f"{tmp_path}/src/index.ts")


def test_paths_of_the_user_become_relative_to_the_lock(shop: Path, tmp_path: Path) -> None:
    wanted = parse_command("python kv_server.py", base=tmp_path / "locks", start=shop)
    assert wanted.command("") == ("python", "../kv_server.py")


def test_a_program_gets_what_it_imports_and_nothing_beside_it(shop: Path) -> None:
    found = source("python kv_server.py", shop)
    assert sorted(found.contents) == [
        "deep/__init__.py",
        "deep/data.json",
        "deep/inner.py",
        "helper_of_store.py",
        "kv_server.py",
        "store.py",
    ]
    assert (found.requires, found.start) == (("mcp>=2", "rich"), "kv_server.py")
    more = source("python kv_server.py", shop, include=("notes.txt",))
    assert set(more.contents) - set(found.contents) == {"notes.txt"}


def test_a_program_is_parsed_and_not_imported(tmp_path: Path) -> None:
    write(tmp_path, {"s.py": "import t\nopen('ran', 'w')", "t.py": "open('/tmp/gymcp-ran', 'w')\nraise SystemExit"})
    assert sorted(source("python s.py", tmp_path).contents) == ["s.py", "t.py"]
    assert not (tmp_path / "ran").exists()
    assert not Path("/tmp/gymcp-ran").exists()


def test_dependencies_come_from_the_first_file_that_names_them(tmp_path: Path) -> None:
    lines = "# tools\nmcp>=2  # the SDK\nrich==13.0 \\\n    --hash=sha256:" + "0" * 64 + "\n"
    write(tmp_path, {"s.py": "import rich", "requirements.txt": lines})
    assert source("python s.py", tmp_path).requires == ("mcp>=2", "rich==13.0")
    write(tmp_path, {"pyproject.toml": PROJECT})
    assert source("python s.py", tmp_path).requires == ("mcp",)
    write(tmp_path, {"s.py": SCRIPT.replace("import store\nfrom deep.inner import thing\n", "")})
    assert source("python s.py", tmp_path).requires == ("mcp>=2", "rich")


def test_a_module_names_its_dependencies_as_a_file_does(shop: Path) -> None:
    found = source("python -m kv_server", shop)
    assert (found.requires, found.python, found.start) == (("mcp>=2", "rich"), ">=3.9", "gymcp_start.py")


@pytest.mark.parametrize("layout", ["", "src/"])
def test_a_project_is_started_by_a_file_of_the_copy(layout: str, tmp_path: Path) -> None:
    tree = {"pyproject.toml": PROJECT, f"{layout}weather/__init__.py": "", f"{layout}weather/cli.py": "import rich"}
    write(tmp_path / "p", tree)
    write(tmp_path / "p", {"tests/test_gold.py": "SECRET = 1"})
    found = source("uv run --directory p weather", tmp_path)
    assert sorted(found.contents) == sorted(tree)
    assert found.extra["gymcp_start.py"].splitlines()[2] == "from weather.cli import main"
    assert "weather_tools-1.4.dist-info/METADATA" in found.extra
    module = source("uv run --directory p python -m weather", tmp_path)
    assert 'runpy.run_module("weather"' in module.extra["gymcp_start.py"]
    assert module.import_paths[0] == f"/srv/source/{layout}".rstrip("/")
    words = words_of_folder("server", tmp_path / "p", ())
    assert words == ("uv", "run", "--directory", str(tmp_path / "p"), "weather")


def test_a_javascript_program_gets_what_it_imports(tmp_path: Path) -> None:
    tree = {
        "package.json": '{"type": "module", "bin": "dist/index.js", "dependencies": {"zod": "^3.0.0"}}',
        "dist/index.js": 'import { a } from "./a.js";\nimport "zod";\nconst b = await import("../lib/b");\n',
        "dist/a.js": "",
        "lib/b/index.js": "",
        "gold.js": "",
    }
    write(tmp_path, tree)
    found = source("node dist/index.js", tmp_path)
    assert sorted(found.contents) == sorted(tree.keys() - {"gold.js"})
    assert found.requires == ("zod@^3.0.0",)
    assert words_of_folder("server", tmp_path, ()) == ("node", str(tmp_path / "dist/index.js"))


def test_a_typescript_program_is_started_with_the_project_s_compiler(tmp_path: Path) -> None:
    package = {"type": "module", "bin": "src/kv.ts", "devDependencies": {"typescript": "^5.4.0", "vitest": "1.0.0"}}
    tree = {
        "package.json": json.dumps(package),
        "src/kv.ts": 'import { tools } from "./tools.js";\nimport type { T } from "./types";\n',
        "src/tools.ts": "",
        "src/types.ts": "",
        "src/gold.ts": "",
    }
    write(tmp_path, tree)
    for line in ("node src/kv.ts", "npx -y tsx src/kv.ts", "tsx ./src/kv.ts", "ts-node src/kv.ts"):
        found = source(line, tmp_path)
        assert sorted(found.contents) == sorted(tree.keys() - {"src/gold.ts"})
        assert (found.requires, found.start) == (("typescript@^5.4.0",), "gymcp_start.mjs")
        assert 'new URL("./src/kv.ts", import.meta.url)' in found.extra["gymcp_start.mjs"]


@pytest.mark.parametrize(
    ("node", "name", "compiler", "said"),
    [
        ((20, 20), "s.js", None, {}),
        ((20, 20), "s.ts", "5.4.0", {"typescript": "5.4.0"}),
        ((20, 20), "s.ts", None, "'s.ts' is TypeScript, which node 20.20 does not run"),
        ((20, 20), "s.cts", "5.4.0", "npm install --save-dev typescript, or build it"),
        ((18, 0), "s.ts", "5.4.0", "which node 18.0 does not run"),
        ((22, 18), "s.ts", None, {}),
        ((24, 0), "s.mts", "5.4.0", {"typescript": "5.4.0"}),
    ],
)
def test_typescript_needs_a_compiler_or_a_new_node(
    node: tuple[int, int],
    name: str,
    compiler: str | None,
    said: str | dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(typescript, "node_version", lambda: node)
    content = {"devDependencies": {"typescript": compiler}} if compiler else {}
    if isinstance(said, dict):
        assert typescript.find_compiler("server", name, content) == said
    else:
        with pytest.raises(ConfigError, match=said):
            typescript.find_compiler("server", name, content)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"store.py": "x = 1"}, "source file 'store.py' has changed since it was locked"),
        ({"deep/new.py": ""}, "source file 'deep/new.py' is new since it was locked"),
        ({"kv_server.py": SCRIPT.replace("import store\n", "")}, "source file 'kv_server.py' has changed since it"),
        (
            {"kv_server.py": SCRIPT.replace('"rich"', '"httpx"')},
            "its dependencies were mcp>=2, rich when it was locked",
        ),
    ],
)
def test_a_change_is_named_with_the_command_that_accepts_it(change: dict[str, str], said: str, shop: Path) -> None:
    wanted = request("python kv_server.py", shop)
    server = lock(wanted)
    compare_source(server, read_source(wanted))
    write(shop, change)
    with pytest.raises(IntegrityError) as caught:
        compare_source(server, read_source(wanted))
    assert said in str(caught.value)
    assert str(caught.value).endswith("; to accept that run: gymcp servers lock kv")


def test_the_command_that_accepts_a_change_finds_the_lock(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shop / "servers.lock"
    write_lock(path, {"kv": lock(request("python kv_server.py", shop))})
    write(shop, {"store.py": "import os"})
    for folder, option in (
        (shop, ""),
        (shop.parent, f" --lock {shop.name}/servers.lock"),
        (shop / "deep", f" --lock {path}"),
    ):
        monkeypatch.chdir(folder)
        with pytest.raises(IntegrityError) as caught:
            compare_source(read_lock(path)["kv"], source("python kv_server.py", shop))
        assert str(caught.value).endswith(f"; to accept that run: gymcp servers lock kv{option}")


def test_dev_accepts_changed_code_but_no_changed_dependencies(shop: Path) -> None:
    wanted = request("python kv_server.py", shop, dev=True)
    server = lock(wanted)
    write(shop, {"store.py": "x = 1"})
    compare_source(server, read_source(wanted))
    write(shop, {"kv_server.py": SCRIPT.replace('"rich"', '"httpx"')})
    with pytest.raises(IntegrityError, match="its dependencies were mcp>=2, rich when it was locked, and are now mcp"):
        compare_source(server, read_source(wanted))


def test_dev_shows_no_files_outside_of_the_lock_s_folder(shop: Path, tmp_path: Path) -> None:
    """A lock comes from others: with --dev no hash says which files it may name."""
    outside = parse_command("python kv_server.py", base=shop / "deep", start=shop)
    with pytest.raises(ConfigError, match=r"--dev: the source in '\.\.' is not below the lock's folder"):
        check_dev(replace(outside, dev=True))
    (shop / "deep" / "link").symlink_to(shop)
    through_link = parse_command("python link/kv_server.py", base=shop / "deep")
    with pytest.raises(ConfigError, match="is not below the lock's folder"):
        check_dev(replace(through_link, dev=True))


def test_a_lock_keeps_the_source(shop: Path) -> None:
    server = lock(request("python kv_server.py", shop, include=("notes.txt",), constraints=("mcp<3",)))
    write_lock(shop / "servers.lock", {"kv": server})
    assert read_lock(shop / "servers.lock") == {"kv": server}
    text = (shop / "servers.lock").read_text()
    (shop / "servers.lock").write_text(text.replace('"store.py" = "', '"store.py" = "00').replace('00"', '"', 1))
    for old, new, said in [
        ('"store.py" = ', '"../store.py" = ', "is not a path below the source"),
        ('include = [\n    "notes.txt",', 'include = [\n    "/etc",', "is not a path below the source"),
        ('package = "./kv_server.py"', 'package = "kv"', "is not the path of a source"),
    ]:
        assert old in text
        (shop / "servers.lock").write_text(text.replace(old, new))
        with pytest.raises(ConfigError, match=said):
            read_lock(shop / "servers.lock")
    assert server.source is not None
    digest = server.source.sha256
    (shop / "servers.lock").write_text(text.replace(digest, "0" * 64))
    with pytest.raises(IntegrityError, match="the hash of its source does not belong to its files"):
        read_lock(shop / "servers.lock")


def test_an_entry_of_claude_s_file_names_a_program(shop: Path, tmp_path: Path) -> None:
    entries = {
        "one": f'{{"command": "python", "args": ["{shop}/kv_server.py"], "env": {{"MODE": "x"}}}}',
        "two": f'{{"command": "uv", "args": ["--directory", "{shop}", "run", "kv_server.py"]}}',
        "three": '{"command": "python", "args": ["kv_server.py"]}',
    }
    path = tmp_path / "claude_desktop_config.json"
    path.write_text('{"mcpServers": {' + ", ".join(f'"{name}": {row}' for name, row in entries.items()) + "}}")
    found = read_config(path, base=tmp_path)
    assert [wanted.command("") for wanted in found] == [("python", "./kv_server.py")] * 3
    assert dict(found[0].env) == {"MODE": "x"}
    path.write_text(
        '{"mcpServers": {"one": {"command": "python", "args": ["kv_server.py"], "env": {"API_KEY": "s3"}}}}'
    )
    with pytest.raises(ConfigError, match="env 'API_KEY' looks like a secret"):
        read_config(path, base=tmp_path)
