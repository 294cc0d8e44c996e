"""The files that a program finds in its working folder, in the formats of the programs that read them."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import pytest

from gymcp.agents.programs.folder import Offer, fill_placeholders, make_environment, write_files
from gymcp.agents.programs.settings import ProgramSettings

OFFER = Offer(address="http://127.0.0.1:8642", token="key", model='a "model"', folder="/workspace", confined=True)
RELAY = ["-I", "-S", "-B", "/srv/relay/gymcp/mcp_servers/programs/stdio_relay.py"]


def test_the_documentation_names_the_limits_of_a_program() -> None:
    limits = ProgramSettings(argv=("true",)).limits
    text = (Path(__file__).parents[2] / "docs" / "agent-programs.md").read_text(encoding="utf-8")
    named = f"{limits.memory_mb} MB of memory, {limits.processes} processes and threads, or {limits.disk_mb} MB of its"
    assert named in text


def read_json(folder: Path, variable: str) -> object:
    """The file that the variable names, wherever the program sees its folder."""
    return json.loads((folder / Path(make_environment(OFFER)[variable]).name).read_text())


def test_the_tools_are_written_in_every_format(tmp_path: Path) -> None:
    write_files(tmp_path, OFFER, "Pay 5.")
    url, headers = "http://127.0.0.1:8642/mcp", {"Authorization": "Bearer key"}
    assert read_json(tmp_path, "GYMCP_MCP_CONFIG") == {
        "mcpServers": {"gymcp": {"type": "http", "url": url, "headers": headers}}
    }
    assert read_json(tmp_path, "GYMCP_MCP_STDIO_CONFIG") == {
        "mcpServers": {
            "gymcp": {"command": "python3", "args": RELAY, "env": {"GYMCP_MCP_URL": url, "GYMCP_MCP_KEY": "key"}}
        }
    }
    assert read_json(tmp_path, "GYMCP_MCP_AGENTS_CONFIG") == {
        "name": "gymcp",
        "params": {"url": url, "headers": headers},
    }
    assert shlex.split(make_environment(OFFER)["GYMCP_MCP_COMMAND"]) == ["python3", *RELAY]
    assert (tmp_path / "prompt.txt").read_text() == "Pay 5."


def test_codex_finds_its_model_and_the_tools(tmp_path: Path) -> None:
    write_files(tmp_path, OFFER, "")
    assert make_environment(OFFER)["CODEX_HOME"] == "/workspace"
    codex = tomllib.loads((tmp_path / "config.toml").read_text())
    provider = codex["model_providers"][codex["model_provider"]]
    assert (codex["model"], provider["base_url"]) == ('a "model"', "http://127.0.0.1:8642/v1")
    assert make_environment(OFFER)[provider["env_key"]] == "key"
    server = codex["mcp_servers"]["gymcp"]
    assert (server["url"], make_environment(OFFER)[server["bearer_token_env_var"]]) == (f"{OFFER.address}/mcp", "key")


def test_a_link_that_a_program_left_is_not_followed(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.write_text("mine")
    folder.mkdir()
    for name in ("prompt.txt", "mcp.json", "mcp-stdio.json", "openai-agents-mcp.json", "config.toml"):
        (folder / name).symlink_to(outside)
    write_files(folder, OFFER, "Pay 5.")
    assert outside.read_text() == "mine"
    assert not any(path.is_symlink() for path in folder.iterdir())


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("{prompt}", "Read {mcp_config}!"),
        ("--file={prompt_file}", "--file=/workspace/prompt.txt"),
        ("{mcp_config}", "/workspace/mcp.json"),
        ("{mcp_stdio_config}", "/workspace/mcp-stdio.json"),
    ],
)
def test_words_of_a_command_are_filled_in(word: str, filled: str) -> None:
    assert fill_placeholders(word, OFFER, "Read {mcp_config}!") == filled
