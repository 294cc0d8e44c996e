"""A model on one node of a cluster, which samples for the agents on all others by way of the driver."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gymcp.agents.policies.models import Model, TokenModel
from gymcp.agents.policies.specs import ModelOptions, PolicySpec, open_model
from gymcp.aio import run_in_own_task
from gymcp.errors import ConfigError, GymcpError, NodeLost, PolicyInfraError
from gymcp.protocols import Policy
from gymcp.scale.agreement import compare_facts, describe_machine
from gymcp.scale.copies.records import PlacedFiles
from gymcp.scale.copies.sending import RunFiles, copy_files
from gymcp.scale.plan import ClusterNode, PolicyPlace
from gymcp.scale.ray_calls import await_answer, end_with_parent, list_cluster
from gymcp.scale.records import NodeFacts
from gymcp.scale.reopened_policy import PolicyNode
from gymcp.scale.served_model import ServedModel, check_vllm, open_served_model
from gymcp.types import Sampled, Sampling

START_S = 120.0
"""Seconds until the actor answers for the first time; Ray starts it once its resources are free."""
OPEN_S = 900.0
"""Seconds until the model is loaded."""
SAMPLE_S = 7200.0
"""Seconds for one sample, after which the actor counts as lost. An agent's own limit is shorter."""
CLOSE_S = 60.0
"""Seconds that the model has to close by itself."""
MAX_CALLS = 10_000
"""Calls of the actor that may be under way at a time: samples, and a ping that must not wait behind them."""


class _Actor:
    """The model, inside Ray: an actor whose calls share one event loop."""

    def __init__(self) -> None:
        self._stack = contextlib.AsyncExitStack()
        self._policy: Policy | None = None
        self._served: ServedModel | None = None
        threading.Thread(target=end_with_parent, name="gymcp watch", daemon=True).start()

    async def describe(self) -> NodeFacts:
        return describe_machine()

    async def ping(self) -> None:
        if self._served is not None:
            self._served.check_alive()

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.to_thread(function, *arguments)

    async def open(self, spec: PolicySpec, options: ModelOptions, place: PolicyPlace, placed: PlacedFiles) -> int:
        """Number of tokens of prompt and answer together that the open model takes."""
        placed.enter()
        spec = placed.locate(spec)
        if place.engine == "vllm":
            opening = open_served_model(spec, options, place)
            self._served = await self._stack.enter_async_context(run_in_own_task(opening))
            model: Model = self._served.model
        else:
            model = await self._stack.enter_async_context(run_in_own_task(open_model(spec, options)))
        assert isinstance(model, TokenModel)
        self._policy = model.policy
        return model.context

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        assert self._policy is not None
        try:
            return await self._policy.sample(prompt_ids, sampling)
        except PolicyInfraError:
            await self.ping()
            raise

    async def close(self) -> None:
        await self._stack.aclose()


class _RayPolicyNode:
    """The actor of a model on a node: a `PolicyNode`, and a target of copies."""

    def __init__(self, node: ClusterNode, place: PolicyPlace) -> None:
        self.name = node.name
        options: dict[str, Any] = {
            "num_cpus": 0,
            "num_gpus": place.num_gpus,
            "resources": place.resources,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": MAX_CALLS,
        }
        there = NodeAffinitySchedulingStrategy(node_id=node.id, soft=False)
        self.actor = ray.remote(**options)(_Actor).options(scheduling_strategy=there).remote()

    async def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
        """See `CopyTarget`."""
        return await await_answer(self.actor.call.remote(function, *arguments), timeout_s)

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        """See `PolicyNode`."""
        answer = self.actor.sample.remote(prompt_ids, sampling)
        try:
            sampled: Sampled = await await_answer(answer, SAMPLE_S)
            return sampled
        except asyncio.CancelledError:
            with contextlib.suppress(RayError, ValueError):  # the actor is dead already
                ray.cancel(answer)
            raise

    async def ping(self, timeout_s: float) -> None:
        """See `PolicyNode`."""
        await await_answer(self.actor.ping.remote(), timeout_s)

    async def close(self) -> None:
        """See `PolicyNode`."""
        with contextlib.suppress(GymcpError):
            await await_answer(self.actor.close.remote(), CLOSE_S)
        self.end()

    def end(self) -> None:
        """End the actor at once."""
        with contextlib.suppress(RayError, ValueError):  # it is dead already
            ray.kill(self.actor)


class RayPolicyOpener:
    """Opens a model on a node that has what its place in the plan asks for, another one than before if there is any."""

    def __init__(
        self,
        spec: PolicySpec,
        options: ModelOptions,
        place: PolicyPlace,
        files: RunFiles,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`files`: those of the model's folder. `say`: gets a line about files that were copied."""
        self._spec, self._options, self._place = spec, options, place
        self._files, self._say = files, say
        self.context = 0
        """Number of tokens of prompt and answer together that the model takes, once it has been opened."""
        self._opened: Counter[str] = Counter()
        """Number of times that the model was opened, by the id of the node."""

    async def open(self) -> PolicyNode:
        """Load the model on a node. Raises ConfigError."""
        try:
            fit = [node for node in list_cluster() if self._place.fits(node)]
        except RayError as error:
            raise ConfigError(f"{self._spec.who}: the cluster does not say which nodes live: {error}") from error
        if not fit:
            raise ConfigError(f"{self._spec.who}: no node of the cluster has what the plan's policy asks for")
        node = min(fit, key=lambda node: self._opened[node.id])
        self._opened[node.id] += 1
        there = _RayPolicyNode(node, self._place)
        try:
            await self._load(there)
        except BaseException as error:
            there.end()
            if not isinstance(error, GymcpError):
                raise
            raise ConfigError(f"node {node.name}: {self._spec.who}: {error}") from error
        return there

    async def _load(self, there: _RayPolicyNode) -> None:
        """Raises GymcpError."""
        try:
            facts: NodeFacts = await await_answer(there.actor.describe.remote(), START_S)
        except NodeLost as error:
            raise ConfigError(
                f"its actor does not start, perhaps because others hold its resources: {error}"
            ) from error
        if different := compare_facts(describe_machine(), facts):
            raise ConfigError("; ".join(different))
        if self._place.engine == "vllm":
            await there.call(check_vllm, self._place, timeout_s=START_S)
        (placed,) = await copy_files([there], self._files, ray.put, self._say)
        if isinstance(placed, GymcpError):
            raise placed
        if self._place.engine == "vllm":
            self._say(f"node {there.name}: starts vLLM for {self._spec.who}")
        opening = there.actor.open.remote(self._spec, self._options, self._place, placed)
        self.context = await await_answer(opening, OPEN_S)
