"""MCP servers, and the sandboxes that they run in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gymcp.exports import make_getattr

if TYPE_CHECKING:
    from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
    from gymcp.mcp_servers.native.runtime import ToolError
    from gymcp.mcp_servers.native.server import native_server
    from gymcp.mcp_servers.packages.locked_server import locked_server
    from gymcp.mcp_servers.packages.native_packages import locked_packages
    from gymcp.mcp_servers.sandbox import get_sandbox
    from gymcp.mcp_servers.sandbox.spec import Launch, Limits, Mount, Sandbox
    from gymcp.mcp_servers.sessions.connect import open_session
    from gymcp.mcp_servers.sessions.session import ToolSession
    from gymcp.mcp_servers.spec import FileReader, FileState, HttpPort, Mask, ServerSpec

__all__ = [
    "FileReader",
    "FileState",
    "HttpPort",
    "Launch",
    "Limits",
    "Mask",
    "Mount",
    "Sandbox",
    "ServerSpec",
    "ToolError",
    "ToolSession",
    "get_sandbox",
    "locked_packages",
    "locked_server",
    "native_server",
    "open_session",
    "open_warm_sandbox",
]

if not TYPE_CHECKING:
    __getattr__ = make_getattr(
        __name__,
        {
            "forkserver.warm_sandbox": "open_warm_sandbox",
            "native.runtime": "ToolError",
            "native.server": "native_server",
            "packages.locked_server": "locked_server",
            "packages.native_packages": "locked_packages",
            "sandbox": "get_sandbox",
            "sandbox.spec": "Launch Limits Mount Sandbox",
            "sessions.connect": "open_session",
            "sessions.session": "ToolSession",
            "spec": "FileReader FileState HttpPort Mask ServerSpec",
        },
    )
