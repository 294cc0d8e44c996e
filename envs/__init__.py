"""Environments. Importing this registers the catalog with Gymnasium: ``gymnasium.make("gymcp/bfcl-v0")``."""

from gymcp.envs.catalog import load_spec
from gymcp.envs.gym import McpEnv
from gymcp.envs.gymnasium_registration import register_catalog
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env

__all__ = ["EnvSpec", "LoadedEnv", "McpEnv", "load_env", "load_spec", "register_catalog"]

register_catalog()
