"""What defines an environment: one `EnvSpec`, in one file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from gymcp.envs.attack_surface import Surface
from gymcp.envs.layers import Layer
from gymcp.envs.users import ScriptedUser
from gymcp.envs.validation import check_name, check_servers, check_suite, made
from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.protocols import Grader, User
from gymcp.types import EpisodeLimits, Suite, Task

Anchor = Literal["world", "world+observation", "world+history"]


class MoreTasks(Protocol):
    """Makes the tasks of a split, numbered from `first`, `count` for each family and level; the same ones each time.

    Without families, those that the split is about; of families that it has not, none. Raises ConfigError for a split,
    family or level that there is not.
    """

    def __call__(
        self, split: str, *, families: Sequence[str] | None, levels: Sequence[int] | None, count: int, first: int
    ) -> Iterable[Task]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """An environment: servers, tasks and a grader.

    With one server, a task's ``initial_state`` is that server's and a recorded state is the server's; with several,
    both are mappings by server name, of however many of them a task has (`Task.servers`).
    """

    name: str
    servers: Callable[[], tuple[ServerSpec, ...]] | tuple[ServerSpec, ...]
    """A function where making the specs installs something."""
    suite: Callable[[], Suite] | Suite
    grade: Grader
    description: str = ""
    """One line for people."""
    version: str = "0"
    """Part of every state key: bump it when the servers behave differently."""
    anchor: Anchor = "world+observation"
    """What two steps must share to be compared by step-level credit, always within one task."""
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    tools: frozenset[str] | None = None
    """The tools on offer; None: all that the servers list. Never those of `user_tools`."""
    user: Callable[[Task], User] = lambda task: ScriptedUser(task.prompts)
    """Who speaks first, and answers when the agent speaks."""
    user_tools: frozenset[str] = frozenset()
    """The servers' tools that only the user has: agent and user share the world. No layer stands before them."""
    cost: Callable[[str], float] = lambda tool: 0.0
    """Price of one call of a tool, recorded with its result."""
    more_tasks: MoreTasks | None = None
    """Tasks beyond the suite, without end: what a policy trains on. None: the suite is all there is."""
    lazy: bool = False
    """True: start a server at its first call (`gymcp.envs.episodes.lazy_server`), for episodes that call few
    of many servers. What a server lists must then not depend on a task's initial state."""
    layers: tuple[Layer, ...] = ()
    """Between agent and servers, the innermost first."""
    surfaces: Callable[[], Iterable[Surface]] | None = None
    """Where strangers' text enters the worlds of the tasks, for `gymcp.envs.wrappers.injection`; None: nowhere."""
    installed: Callable[[], bool] = lambda: True
    """False while `servers` or `suite` still have something to fetch."""
    prepare: Callable[[Sandbox | None], object] | None = None
    """Installs what `servers` and `suite` need, and verifies what is there. Where code of others has to run for it, it
    does in that sandbox; None: in bubblewrap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEnv:
    """An environment with its servers and tasks at hand."""

    spec: EnvSpec
    servers: tuple[ServerSpec, ...]
    suite: Suite


def load_env(spec: EnvSpec) -> LoadedEnv:
    """Makes the servers and reads the tasks; the first time, that may install a suite.

    Raises ConfigError for what is no environment, and the UsageError of an installation that fails.
    """
    who = check_name(spec.name)
    if spec.anchor not in get_args(Anchor):
        raise ConfigError(f"{who}: no anchor {spec.anchor!r}; have {', '.join(get_args(Anchor))}")
    if not callable(spec.grade):
        raise ConfigError(f"{who}: its grade must be a function, not {spec.grade!r}")
    servers = check_servers(who, made(who, "servers", spec.servers))
    suite = check_suite(who, made(who, "suite", spec.suite), frozenset(server.name for server in servers))
    return LoadedEnv(spec=spec, servers=servers, suite=suite)
