"""The definition of an environment: one `EnvSpec`, in one file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Protocol, get_args

from gymcp.envs.anchors import StateAnchor
from gymcp.envs.attack_surface import Surface
from gymcp.envs.layers import Layer
from gymcp.envs.tool_costs import CostVector, ToolCosts, check_costs, episode_costs
from gymcp.envs.users import ScriptedUser
from gymcp.envs.validation import check_name, check_server_specs, check_suite, resolve
from gymcp.errors import ConfigError
from gymcp.evaluators.judge.asking import JudgeSeat
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.protocols import GRADER_PARAMETERS, Grader, User
from gymcp.types import EpisodeLimits, Step, Suite, Task
from gymcp.user_code import check_signature

FIRST_DEMONSTRATION = 500_000
"""First number of the tasks of `train` that are demonstrated; those that are trained on are numbered from 0."""


class MoreTasks(Protocol):
    """Generator of tasks: for a split, `count` tasks for each family and level, numbered from `first`.

    The same arguments give the same tasks. Without `families`, the families of the split; families that the split does
    not have give no tasks. The split `train` has a task of each kind for every number, and no id twice: training takes
    two tasks of one id for the same. Another split may end: the numbers after its last one give no tasks. Raises
    ConfigError for an unknown split, family or level.
    """

    def __call__(
        self, split: str, *, families: Sequence[str] | None, levels: Sequence[int] | None, count: int, first: int
    ) -> Iterable[Task]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """An environment: servers, tasks and a grader.

    With one server, a task's ``initial_state`` and a recorded state are those of the server. With several servers, both
    are mappings from server name to state, for the servers that the task uses (`ToolOffer.servers`).
    """

    name: str
    servers: Callable[[], tuple[ServerSpec, ...]] | tuple[ServerSpec, ...]
    """The servers; a function if making the specs installs something."""
    suite: Callable[[], Suite] | Suite
    grade: Grader
    description: str = ""
    """One line that describes the environment to people."""
    version: str = "0"
    """Part of every state key: change it when the servers behave differently."""
    anchor: StateAnchor = "world+observation"
    """State that two steps of a task must share to be compared by step-level credit."""
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    tools: frozenset[str] | None = None
    """Names of the tools on offer; None: all that the servers list. Tools in `user_tools` are never on offer."""
    user: Callable[[Task], User] = lambda task: ScriptedUser(task.prompts)
    """The user of a task, who speaks first and answers when the agent speaks."""
    user_tools: frozenset[str] = frozenset()
    """Names of the servers' tools that only the user has, so that agent and user share the world. No layer sees their
    calls."""
    costs: ToolCosts = field(default_factory=ToolCosts)
    """Cost of one call of each tool. Its money is recorded with the result; the rest is computed from the record."""
    components: tuple[str, ...] = ()
    """Components of the grader's verdict that a recipe may name (``[reward] components``); an episode may lack some."""
    more_tasks: MoreTasks | None = None
    """Generator of tasks beyond the suite, for training; None: there are only those of the suite."""
    lazy: bool = False
    """True: start each server at its first call (`gymcp.envs.worlds.lazy_server`), for episodes that call few of many
    servers. The tools of a server must then not depend on a task's initial state."""
    layers: tuple[Layer, ...] = ()
    """Layers between agent and servers, the innermost first."""
    surfaces: Callable[[], Iterable[Surface]] | None = None
    """Places at which strangers' text enters the tasks' worlds (`gymcp.envs.wrappers.injection`); None: none."""
    installed: Callable[[], bool] = lambda: True
    """False while `servers` or `suite` must still download something."""
    prepare: Callable[[Sandbox | None], object] | None = None
    """Installs what `servers` and `suite` need, and verifies what is installed. Third-party code that must run for it
    runs in the given sandbox; None: in bubblewrap."""
    cost: InitVar[object] = None
    """Old name of `costs`, which is refused."""

    def __post_init__(self, cost: object) -> None:
        """Raises ConfigError for `cost`."""
        if cost is not None:
            raise ConfigError(
                f"environment '{self.name}': 'cost' is now 'costs', a record for each tool:"
                " costs=ToolCosts(tools={NAME: CallCost(money=PRICE)}), both of gymcp.envs"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEnv:
    """An environment with its servers made and its tasks loaded."""

    spec: EnvSpec
    servers: tuple[ServerSpec, ...]
    suite: Suite
    judge: JudgeSeat | None = None
    """Model that graders ask (`gymcp.evaluators.judge.judge_by_rubric`); None: they get no answer and give no score."""


def price_steps(spec: EnvSpec) -> Callable[[Sequence[Step]], CostVector]:
    """Function from an episode's steps to the cost of their calls, by the components that the environment declares."""
    return partial(episode_costs, costs=spec.costs)


def load_env(spec: EnvSpec) -> LoadedEnv:
    """Makes the servers and loads the tasks; the first time, this may install a suite.

    Raises ConfigError if the spec is not a valid environment, and the UsageError of an installation that fails.
    """
    who = check_name(spec.name)
    if spec.anchor not in get_args(StateAnchor):
        raise ConfigError(f"{who}: no anchor {spec.anchor!r}; have {', '.join(get_args(StateAnchor))}")
    if not callable(spec.grade):
        raise ConfigError(f"{who}: its grade must be a function, not {spec.grade!r}")
    check_signature(f"{who}: its grade", spec.grade, GRADER_PARAMETERS, "Score")
    check_costs(who, spec.costs)
    if not isinstance(spec.components, tuple) or not all(isinstance(name, str) for name in spec.components):
        raise ConfigError(f"{who}: its components must be a tuple of names, not {spec.components!r:.80}")
    servers = check_server_specs(who, resolve(who, "servers", spec.servers))
    suite = check_suite(who, resolve(who, "suite", spec.suite), frozenset(server.name for server in servers))
    return LoadedEnv(spec=spec, servers=servers, suite=suite)
