"""gymcp: any MCP tool server as a Gymnasium environment."""

__version__ = "0.1.0"
