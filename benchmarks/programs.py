"""Agent programs: real ones of eight kits on 20 tasks with a scripted model, and 50 at once.

Every kit is installed into an environment of its own in gymcp's cache, from PyPI or npm, at the first run.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uv
from gold_policy import GoldPolicy, RememberingGoldPolicy
from report_table import Result, options, show

from gymcp.agents.policies.models import ChatModel
from gymcp.agents.programs.agent import open_program_agents
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.agents.runner.rollout import Job
from gymcp.agents.runner.run import Plan, select_tasks
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.envs.worlds.tool_listing import list_tools
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.paths import gymcp_home
from gymcp.scratch import scratch_folder
from gymcp.types import Trajectory

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "examples" / "programs"
ENV = "workbench"
TASKS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """A program and the packages that it needs."""

    name: str
    script: str
    packages: tuple[str, ...]
    shares: str = ""
    """Kit whose installation it uses; empty: its own."""
    policy: type[GoldPolicy] = GoldPolicy
    """Its scripted model."""

    @property
    def is_node(self) -> bool:
        return self.script.endswith(".mjs")

    @property
    def folder(self) -> Path:
        return gymcp_home() / "benchmarks" / "programs" / (self.shares or self.name)

    def install(self) -> ProgramSettings:
        """The installed program. Raises CalledProcessError."""
        script = SCRIPTS / self.script
        if self.is_node:
            if not (self.folder / "node_modules").is_dir():
                self.folder.mkdir(parents=True, exist_ok=True)
                words = ["npm", "install", "--silent", "--ignore-scripts", "--prefix", str(self.folder)]
                subprocess.run([*words, *self.packages], check=True)
            own = self.folder / script.name
            own.write_text(script.read_text())  # node looks for packages beside the file
            return ProgramSettings(argv=("node", str(own)), mounts=(self.folder,))
        python = self.folder / "bin" / "python"
        if not (self.folder / "installed").is_file():
            subprocess.run([uv.find_uv_bin(), "venv", "--quiet", "--clear", str(self.folder)], check=True)
            words = [uv.find_uv_bin(), "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python)]
            subprocess.run([*words, *self.packages], check=True)
            (self.folder / "installed").touch()
        return ProgramSettings(argv=(str(python), str(script)))


_LANGGRAPH = ("langchain", "langgraph", "langchain-openai", "langchain-mcp-adapters")
_AGENTS, _PYDANTIC = ("openai-agents",), ("pydantic-ai-slim[openai,mcp]",)
KITS = (
    Kit(name="openai", script="openai_sdk.py", packages=("openai", "mcp>=2")),
    Kit(name="anthropic", script="anthropic_sdk.py", packages=("anthropic", "mcp>=2")),
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


def main() -> None:
    parser = options(__doc__, "4 tasks, 8 programs at once, and kits of Python only")
    parser.add_argument("--kits", default="", help="names of kits, with commas; default: all")
    args = parser.parse_args()
    env = load_env(load_spec(ENV))
    tasks = 4 if args.quick else TASKS
    chosen = [kit for kit in KITS if not args.kits or kit.name in args.kits.split(",")]
    results: list[Result] = []
    for kit in chosen:
        if not (args.quick and kit.is_node):
            results += measure_kit(env, kit, tasks)
    results += measure_many(env, chosen[0], 8 if args.quick else 50)
    show("programs", results, as_json=args.json)
    sys.exit(1 if any(result.metric.endswith("solved") and result.value < tasks for result in results) else 0)


def measure_kit(env: LoadedEnv, kit: Kit, count: int) -> list[Result]:
    """Tasks that the kit's program solves with a model that knows the gold."""
    print(f"programs: {kit.name}", file=sys.stderr, flush=True)
    began = time.perf_counter()
    program = kit.install()
    installed = time.perf_counter()
    ended = play(env, program, count, 4, kit.policy)
    seconds = time.perf_counter() - installed
    solved = sum(episode.score == 1.0 for episode in ended)
    for episode in ended:
        if episode.score != 1.0:
            print(f"programs: {kit.name}: {episode.task}: {episode.outcome}: {episode.reason}", file=sys.stderr)
    return [
        Result(metric=f"{kit.name}: solved", value=solved, unit=f"of {count}"),
        *count_contexts(kit, ended),
        Result(metric=f"{kit.name}: time of an episode", value=seconds / count, unit="s"),
        Result(metric=f"{kit.name}: installation", value=installed - began, unit="s"),
    ]


def count_contexts(kit: Kit, ended: Sequence[Trajectory]) -> list[Result]:
    """Contexts of an episode and answers beside its steps, of a program that has more than one."""
    if kit.policy is GoldPolicy:
        return []
    contexts = [
        {step.context for step in each.steps} | {answer.context for answer in each.side_answers} for each in ended
    ]
    own = sum(len(each.own_side_answers) for each in ended)
    side = sum(len(each.side_answers) for each in ended) - own
    return [
        Result(metric=f"{kit.name}: contexts", value=sum(map(len, contexts)) / len(ended), unit="per episode"),
        Result(metric=f"{kit.name}: answers of the agent beside the steps", value=own / len(ended), unit="per episode"),
        Result(metric=f"{kit.name}: side calls", value=side / len(ended), unit="per episode"),
    ]


def measure_many(env: LoadedEnv, kit: Kit, count: int) -> list[Result]:
    """Programs at once, and what is left of them."""
    ended = play(env, kit.install(), count, count, kit.policy)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    left = [path for path in scratch_folder().iterdir() if path.name.startswith("program-")]
    return [
        Result(metric=f"{count} at once: solved", value=sum(each.score == 1.0 for each in ended), unit=f"of {count}"),
        Result(metric=f"{count} at once: left", value=len(left), unit="folders"),
        Result(metric=f"{count} at once: memory of the harness", value=memory, unit="MB"),
    ]


def play(
    env: LoadedEnv, program: ProgramSettings, count: int, concurrency: int, policy: type[GoldPolicy] = GoldPolicy
) -> Sequence[Trajectory]:
    """Tasks of one user turn whose gold names every argument: smolagents asks for optional ones, too."""
    asks = optional_arguments(env)
    tasks = [
        task
        for task in select_tasks(env.suite, Plan(agent="oracle"))
        if len(task.prompts) == 1
        and all(asks.get(call.name, set()) <= set(call.arguments) for call in task.gold[0].calls)
    ]
    tasks = list({task.prompts[0]: task for task in tasks}.values())  # the model knows a task by its prompt
    chosen = [tasks[number * len(tasks) // count] for number in range(count)]
    ended: list[Trajectory] = []

    async def run() -> None:
        model = ChatModel(name="gold", policy=policy(chosen))
        async with open_program_agents(model, program) as agents:
            jobs = [Job(task=task, trial=number, seed=number) for number, task in enumerate(chosen)]
            schedule = Schedule(concurrency=concurrency)
            note = lambda rollout, last: ended.append(rollout.trajectory) if last else None  # noqa: E731
            await run_jobs(env, get_sandbox("bwrap"), agents, jobs, schedule, note, RunBudget())

    asyncio.run(run())
    return ended


def optional_arguments(env: LoadedEnv) -> dict[str, set[str]]:
    """Names of the arguments of each tool that may be left out."""
    tools = asyncio.run(list_tools(env, get_sandbox("bwrap")))
    schemas = {name: tool.input_schema for name, tool in tools.items()}
    return {
        name: set(schema.get("properties", ())) - set(schema.get("required", ())) for name, schema in schemas.items()
    }


if __name__ == "__main__":
    main()
