"""Registry of the wrappers that the command line, or the record of a run, can name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.envs.worlds.tool_listing import list_tools
from gymcp.envs.wrappers.injection import find_attack, inject_attack
from gymcp.envs.wrappers.privileges import Privileges, check_rules, enforce_privileges, parse_privileges
from gymcp.envs.wrappers.retrieval import Retrieval, check_retrieval
from gymcp.envs.wrappers.stress import add_stressors
from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperSelection:
    attack: str | None = None
    """Name of an attack of `gymcp.envs.wrappers.injection`."""
    privileges: Privileges | None = None
    stress: tuple[str, ...] = ()
    """Names of stressors; the first is next to the servers."""
    retrieval: Retrieval | None = None
    """Selection among the tools that the other wrappers leave to the agent."""

    @staticmethod
    def from_config(config: Mapping[str, Json]) -> WrapperSelection:
        """The selection in a run's `config`. Raises ConfigError."""
        rules = config.get("privileges")
        attack, stress = config.get("attack"), config.get("stress", ())
        if not (attack is None or isinstance(attack, str)):
            raise ConfigError(f"run.json: 'attack' is {attack!r:.60}, not a text")
        if not isinstance(stress, list | tuple) or not all(isinstance(name, str) for name in stress):
            raise ConfigError(f"run.json: 'stress' is {stress!r:.60}, not a list of texts")
        try:
            retrieval = Retrieval(**config["retrieval"]) if "retrieval" in config else None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"run.json: 'retrieval' cannot be read: {error}") from error
        return WrapperSelection(
            attack=attack,
            privileges=None if rules is None else parse_privileges(rules, "run.json"),
            stress=tuple(stress),
            retrieval=retrieval,
        )

    @property
    def needs_tools(self) -> bool:
        """True if `check_selection` starts the servers."""
        return self.privileges is not None or self.retrieval is not None

    def to_config(self) -> dict[str, Json]:
        """The selection as `run.json` stores it, for `from_config`."""
        config: dict[str, Json] = {}
        if self.attack is not None:
            config["attack"] = self.attack
        if self.privileges is not None:
            config["privileges"] = self.privileges.to_row()
        if self.stress:
            config["stress"] = list(self.stress)
        if self.retrieval is not None:
            config["retrieval"] = asdict(self.retrieval)
        return config

    def apply(self, spec: EnvSpec) -> LoadedEnv:
        """The environment inside all selected wrappers, loaded. Raises ConfigError."""
        if self.attack is not None:
            spec = inject_attack(spec, find_attack(self.attack))
        if self.privileges is not None:
            spec = enforce_privileges(spec, self.privileges)
        spec = add_stressors(spec, self.stress)
        if self.retrieval is not None:
            spec = replace(spec, layers=(*spec.layers, self.retrieval))
        return load_env(spec)


async def check_selection(selection: WrapperSelection, env: LoadedEnv, sandbox: Sandbox) -> None:
    """Raise ConfigError if privileges or retrieval do not fit the tools of the environment, inside its wrappers."""
    if not selection.needs_tools:
        return
    tools = await list_tools(env, sandbox)
    if selection.privileges is not None:
        check_rules(selection.privileges, tools, env.suite.tasks)
    if selection.retrieval is not None:
        check_retrieval(selection.retrieval, tuple(tools.values()))
