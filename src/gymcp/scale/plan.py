"""The plan of a run on a cluster: which nodes play, and where the models are, from a TOML file.

::

    judge = "openai:http://10.0.0.9:8000/v1#judge"        # as --judge; the driver asks it after the last episode

    [policy]                        # the model of --policy, a local one: opened on one node for all others
    nodes = "gpu-*"
    num_gpus = 1
    engine = "vllm"                 # default: embedded

    [learner]                       # of a training: the node on which the command is typed
    nodes = "gpu-*"
    num_gpus = 1

    [[group]]                       # the first group that a node belongs to counts; a node in none plays nothing
    nodes = "cpu-*"                 # glob over HOST, or over HOST/ID as messages name it
    labels = { zone = "a" }         # labels of ray start
    resources = ["bubblewrap"]      # names of resources that the node has
    environments = ["backoffice"]   # default: all
    concurrency = 32                # episodes at a time on each node; default: that of the command
    policy = "vllm:http://10.0.0.3:8000#model"            # without [policy]: the model of --policy, elsewhere
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gymcp.agents.policies.specs import parse_policy
from gymcp.envs import catalog
from gymcp.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """A node of the cluster, as Ray describes it."""

    id: str
    name: str
    """HOST/ID, unique in the cluster."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Total amounts by name."""
    labels: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """The node for people: its name, and what a plan can name."""
        own = {name: value for name, value in self.labels.items() if not name.startswith("ray.io/")}
        has = [f"{name} {amount:g}" for name, amount in sorted(self.resources.items()) if _is_telling(name)]
        return f"{self.name} ({', '.join([*has, *(f'{name}={value}' for name, value in sorted(own.items()))])})"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class NodeGroup(_Record):
    """Nodes that play in the same way."""

    nodes: str = "*"
    """Glob over their names."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels that they all have."""
    resources: list[str] = Field(default_factory=list)
    """Names of resources that they all have."""
    environments: list[str] = Field(default_factory=list)
    """Environments that they play, as the command line names them; empty: all."""
    concurrency: int | None = Field(default=None, ge=1)
    """Episodes at a time on each of them; None: those of the command."""
    policy: str = ""
    """The model of the run at the address that these nodes reach; empty: as the command names it."""

    def has(self, node: ClusterNode) -> bool:
        """True if the node belongs to the group."""
        return _matches(self.nodes, self.labels, node) and all(node.resources.get(name) for name in self.resources)

    def plays(self, env: str) -> bool:
        """True if the group plays the environment, given by its source (`catalog.source_of`)."""
        return not self.environments or env in map(catalog.source_of, self.environments)


class NodePlace(_Record):
    """A process of the run, by the node that it needs."""

    nodes: str = "*"
    """Glob over their names."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels that the node has."""
    num_gpus: float = Field(default=0, ge=0)
    resources: dict[str, float] = Field(default_factory=dict)
    """Amounts of other resources, by name."""

    def fits(self, node: ClusterNode) -> bool:
        """True if the process can be on that node."""
        needs = {**self.resources, "GPU": self.num_gpus}
        has = node.resources
        return _matches(self.nodes, self.labels, node) and all(has.get(name, 0) >= much for name, much in needs.items())

    def describe_needs(self) -> str:
        """Continues "a node that"."""
        amounts = {**self.resources, **({"GPU": self.num_gpus} if self.num_gpus else {})}
        return _describe_needs(self.nodes, self.labels, [f"{name} {much:g}" for name, much in amounts.items()])


class PolicyPlace(NodePlace):
    """The node that holds the model, what its actor reserves there, and its engine."""

    engine: Literal["embedded", "vllm"] = "embedded"
    """Engine that samples: the actor's own, or a vLLM server that it starts."""
    vllm_args: list[str] = Field(default_factory=list)
    """Extra command-line arguments for the vLLM server, passed on unchanged."""

    @property
    def serves_on_cpu(self) -> bool:
        """True if its vLLM server computes on a CPU: no GPU is reserved."""
        return not self.num_gpus


class RunPlan(_Record):
    """The content of a plan's file."""

    judge: str = ""
    """The model that the environment's grader asks; empty: that of the command."""
    policy: PolicyPlace | None = None
    """None: the model is at an address, or is opened on each node."""
    learner: NodePlace | None = None
    """Node of a training's driver, which learns and samples; None: any."""
    group: list[NodeGroup] = Field(default_factory=list)
    """Empty: all nodes play."""

    def find_group(self, node: ClusterNode, env: str) -> NodeGroup | None:
        """The group of a node; None if it does not play the environment."""
        if not self.group:
            return NodeGroup()
        group = next((group for group in self.group if group.has(node)), None)
        return group if group is not None and group.plays(env) else None


def read_plan(path: Path) -> RunPlan:
    """The plan in a file; paths of environments in it are relative to its folder. Raises ConfigError."""
    who = f"plan '{path}'"
    try:
        plan = RunPlan.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{who}: cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        raise ConfigError(f"{who}: {_describe_fault(error)}") from error
    except ValueError as error:
        raise ConfigError(f"{who}: is not TOML: {error}") from error
    if plan.policy is not None and plan.policy.vllm_args and plan.policy.engine != "vllm":
        raise ConfigError(f"{who}: policy.vllm_args is for policy.engine = 'vllm'")
    for place, text in (("judge", plan.judge), *((f"{_name(n)}.policy", each.policy) for n, each in _number(plan))):
        try:
            _ = text and parse_policy(text)
        except ConfigError as error:
            raise ConfigError(f"{who}: {place}: {error}") from error
    groups = [
        group.model_copy(update={"environments": [_find_environment(env, path, who, n) for env in group.environments]})
        for n, group in _number(plan)
    ]
    return plan.model_copy(update={"group": groups})


