"""Who draws the tokens while a policy is trained: the embedded engine over the learner's weights, or a vLLM server."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from gymcp.agents.policies.engine.engine import Engine, EngineOptions, open_engine
from gymcp.agents.policies.local_model import read_context_length
from gymcp.agents.policies.models import TokenModel
from gymcp.agents.policies.specs import ModelOptions, open_model, parse_policy
from gymcp.agents.policies.vllm.client import VllmPolicy
from gymcp.agents.policies.vllm.server import VllmServerOptions, run_vllm_server
from gymcp.errors import ConfigError
from gymcp.protocols import Policy
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.recipe.model import Pupil, in_bfloat16
from gymcp.trainers.recipe.recipe import Recipe

SERVED = "served"
"""In the run's folder: the weights or the adapter that the server draws from."""


class Sampler(Protocol):
    """Draws from the weights as of the last `update`."""

    @property
    def policy(self) -> Policy: ...

    async def update(self, version: str, change: Callable[[], None]) -> None:
        """Calls `change`, which changes the weights, while nothing is drawn. What it raises is raised here."""
        ...


class Embedded:
    """Shares the learner's weights: nothing is copied."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def policy(self) -> Policy:
        return self._engine

    async def update(self, version: str, change: Callable[[], None]) -> None:
        await self._engine.update(version, change)


class Served:
    """Writes what has changed into a folder, from which the server reads it: all weights, or a LoRA adapter."""

    def __init__(self, policy: VllmPolicy, learner: Learner, model: Any, folder: Path, *, adapter: bool) -> None:
        self._policy, self._learner, self._model = policy, learner, model
        self._folder, self._adapter = folder, adapter

    @property
    def policy(self) -> Policy:
        return self._policy

    async def update(self, version: str, change: Callable[[], None]) -> None:
        await asyncio.to_thread(change)
        await self.publish(version)

    async def publish(self, version: str) -> None:
        """The server draws from the weights as they are now, under this version."""
        here = self._folder / version
        await asyncio.to_thread(self._model.save_pretrained, here, state_dict=self._learner.weights())
        if self._adapter:
            await self._policy.use_adapter(here, version)
        else:
            await self._policy.load_weights(here, version)
        for other in self._folder.iterdir():
            if other != here:
                shutil.rmtree(other)


@contextmanager
def served(recipe: Recipe) -> Iterator[str]:
    """The spec of the recipe's vLLM server, started where none is named; empty for the embedded engine.

    Raises UsageError where it does not come up.
    """
    rollout = recipe.rollout
    if rollout.engine == "embedded":
        yield ""
        return
    if rollout.server:
        yield rollout.server
        return
    on_gpu = torch.cuda.is_available()
    plan = VllmServerOptions(
        model=Path(recipe.model.path),
        name=recipe.name,
        cpu=not on_gpu,
        max_context=min(recipe.model.context, read_context_length(Path(recipe.model.path), f"recipe '{recipe.name}'")),
        max_requests=rollout.slots,
        dtype="bfloat16" if in_bfloat16(recipe.model, on_gpu=on_gpu) else "float32",
        lora_rank=recipe.model.lora_rank,
        takes_weights=True,
        extra=rollout.vllm,
    )
    with run_vllm_server(plan, lambda line: None) as server:
        yield server.spec


@asynccontextmanager
async def open_sampler(
    recipe: Recipe, pupil: Pupil, learner: Learner, folder: Path, server: str, version: str
) -> AsyncIterator[Sampler]:
    """Draws from the pupil's weights as they are now. Raises ConfigError for a server of another model."""
    if not server:
        options = EngineOptions(
            max_context=pupil.context,
            stop_ids=pupil.end_ids,
            seed=recipe.seed,
            deterministic=recipe.deterministic,
        )
        slots = recipe.rollout.slots
        async with open_engine(pupil.model, slots=slots, version=version, options=options) as engine:
            yield Embedded(engine)
        return
    async with open_model(parse_policy(server), ModelOptions(tokenizer=Path(recipe.model.path))) as model:
        assert isinstance(model, TokenModel)
        assert isinstance(model.policy, VllmPolicy)
        if model.context < pupil.context:
            raise ConfigError(
                f"recipe '{recipe.name}': {server} takes {model.context} tokens, and model.context is {pupil.context}"
            )
        where = folder / SERVED
        where.mkdir(exist_ok=True)
        sampler = Served(model.policy, learner, pupil.model, where, adapter=recipe.model.lora_rank > 0)
        await sampler.publish(version)
        yield sampler
