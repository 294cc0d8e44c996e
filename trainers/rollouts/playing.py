"""Episodes of the trained model: on this machine, or wherever another player has them played."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from gymcp.agents.policies.models import TokenModel
from gymcp.agents.programs.agent import open_program_agents
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.agents.prompts.rendering import Renderer
from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.run import REACT, check_resumes
from gymcp.agents.runner.scheduler import DEFAULT_CONCURRENCY, JobSource, Schedule, run_jobs
from gymcp.agents.strategies.budgets import Budget
from gymcp.agents.strategies.react import ReactSettings, react
from gymcp.agents.strategies.user_agents import make_user_agents
from gymcp.agents.tool_calls.formats import Format
from gymcp.envs.spec import LoadedEnv
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.protocols import AgentFactory, Policy
from gymcp.trainers.recipe.agent import RolloutAgent
from gymcp.trainers.recipe.branching import make_controller
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.types import Action, Sampling, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TextInterface:
    """The trained model as agents see it, without its weights."""

    renderer: Renderer
    read: Format
    """Reads tool calls out of the text of an answer."""
    context: int
    """Most tokens of prompt and answer together."""
    vocabulary: int
    """Number of tokens that the model chooses from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaySettings:
    """Settings of some episodes, beside the recipe's."""

    temperature: float
    turns: int
    """Most turns of an episode."""
    branches: bool = False
    """True if the recipe's controller plays trees of episodes."""
    tree_episodes: int | None = None
    """Most episodes of a tree; None: as the recipe says."""
    is_heldout: bool = False
    """True for an evaluation, whose episodes may have tasks and trials of rollouts that are under way."""


class EpisodePlayer(Protocol):
    """Plays episodes of the trained model."""

    async def play(
        self,
        text: TextInterface,
        policy: Policy,
        settings: PlaySettings,
        jobs: Sequence[Job] | JobSource,
        take: Callable[[Rollout, bool], None],
    ) -> None:
        """Play the jobs; `take` gets every attempt, and whether it was the last one at its job.

        `policy` samples from the weights that are trained.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlayer:
    """Plays episodes in sandboxed servers of this machine."""

    env: LoadedEnv
    recipe: Recipe
    sandbox: Sandbox
    agent: RolloutAgent | None = None
    """Agent of the user, or program, that plays over the trained model; None: react."""
    shown: Mapping[str, Sequence[Action]] = field(default_factory=dict)
    """Actions of recorded episodes by the id of their task, for a controller that compares with them."""

    @property
    def plain_schedule(self) -> Schedule:
        """The limits of the recipe, without its controller."""
        rollout = self.recipe.rollout
        return Schedule(concurrency=rollout.concurrency or DEFAULT_CONCURRENCY, agent_s=rollout.max_seconds or None)

    async def play(
        self,
        text: TextInterface,
        policy: Policy,
        settings: PlaySettings,
        jobs: Sequence[Job] | JobSource,
        take: Callable[[Rollout, bool], None],
    ) -> None:
        """See `EpisodePlayer`. Raises ConfigError if an agent of the user fails."""
        schedule = self._make_schedule(text, settings)
        async with self._open_agents(text, policy, settings) as agents:
            await run_jobs(self.env, self.sandbox, agents, jobs, schedule, take)

    async def check_resumes(self, text: TextInterface, policy: Policy, settings: PlaySettings, task: Task) -> None:
        """Raise ConfigError if episodes may branch and the agent cannot go on from a record."""
        schedule = self._make_schedule(text, settings)
        async with self._open_agents(text, policy, settings) as agents:
            check_resumes(schedule, self.recipe.rollout.agent or REACT, agents, task)

    def _make_schedule(self, text: TextInterface, settings: PlaySettings) -> Schedule:
        if not settings.branches:
            return self.plain_schedule
        controller, tree = make_controller(self.recipe, vocabulary=text.vocabulary, demonstrations=self.shown)
        tree = replace(tree, episodes=settings.tree_episodes or tree.episodes)
        return replace(self.plain_schedule, controller=controller, tree=tree)

    @asynccontextmanager
    async def _open_agents(
        self, text: TextInterface, policy: Policy, settings: PlaySettings
    ) -> AsyncIterator[AgentFactory]:
        rollout = self.recipe.rollout
        model = TokenModel(
            name=self.recipe.name,
            policy=policy,
            renderer=text.renderer,
            parse_calls=text.read,
            context=text.context,
            timeout_s=(rollout.request_timeout_s or None) if rollout.engine == "embedded" else None,
        )
        sampling = Sampling(max_tokens=rollout.max_tokens, temperature=settings.temperature)
        # the scheduler keeps the time
        react_settings = ReactSettings(sampling=sampling, budget=Budget(turns=settings.turns, seconds=None))
        if isinstance(self.agent, ProgramSettings):
            program = replace(self.agent, sampling=sampling, budget=react_settings.budget)
            async with open_program_agents(model, program) as agents:
                yield agents
        elif self.agent is None:
            yield react(model, react_settings)
        else:
            yield make_user_agents(self.agent, model, react_settings)
