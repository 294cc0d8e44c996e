"""Several environments as one: each task is played on the servers of its own, and graded by its grader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from gymcp.envs.spec import EnvSpec
from gymcp.envs.tool_costs import ToolCosts
from gymcp.envs.validation import check_name, check_server_specs, check_suite, resolve
from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.protocols import StateReader, User
from gymcp.types import Json, Score, Suite, Task, Trajectory

SEPARATOR = "."
"""Text between the name of an environment and the id of one of its tasks, or the name of one of its families."""


def mix_environments(name: str, specs: Sequence[EnvSpec]) -> EnvSpec:
    """One environment with the tasks of several, for example to train a policy on all of them.

    A task keeps its servers, limits, user and grader; its id is ``ENV.ID``, its first tag the environment's name, and a
    family is ``ENV.FAMILY``, or ``ENV`` for all of an environment. Levels and splits must be known to every environment
    that makes tasks for them. Steps are compared in the anchor of the environments if they have the same one, else in
    world and last observation.

    Raises ConfigError for fewer than two environments, and for settings that belong to the whole: layers, lists of
    tools, user tools, lazy servers, and costs that contradict each other.
    """
    who = check_name(name)
    if len({spec.name for spec in specs}) != len(specs) or len(specs) < 2:
        raise ConfigError(f"{who}: needs two or more environments of different names")
    for spec in specs:
        if spec.layers or spec.tools is not None or spec.user_tools or spec.lazy:
            raise ConfigError(
                f"{who}: environment '{spec.name}' has layers, a list of tools, tools of the user or lazy servers,"
                " which would hold for the others, too"
            )
    mixture = _Mixture(name, specs)
    anchors = {spec.anchor for spec in specs}
    makes_tasks = all(spec.more_tasks is not None for spec in specs)
    return EnvSpec(
        name=name,
        description=f"Tasks of {', '.join(spec.name for spec in specs)}.",
        servers=mixture.servers,
        suite=mixture.suite,
        grade=mixture.grade,
        version="+".join(f"{spec.name}-{spec.version}" for spec in specs),
        anchor=anchors.pop() if len(anchors) == 1 else "world+observation",
        user=mixture.user,
        costs=_merge_costs(who, specs),
        components=tuple(dict.fromkeys(part for spec in specs for part in spec.components)),
        more_tasks=mixture.more_tasks if makes_tasks else None,
        installed=lambda: all(spec.installed() for spec in specs),
        prepare=mixture.prepare,
    )


class _Mixture:
    """The functions of a mixed environment. Servers are made when they are first asked for, and then kept."""

    def __init__(self, name: str, specs: Sequence[EnvSpec]) -> None:
        self._name = name
        self._specs = {spec.name: spec for spec in specs}
        self._servers: dict[str, tuple[ServerSpec, ...]] = {}

    def servers(self) -> tuple[ServerSpec, ...]:
        return tuple(server for spec in self._specs.values() for server in self._servers_of(spec))

    def suite(self) -> Suite:
        suites = {name: self._suite_of(spec) for name, spec in self._specs.items()}
        return Suite(
            name=self._name,
            version="+".join(f"{suite.name}-{suite.version}" for suite in suites.values()),
            tasks=tuple(
                self._mix_task(self._specs[name], task) for name, suite in suites.items() for task in suite.tasks
            ),
            pass_at_once=_join_all({name: suite.pass_at_once for name, suite in suites.items()}),
            gold_fails=_join_all({name: suite.gold_fails for name, suite in suites.items()}),
        )

    def more_tasks(
        self, split: str, *, families: Sequence[str] | None, levels: Sequence[int] | None, count: int, first: int
    ) -> Iterator[Task]:
        """As `MoreTasks`; raises ConfigError for a family of no environment."""
        chosen = self._split_families(self._specs if families is None else families)
        for name, own in chosen.items():
            spec = self._specs[name]
            assert spec.more_tasks is not None
            for task in spec.more_tasks(split, families=own, levels=levels, count=count, first=first):
                yield self._mix_task(spec, task)

    def grade(self, task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        """The verdict of the grader of the task's own environment on the record as that environment would have it."""
        spec = self._owner(task)
        own, wrapped = self._restore_task(spec, task), self._find_only_server(spec)

        def read(ref: str) -> Json:
            state = states(ref)
            return state[wrapped] if wrapped else state

        return spec.grade(own, replace(trajectory, task=own.id, env=spec.name), read)

    def user(self, task: Task) -> User:
        spec = self._owner(task)
        return spec.user(self._restore_task(spec, task))

    def prepare(self, sandbox: Sandbox | None) -> None:
        for spec in self._specs.values():
            if spec.prepare is not None:
                spec.prepare(sandbox)

    def _owner(self, task: Task) -> EnvSpec:
        return self._specs[task.id.partition(SEPARATOR)[0]]

    def _split_families(self, families: Iterable[str]) -> dict[str, list[str] | None]:
        """Environment -> its families among those named; None: all of them."""
        found: dict[str, list[str] | None] = {}
        for family in families:
            name, _, own = family.partition(SEPARATOR)
            if name not in self._specs:
                have = ", ".join(f"{each}, {each}{SEPARATOR}FAMILY" for each in self._specs)
                raise ConfigError(f"{self._name}: no family '{family}'; have {have}")
            before = found.get(name, [])
            found[name] = None if not own or before is None else [*before, own]
        return found

    def _servers_of(self, spec: EnvSpec) -> tuple[ServerSpec, ...]:
        if spec.name not in self._servers:
            who = check_name(spec.name)
            self._servers[spec.name] = check_server_specs(who, resolve(who, "servers", spec.servers))
        return self._servers[spec.name]

    def _suite_of(self, spec: EnvSpec) -> Suite:
        who, servers = check_name(spec.name), self._servers_of(spec)
        return check_suite(who, resolve(who, "suite", spec.suite), frozenset(server.name for server in servers))

    def _find_only_server(self, spec: EnvSpec) -> str:
        """Name of the server of an environment of one, whose state stands by itself in its records; else empty."""
        servers = self._servers_of(spec)
        return servers[0].name if len(servers) == 1 else ""

    def _mix_task(self, spec: EnvSpec, task: Task) -> Task:
        """The task as it is in the mixture."""
        name, state = self._find_only_server(spec), task.initial_state
        offered = task.offer.servers or frozenset(server.name for server in self._servers_of(spec))
        return replace(
            task,
            id=_join(spec.name, task.id),
            initial_state={name: state} if name and state is not None else state,
            offer=replace(task.offer, servers=offered),
            limits=task.limits or spec.limits,
            tags=(spec.name, *task.tags),
        )

    def _restore_task(self, spec: EnvSpec, task: Task) -> Task:
        """The task as it is in its own environment."""
        name, state = self._find_only_server(spec), task.initial_state
        return replace(
            task,
            id=task.id.removeprefix(_join(spec.name, "")),
            initial_state=state[name] if name and state is not None else state,
            tags=task.tags[1:],
        )


def _join(name: str, own: str) -> str:
    return f"{name}{SEPARATOR}{own}"


def _join_all(tasks: Mapping[str, Set[str]]) -> frozenset[str]:
    """The ids that tasks of each environment have in the mixture."""
    return frozenset(_join(name, own) for name, ids in tasks.items() for own in ids)


def _merge_costs(who: str, specs: Iterable[EnvSpec]) -> ToolCosts:
    """The costs of all tools. Raises ConfigError if two environments price a tool differently."""
    first, *others = (spec.costs for spec in specs)
    tools = dict(first.tools)
    for costs in others:
        if costs.default != first.default:
            raise ConfigError(f"{who}: its environments have different costs for tools that they do not name")
        for name, cost in costs.tools.items():
            if tools.setdefault(name, cost) != cost:
                raise ConfigError(f"{who}: its environments have different costs for a call of '{name}'")
    asking = first.asking.union(*(costs.asking for costs in others))
    return ToolCosts(default=first.default, tools=tools, asking=asking)
