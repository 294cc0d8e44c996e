"""gymcp: any MCP tool server as a Gymnasium environment."""

from pathlib import Path

__version__ = "0.1.0"

if Path(__file__).with_name("envs").is_file():
    raise ImportError(
        "gymcp: this checkout has text files in place of the links src/gymcp/{envs,...}; "
        "run: git config core.symlinks true && git checkout -- src/gymcp"
    )
