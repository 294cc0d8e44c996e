"""An agent that is any program: it plays an episode with the tools and the model that the gateway gives it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath

from gymcp.agents.endpoint.tool_exchange import Event, TurnEnded, WaitingCall
from gymcp.agents.policies.models import Model
from gymcp.agents.programs.exchange import Exchange
from gymcp.agents.programs.gateway import Gateway, open_gateway
from gymcp.agents.programs.launch import find_program, make_launch
from gymcp.agents.programs.process import ProgramProcess, run_program
from gymcp.agents.programs.settings import PROMPT, PROMPT_FILE, ProgramSettings, find_fault_of_prompt
from gymcp.aio import run_in_own_task
from gymcp.errors import EnvInfraError, PolicyInfraError
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import Agent, AgentFactory
from gymcp.scratch import remove_tree, scratch_folder
from gymcp.types import Action, Decision, GiveUp, Observation, SideAnswer, Task

_numbers = itertools.count(1)


def check_program(settings: ProgramSettings) -> None:
    """Raise ConfigError if there is no such program, SandboxUnavailable if it cannot be confined on this machine."""
    get_sandbox(settings.sandbox).check()
    find_program(settings)


@contextlib.asynccontextmanager
async def open_program_agents(model: Model | None, settings: ProgramSettings) -> AsyncIterator[AgentFactory]:
    """Agents that run the program, and the gateway that they reach the model and the tools through.

    `model`: None for programs that bring their own. The time of an episode is the rollout's to keep.

    Raises what `check_program` raises.
    """
    check_program(settings)
    sandbox = get_sandbox(settings.sandbox)
    folder = scratch_folder() / f"gateway-{next(_numbers)}"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    try:
        async with open_gateway(folder, _name_model(model)) as gateway:

            def make(task: Task, seed: int) -> Agent:
                return ProgramAgent(Exchange(model, settings, seed), settings, gateway, sandbox)

            yield make
    finally:
        remove_tree(folder)


class ProgramAgent:
    """The agent of one episode; `close` ends its program."""

    def __init__(self, exchange: Exchange, settings: ProgramSettings, gateway: Gateway, sandbox: Sandbox) -> None:
        self._exchange = exchange
        self._settings = settings
        self._gateway = gateway
        self._sandbox = sandbox
        self._stack = contextlib.AsyncExitStack()
        self._running: contextlib.AsyncExitStack | None = None
        self._program: ProgramProcess | None = None
        self._workspace: Path | None = None

    async def act(self, observation: Observation) -> Action | Decision | GiveUp:
        """The next call of the program, or the end of its turn. Raises PolicyInfraError if its model fails."""
        prompt = self._exchange.observe(observation)
        if prompt is not None:
            await self._begin_turn(prompt)
        event = await self._exchange.events.get()
        return await self._decide(event)

    async def _decide(self, event: Event) -> Decision | GiveUp:
        match event:
            case PolicyInfraError():
                raise event
            case WaitingCall():
                return self._exchange.decide_call(event)
            case TurnEnded():
                if self._settings.turns == "restart":
                    await self._end_program()
                return self._exchange.decide_end(event)
            case GiveUp():
                return self._exchange.give_up(event)

    def take_rest(self) -> tuple[SideAnswer, ...]:
        """The answers of the model that no decision has handed over."""
        return self._exchange.take_rest()

    async def _begin_turn(self, prompt: str) -> None:
        """Give the program the user's message, in a new process unless it serves several turns."""
        if self._workspace is None:
            sandboxed = self._settings.sandbox != "none"
            self._stack.enter_context(self._gateway.admit(self._exchange, sandboxed=sandboxed))
            self._workspace = scratch_folder() / f"program-{next(_numbers)}"
            self._workspace.mkdir(mode=0o755)
            self._stack.callback(remove_tree, self._workspace)
        if fault := find_fault_of_prompt(self._settings.argv, prompt):
            self._exchange.events.put_nowait(GiveUp(outcome=Outcome.AGENT_ERROR, reason=fault))
            return
        by_line = self._settings.turns == "stdin"
        if self._program is None:
            await self._start(prompt, by_line)
        if by_line and self._program is not None:
            await self._program.say(prompt)

    async def _start(self, prompt: str, by_line: bool) -> None:
        assert self._workspace is not None
        launch = make_launch(self._settings, self._gateway, self._exchange.token, self._workspace, prompt)
        has_prompt = any(PROMPT in word or PROMPT_FILE in word for word in self._settings.argv)
        program = run_program(
            self._sandbox, launch, self._exchange, standard_input=None if has_prompt else prompt, by_line=by_line
        )
        self._running = contextlib.AsyncExitStack()
        try:
            self._program = await self._running.enter_async_context(run_in_own_task(program))
        except EnvInfraError as error:
            raise PolicyInfraError(f"the program cannot be started: {error}") from error

    async def _end_program(self) -> None:
        running, self._running, self._program = self._running, None, None
        if running is not None:
            await running.aclose()

    async def close(self) -> None:
        """End the program and let nothing of it reach the gateway any more."""
        try:
            await self._end_program()
        finally:
            await self._stack.aclose()


def _name_model(model: Model | None) -> str:
    """The model's name without what stands before its last slash.

    To some kits that would be the name of a provider, which they do not have; it may be a folder of this machine.
    """
    return PurePosixPath(model.name).name if model is not None else "none"
