"""Registration of the catalog with Gymnasium."""

from __future__ import annotations

import gymnasium

from gymcp.envs import catalog


def register_catalog() -> None:
    """Registers each environment of the catalog as ``gymcp/NAME-v0``, unless the id is registered already."""
    for name in catalog.names():
        env_id = f"gymcp/{name}-v0"
        if env_id not in gymnasium.registry:
            gymnasium.register(id=env_id, entry_point="gymcp.envs.gym:McpEnv", kwargs={"env": name})
