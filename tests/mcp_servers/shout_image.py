"""A small server in an image that the test builds from the base image."""

from __future__ import annotations

import shutil
from pathlib import Path

from gymcp.mcp_servers.native import runtime
from gymcp.mcp_servers.sandbox.docker.engine_api import open_engine
from gymcp.mcp_servers.sandbox.docker.images import build_dockerfile, inspect

SERVER = '''
import sys
sys.path.insert(0, "/srv/shout")
from runtime import Server

server = Server("shout")

@server.tool()
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper() + "".join(sys.argv[1:])

server.run()
'''
DOCKERFILE = """
FROM gymcp-base
COPY server.py runtime.py /srv/shout/
ENTRYPOINT ["python3", "-I", "-S", "/srv/shout/server.py"]
"""


class Shout:
    """A folder with a Dockerfile, and the images that were built from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        shutil.copy(Path(runtime.__file__), folder / "runtime.py")
        (folder / "Dockerfile").write_text(DOCKERFILE)
        (folder / "server.py").write_text(f"{SERVER}# {folder}\n")  # content that no image has yet
        self.name = f"gymcp-test-{folder.parent.name.lower().strip('_')}:1"
        self._builds = 0
        self._ids: list[str] = []

    def build(self) -> str:
        """Build the folder's image and return its name."""
        self._builds += 1
        copy = shutil.copytree(self.folder, self.folder.with_name(f"build-{self._builds}"))
        built = build_dockerfile(copy / "Dockerfile", lambda text: None)
        repo, tag = self.name.split(":")
        with open_engine() as client:
            client.tag(built, repo, tag)
        self._ids.append(self.id())
        return self.name

    def id(self) -> str:
        """Id of the image that the name stands for now."""
        found = inspect(self.name)
        assert found is not None
        return str(found["Id"])

    def change(self, old: str, new: str) -> None:
        text = (self.folder / "server.py").read_text()
        assert old in text
        (self.folder / "server.py").write_text(text.replace(old, new))

    def remove(self) -> None:
        """Remove every image that was built."""
        for found in self._ids:
            if inspect(found) is not None:
                with open_engine() as client:
                    client.remove_image(found, force=True)