def choose_judge(plan: RunPlan, who: str, judge: str | None) -> str | None:
    """The judge of the run, given that of the command. Raises ConfigError if both name one."""
    if judge is not None and plan.judge and judge != plan.judge:
        raise ConfigError(f"{who}: judge: is '{plan.judge}', and --judge is '{judge}'; name one of them")
    return plan.judge or judge


def check_plan(plan: RunPlan, who: str, nodes: Sequence[ClusterNode], env: str) -> None:
    """Raise ConfigError if the plan names nodes, labels or resources that the cluster lacks, or no node plays `env`.

    `who`: the plan, for messages.
    """
    have = f"the cluster has {', '.join(node.describe() for node in nodes) or 'no node'}"
    for number, group in _number(plan):
        if not any(map(group.has, nodes)):
            needs = _describe_needs(group.nodes, group.labels, group.resources)
            raise ConfigError(f"{who}: {_name(number)}: no node {needs}; {have}")
    for what, place in (("policy", plan.policy), ("learner", plan.learner)):
        if place is not None and not any(map(place.fits, nodes)):
            raise ConfigError(f"{who}: {what}: no node {place.describe_needs()}; {have}")
    if not any(plan.find_group(node, env) is not None and node.resources.get("CPU") for node in nodes):
        raise ConfigError(f"{who}: no node with a CPU plays '{env}' by its groups; {have}")


def check_learner(plan: RunPlan, who: str, nodes: Sequence[ClusterNode], own: str) -> None:
    """Raise ConfigError if the driver's node, whose id is `own`, lacks what a checked plan asks for its learner."""
    place = plan.learner
    if place is None or any(node.id == own and place.fits(node) for node in nodes):
        return
    here = next((node.describe() for node in nodes if node.id == own), "none of them")
    fit = ", ".join(node.describe() for node in nodes if place.fits(node))
    raise ConfigError(
        f"{who}: learner: must be on a node that {place.describe_needs()}, and the command runs on {here};"
        f" type it on {fit}"
    )


def check_policies(plan: RunPlan, who: str, policy: str | None) -> None:
    """Raise ConfigError if the plan places another model than `policy`, or one that cannot be placed so."""
    given = parse_policy(policy) if policy is not None else None
    if plan.policy is not None and (given is None or given.url):
        what = "names none" if given is None else f"names '{policy}', which is at an address already"
        raise ConfigError(f"{who}: policy: places the model of --policy, and the command {what}")
    for number, group in _number(plan):
        if not group.policy:
            continue
        other = parse_policy(group.policy)
        if given is None or not given.url or (other.kind, other.model) != (given.kind, given.model):
            model = "not given" if policy is None else f"'{policy}'"
            raise ConfigError(
                f"{who}: {_name(number)}.policy is '{group.policy}': it may only be another address of the model of"
                f" --policy, which is {model}"
            )


def _number(plan: RunPlan) -> list[tuple[int, NodeGroup]]:
    return list(enumerate(plan.group, 1))


def _name(number: int) -> str:
    return f"group {number}"


def _find_environment(env: str, path: Path, who: str, number: int) -> str:
    if not catalog.is_file(env) and env in (*catalog.names(), *catalog.plugin_names()):
        return env
    if (file := path.absolute().parent / env).is_file():
        return str(file)
    have = ", ".join((*catalog.names(), *catalog.plugin_names()))
    raise ConfigError(f"{who}: {_name(number)}.environments: no environment '{env}'; have {have}, or a file's path")


def _matches(pattern: str, labels: Mapping[str, str], node: ClusterNode) -> bool:
    names = (node.name, node.name.rpartition("/")[0])
    named = any(fnmatch.fnmatchcase(name, pattern) for name in names)
    return named and all(node.labels.get(name) == value for name, value in labels.items())


def _describe_needs(pattern: str, labels: Mapping[str, str], resources: Sequence[str]) -> str:
    parts = [f"is named '{pattern}'"] if pattern != "*" else []
    parts += [f"has the label {name}={value}" for name, value in labels.items()]
    parts += [f"has the resource {name}" for name in resources]
    return " and ".join(parts) or "is there"


def _is_telling(resource: str) -> bool:
    """False for resources that Ray makes for each node, and those that every node has."""
    return not resource.startswith("node:") and resource not in ("memory", "object_store_memory")


def _describe_fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part + 1) if isinstance(part, int) else part for part in first["loc"])
    if first["type"] == "extra_forbidden":
        kinds: dict[str, type[_Record]] = {"group": NodeGroup, "policy": PolicyPlace, "learner": NodePlace}
        kind = kinds.get(str(first["loc"][0]), RunPlan) if first["loc"][1:] else RunPlan
        return f"no key '{where}'; have {', '.join(kind.model_fields)}"
    what = first["msg"].replace("Input should be", "must be")
    return f"{where}: {what[:1].lower()}{what[1:]}"
