"""The working folder of a program: the user's message, and the episode's tools in the formats that programs read."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gymcp.agents.programs.settings import MCP_CONFIG, PROMPT, PROMPT_FILE, STDIO_CONFIG
from gymcp.mcp_servers.programs import stdio_relay

RELAY_FOLDER = PurePosixPath("/srv/relay")
"""Folder of the relays in a sandbox."""
PROMPT_NAME, HTTP_NAME, STDIO_NAME = "prompt.txt", "mcp.json", "mcp-stdio.json"
AGENTS_NAME, CODEX_NAME = "openai-agents-mcp.json", "config.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The gateway, key and folder that a program is given in one episode."""

    address: str
    """Address of the gateway as the program reaches it."""
    token: str
    model: str
    """Name of the model."""
    folder: str
    """Path of the working folder as the program sees it."""
    confined: bool
    """True if the program runs in a sandbox."""

    @property
    def stdio_command(self) -> tuple[str, ...]:
        """The command of an MCP server over standard streams, which relays to the episode's."""
        if not self.confined:
            return (sys.executable, "-I", "-S", "-B", stdio_relay.__file__)
        return ("python3", "-I", "-S", "-B", str(RELAY_FOLDER / f"{stdio_relay.__name__.replace('.', '/')}.py"))


def make_environment(offer: Offer) -> dict[str, str]:
    """The variables that tell the program where everything is."""
    return {
        "HOME": offer.folder,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "OPENAI_BASE_URL": f"{offer.address}/v1",
        "OPENAI_API_KEY": offer.token,
        "ANTHROPIC_BASE_URL": offer.address,
        "ANTHROPIC_API_KEY": offer.token,
        "GYMCP_MODEL": offer.model,
        stdio_relay.URL_VARIABLE: f"{offer.address}/mcp",
        stdio_relay.KEY_VARIABLE: offer.token,
        "GYMCP_MCP_COMMAND": shlex.join(offer.stdio_command),
        "GYMCP_MCP_CONFIG": f"{offer.folder}/{HTTP_NAME}",
        "GYMCP_MCP_STDIO_CONFIG": f"{offer.folder}/{STDIO_NAME}",
        "GYMCP_MCP_AGENTS_CONFIG": f"{offer.folder}/{AGENTS_NAME}",
        "CODEX_HOME": offer.folder,
    }


def fill_placeholders(word: str, offer: Offer, prompt: str) -> str:
    """A word of the command with the message and the paths that it asks for."""
    paths = {PROMPT_FILE: PROMPT_NAME, MCP_CONFIG: HTTP_NAME, STDIO_CONFIG: STDIO_NAME}
    for placeholder, name in paths.items():
        word = word.replace(placeholder, f"{offer.folder}/{name}")
    return word.replace(PROMPT, prompt.encode(errors="replace").decode())


def write_files(workspace: Path, offer: Offer, prompt: str) -> None:
    """The user's message; the tools as Claude Code, Claude Desktop, Codex and the OpenAI Agents SDK read them."""
    url = f"{offer.address}/mcp"
    headers = {"Authorization": f"Bearer {offer.token}"}
    command, *arguments = offer.stdio_command
    variables = {stdio_relay.URL_VARIABLE: url, stdio_relay.KEY_VARIABLE: offer.token}
    files = {
        PROMPT_NAME: prompt,
        HTTP_NAME: _name_server({"type": "http", "url": url, "headers": headers}),
        STDIO_NAME: _name_server({"command": command, "args": arguments, "env": variables}),
        AGENTS_NAME: json.dumps({"name": "gymcp", "params": {"url": url, "headers": headers}}, indent=2),
        CODEX_NAME: _codex_settings(offer),
    }
    for name, text in files.items():
        path = workspace / name
        path.unlink(missing_ok=True)  # a program may have left a link there
        path.write_text(text, encoding="utf-8", errors="replace")


def _name_server(server: Mapping[str, object]) -> str:
    return json.dumps({"mcpServers": {"gymcp": server}}, indent=2)


def _codex_settings(offer: Offer) -> str:
    """Codex's config.toml: the model behind the gateway, and the tools. A JSON text is one of TOML, too."""
    return f"""\
model = {json.dumps(offer.model)}
model_provider = "gymcp"
web_search = "disabled"

[model_providers.gymcp]
name = "gymcp"
base_url = {json.dumps(f"{offer.address}/v1")}
env_key = "OPENAI_API_KEY"
wire_api = "responses"

[mcp_servers.gymcp]
url = {json.dumps(f"{offer.address}/mcp")}
bearer_token_env_var = "{stdio_relay.KEY_VARIABLE}"
"""
