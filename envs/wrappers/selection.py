"""The wrappers that a run was asked for, from the command line or from the record of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.envs.wrappers.injection import find_attack, injected
from gymcp.envs.wrappers.privileges import Privileges, parse_privileges, privileged
from gymcp.envs.wrappers.retrieval import Retrieval
from gymcp.envs.wrappers.stress import stressed
from gymcp.errors import ConfigError
from gymcp.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Worn:
    attack: str | None = None
    privileges: Privileges | None = None
    stress: tuple[str, ...] = ()
    """Stressors, the first next to the servers."""
    retrieval: Retrieval | None = None
    """Which tools an agent is shown, of all that the others leave it."""

    @staticmethod
    def of(config: Mapping[str, Json]) -> Worn:
        """What a run's `config` says. Raises ConfigError."""
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
        return Worn(
            attack=attack,
            privileges=None if rules is None else parse_privileges(rules, "run.json"),
            stress=tuple(stress),
            retrieval=retrieval,
        )

    def config(self) -> dict[str, Json]:
        """What `run.json` keeps: enough to wear the same again."""
        found: dict[str, Json] = {}
        if self.attack is not None:
            found["attack"] = self.attack
        if self.privileges is not None:
            found["privileges"] = self.privileges.to_row()
        if self.stress:
            found["stress"] = list(self.stress)
        if self.retrieval is not None:
            found["retrieval"] = asdict(self.retrieval)
        return found

    def over(self, spec: EnvSpec) -> LoadedEnv:
        """The environment, loaded, with all of it around it. Raises ConfigError."""
        if self.attack is not None:
            spec = injected(spec, find_attack(self.attack))
        if self.privileges is not None:
            spec = privileged(spec, self.privileges)
        spec = stressed(spec, self.stress)
        if self.retrieval is not None:
            spec = replace(spec, layers=(*spec.layers, self.retrieval))
        return load_env(spec)
