"""Kits that agent programs are built on, each in an environment of its own, and the episodes of their programs."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uv
from gold_policy import GoldPolicy, RememberingGoldPolicy

from gymcp.agents.policies.models import Model
from gymcp.agents.programs.agent import open_program_agents
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.agents.runner.rollout import Job
from gymcp.agents.runner.run import Plan, select_tasks
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.worlds.tool_listing import list_tools
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.paths import gymcp_home
from gymcp.types import Task, Trajectory

SCRIPTS = Path(__file__).parents[1] / "examples" / "programs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """A program and the packages that it needs."""

    name: str
    script: str = ""
    """File in examples/programs; empty: `command` is the program."""
    command: tuple[str, ...] = ()
    """Command of a package from npm."""
    packages: tuple[str, ...]
    shares: str = ""
    """Kit whose installation it uses; empty: its own."""
    policy: type[GoldPolicy] = GoldPolicy
    """Its scripted model."""

    @property
    def is_node(self) -> bool:
        return not self.script.endswith(".py")

    @property
    def folder(self) -> Path:
        return gymcp_home() / "benchmarks" / "programs" / (self.shares or self.name)

    def install(self) -> ProgramSettings:
        """The installed program. Raises CalledProcessError."""
        return self._install_from_npm() if self.is_node else self._install_from_pypi()

    def _install_from_npm(self) -> ProgramSettings:
        if not (self.folder / "node_modules").is_dir():
            self.folder.mkdir(parents=True, exist_ok=True)
            words = ["npm", "install", "--silent", "--prefix", str(self.folder)]
            words += [] if self.command else ["--ignore-scripts"]
            subprocess.run([*words, *self.packages], check=True)
        if self.command:
            program = self.folder / "node_modules" / ".bin" / self.command[0]
            return ProgramSettings(argv=(str(program), *self.command[1:]))
        own = self.folder / self.script
        own.write_text((SCRIPTS / self.script).read_text())  # node looks for packages beside the file
        return ProgramSettings(argv=("node", str(own)), mounts=(self.folder,))

    def _install_from_pypi(self) -> ProgramSettings:
        python = self.folder / "bin" / "python"
        if not (self.folder / "installed").is_file():
            subprocess.run([uv.find_uv_bin(), "venv", "--quiet", "--clear", str(self.folder)], check=True)
            words = [uv.find_uv_bin(), "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python)]
            subprocess.run([*words, *self.packages], check=True)
            (self.folder / "installed").touch()
        return ProgramSettings(argv=(str(python), str(SCRIPTS / self.script)))


_LANGGRAPH = ("langchain", "langgraph", "langchain-openai", "langchain-mcp-adapters")
_AGENTS, _PYDANTIC = ("openai-agents",), ("pydantic-ai-slim[openai,mcp]",)
_OPENAI, _ANTHROPIC = ("openai", "mcp>=2"), ("anthropic", "mcp>=2")
KITS = (
    Kit(name="openai", script="openai_sdk.py", packages=_OPENAI),
    Kit(name="anthropic", script="anthropic_sdk.py", packages=_ANTHROPIC),
    Kit(name="openai's tool runner", script="openai_tool_runner.py", packages=_OPENAI, shares="openai"),
    Kit(name="anthropic's tool runner", script="anthropic_tool_runner.py", packages=_ANTHROPIC, shares="anthropic"),
    Kit(name="openai-agents", script="openai_agents.py", packages=_AGENTS),
    Kit(name="langgraph", script="langgraph_agent.py", packages=_LANGGRAPH),
    Kit(name="smolagents", script="smolagents_agent.py", packages=("smolagents[openai,mcp]", "mcp<2")),
    Kit(name="pydantic-ai", script="pydantic_ai_agent.py", packages=_PYDANTIC),
    Kit(name="mcp-typescript", script="mcp_typescript.mjs", packages=("@modelcontextprotocol/sdk", "openai")),
    Kit(
        name="openai-agents with a sub-agent",
        script="openai_agents_crew.py",
        packages=_AGENTS,
        shares="openai-agents",
        policy=RememberingGoldPolicy,
    ),
    Kit(
        name="langgraph with summaries",
        script="langgraph_summarising.py",
        packages=_LANGGRAPH,
        shares="langgraph",
        policy=RememberingGoldPolicy,
    ),
    Kit(
        name="pydantic-ai with a history processor",
        script="pydantic_ai_compacting.py",
        packages=_PYDANTIC,
        shares="pydantic-ai",
        policy=RememberingGoldPolicy,
    ),
)
LARGE_KITS = (
    Kit(
        name="claude-code",
        command=(
            *("claude", "-p", "{prompt}", "--mcp-config", "{mcp_config}", "--strict-mcp-config"),
            *("--allowedTools", "mcp__gymcp"),
        ),
        packages=("@anthropic-ai/claude-code@2.1.197",),
    ),
    Kit(
        name="codex",
        command=(
            *("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            "{prompt}",
        ),
        packages=("@openai/codex@0.169.0",),
    ),
)
"""Programs of several hundred MB, which are played only if they are named."""


def choose_kits(names: str) -> list[Kit]:
    """The kits of these names, with commas between them; all but the large ones for the empty text.

    Raises SystemExit for another name.
    """
    if not names:
        return list(KITS)
    known = {kit.name: kit for kit in (*KITS, *LARGE_KITS)}
    if unknown := [name for name in names.split(",") if name not in known]:
        raise SystemExit(f"--kits: no kit '{unknown[0]}'; have {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def play(
    env: LoadedEnv, program: ProgramSettings, tasks: Sequence[Task], model: Model, *, concurrency: int
) -> list[Trajectory]:
    """The episodes of a program in the order of their ends, over a model that is open already."""
    return asyncio.run(play_all(env, program, tasks, model, concurrency=concurrency))


async def play_all(
    env: LoadedEnv, program: ProgramSettings, tasks: Sequence[Task], model: Model, *, concurrency: int
) -> list[Trajectory]:
    """The same within an event loop."""
    ended: list[Trajectory] = []
    jobs = [Job(task=task, trial=number, seed=number) for number, task in enumerate(tasks)]
    note = lambda rollout, last: ended.append(rollout.trajectory) if last else None  # noqa: E731
    async with open_program_agents(model, program) as agents:
        await run_jobs(env, get_sandbox("bwrap"), agents, jobs, Schedule(concurrency=concurrency), note, RunBudget())
    return ended


def pick_tasks(env: LoadedEnv, count: int) -> list[Task]:
    """Tasks of one user turn, each with a prompt of its own, whose gold names every argument.

    smolagents asks for optional arguments, too; the scripted model knows a task by its prompt.
    """
    optional = _list_optional_arguments(env)
    tasks = [
        task
        for task in select_tasks(env.suite, Plan(agent="oracle"))
        if len(task.prompts) == 1
        and all(optional.get(call.name, set()) <= set(call.arguments) for call in task.gold[0].calls)
    ]
    tasks = list({task.prompts[0]: task for task in tasks}.values())
    return [tasks[number * len(tasks) // count] for number in range(count)]


def _list_optional_arguments(env: LoadedEnv) -> dict[str, set[str]]:
    """Names of the arguments of each tool that may be left out."""
    tools = asyncio.run(list_tools(env, get_sandbox("bwrap")))
    schemas = {name: tool.input_schema for name, tool in tools.items()}
    return {
        name: set(schema.get("properties", ())) - set(schema.get("required", ())) for name, schema in schemas.items()
    }
