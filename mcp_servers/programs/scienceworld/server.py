"""ScienceWorld as an MCP server: the simulator's commands as tools, the tree of the world's objects as state.

A task's initial state is ``{"task": name, "variation": number}``. The simulator runs beside the server, one for each
episode. The state has no count of moves and no object numbers: see `world_tree.py`.
"""

from __future__ import annotations

from gymcp.mcp_servers.native.runtime import ToolError, class_server
from gymcp.mcp_servers.programs.scienceworld.simulator import FULL_SCORE, Simulator

MAX_ACTION_CHARS = 300
MAX_ACTIONS_LISTED = 60
UNKNOWN = "No known action matches that input."
_NOT_TO_BE_USED = ("reset task",)
"""Actions that begin again: an episode is one attempt."""


class ScienceWorld:
    """Public methods are the tools; the public attributes are the state."""

    def __init__(self, task: str = "boil", variation: int = 0) -> None:
        self._simulator = Simulator()
        self._simulator.load(task, variation)
        self.task = f"{task}-{variation}"
        self._read_state()

    def look(self) -> str:
        """Look around: what is here. Takes no time."""
        return self._simulator.look()

    def inventory(self) -> str:
        """What you carry. Takes no time."""
        return self._simulator.list_inventory()

    def describe_task(self) -> str:
        """What you have to do."""
        return self._simulator.describe_task()

    def actions(self, containing: str = "") -> str:
        """Actions that can be done here and now, one a line: those that contain a word, such as a verb or a thing."""
        found = [each for each in self._simulator.list_actions() if containing.lower() in each.lower()]
        more = len(found) - MAX_ACTIONS_LISTED
        rest = [f"... and {more} more: name a word that they contain"] if more > 0 else []
        return "\n".join([*found[:MAX_ACTIONS_LISTED], *rest]) or "no such action"

    def act(self, action: str) -> str:
        """Do one action in plain words, such as: open door to kitchen; pick up thermometer; wait1."""
        action = " ".join(action.split())
        if self.over:
            raise ToolError("the task is over")
        if len(action) > MAX_ACTION_CHARS:
            raise ToolError(f"an action has at most {MAX_ACTION_CHARS} characters")
        if action.lower() in _NOT_TO_BE_USED:
            raise ToolError("there is no way to begin again")
        said = self._simulator.act(action)
        self._read_state()
        if said.startswith(UNKNOWN):
            raise ToolError(said)
        return said + self._describe_end()

    def _describe_end(self) -> str:
        if not self.over:
            return ""
        return "\nThe task is done." if self.score == FULL_SCORE else "\nThe task is failed."

    def _read_state(self) -> None:
        self.score = self._simulator.score()
        self.over = self._simulator.is_over()
        self.world = self._simulator.describe_world()


def main() -> None:
    class_server(ScienceWorld, "scienceworld").run()
