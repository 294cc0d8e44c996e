"""A harness that plays the attempts in an agent program, with another episode beside it: one JSON object.

Arguments: the program's sandbox, a folder of its own, the token, a set-id program or a dash. A process of its own,
because its surroundings belong to a process.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from dataclasses import replace
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from expected import GREED
from harness import AT_ONCE, processes_named
from length import IS_FULL
from rogue_program import PARTS
from surroundings import surroundings

import gymcp.envs.suites
from gymcp.agents.programs.agent import ProgramAgent, open_program_agents
from gymcp.agents.programs.exchange import Exchange
from gymcp.agents.programs.settings import ProgramSettings, SandboxName
from gymcp.envs.catalog import list_own_files
from gymcp.types import Action, Decision, Message, Observation, Task
from gymcp.user_code import load_user_module

HERE = Path(__file__).parent
PLAY_S = 300.0
TASK = Task(id="t", prompts=("",))


def say(text: str) -> Observation:
    return Observation(messages=(Message(role="user", content=text),), tools=())


async def play(sandbox: SandboxName, folder: Path, token: str, set_id: str) -> dict[str, Any]:
    work, shown = folder / "work", folder / "shown"
    work.mkdir()
    shown.mkdir()
    for name in ("rogue_program", "inside", "inside_programs", "rogue_greed", *PARTS):
        shutil.copy(HERE / f"{name}.py", shown)
    write_environment(shown, token)
    install_plugin(shown / "site", token)
    program = str(shown / "rogue_program.py")
    settings = ProgramSettings(
        argv=("python3", program, "{prompt}", str(shown / "given.json"), *(["all"] if sandbox != "none" else [])),
        sandbox=sandbox,
        mounts=(shown, *([Path(set_id)] if set_id != "-" else [])),
        hidden=list_own_files(str(shown / "environment.py")),
        env="plugged",
    )
    async with surroundings(token, work) as outside, open_program_agents(None, settings) as agents:
        other, ended, own = (make(agents) for _ in range(3))
        try:
            settled = await asyncio.wait_for(other.act(say(token)), PLAY_S)
            assert isinstance(settled, Decision), settled
            given = {
                **outside,
                "name": f"attempt-{token}",
                "set_id": set_id,
                "walks_all": IS_FULL,
            }
            given |= about(other, ended, shown, control=sandbox == "none")
            (shown / "given.json").write_text(json.dumps(given))
            decision = await asyncio.wait_for(own.act(say("attack")), PLAY_S)
            assert isinstance(decision, Decision), decision
            greed = {} if sandbox == "none" else await play_greed(other, settings, program, token)
            waits = other._exchange.events.empty()
            return {"attempts": json.loads(decision.action.text), "greed": greed, "waits": waits}
        finally:
            await own.close()
            await other.close()


def write_environment(folder: Path, token: str) -> None:
    """An environment's file that has imported a module beside it; both hold the token."""
    (folder / "gold_beside.py").write_text(f"GOLD = '{token}'\n")
    file = folder / "environment.py"
    file.write_text(f"import sys\n\nsys.path.append({str(folder)!r})\nimport gold_beside\n\nGOLD = '{token}'\n")
    load_user_module(file, what="environment", name="gymcp_env_environment")


def install_plugin(site: Path, token: str) -> None:
    """Install a package that brings an environment and holds the token as data, in a folder that Python searches."""
    package, about = site / "plugged", site / "plugged-1.0.dist-info"
    package.mkdir(parents=True)
    about.mkdir()
    (package / "__init__.py").touch()
    (package / "gold.json").write_text(f'"{token}"')
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[gymcp.envs]\nplugged = plugged:ENV\n")
    (about / "RECORD").write_text("plugged/__init__.py,,\nplugged/gold.json,,\nplugged-1.0.dist-info/METADATA,,\n")
    sys.path.append(str(site))


async def play_greed(other: ProgramAgent, settings: ProgramSettings, program: str, token: str) -> dict[str, str]:
    """Name -> reported end of a program that uses up the machine; each has an episode beside `other`."""
    at_once, daemon = asyncio.Semaphore(AT_ONCE), f"p-{token[:12]}"

    async def one(name: str) -> tuple[str, str]:
        given = {"name": f"{token}-{name}", "hold_s": 30.0, "spun_s": 12.0, "folder": "inodes", "daemon": daemon}
        argv = ("python3", program, "{prompt}", "greed", json.dumps(given))
        own = replace(settings, argv=argv, limits=GREED[name].limits)
        agent = ProgramAgent(Exchange(None, own, 0), own, other._gateway, other._sandbox)
        async with at_once:
            try:
                ended = await asyncio.wait_for(agent.act(say(name)), PLAY_S)
            finally:
                await agent.close()
        assert not isinstance(ended, Action)
        said = f"result: {ended.action.text}" if isinstance(ended, Decision) else f"{ended.outcome}: {ended.reason}"
        return name, said + (f"; after: {bool(processes_named(daemon))}" if name == "leave_a_daemon" else "")

    return dict(await asyncio.gather(*(one(name) for name in GREED)))


def make(agents: Any) -> ProgramAgent:
    agent = agents(TASK, 0)
    assert isinstance(agent, ProgramAgent)
    return agent


def about(other: ProgramAgent, ended: ProgramAgent, shown: Path, *, control: bool) -> dict[str, Any]:
    """Return the facts that the attempts are told. In the control, the keys are of a live episode."""
    gateway, live = other._gateway, other._exchange.token
    with gateway.admit(ended._exchange):
        pass
    assert other._program is not None
    return {
        "other_pid": other._program.process.pid,
        "other_folder": str(other._workspace),
        "gateway_port": gateway.port,
        "gateway_folder": str(gateway.folder),
        "ended_key": live if control else ended._exchange.token,
        "forged_key": live if control else live[:-1] + ("a" if live[-1] != "a" else "b"),
        "env_file": str(shown / "environment.py"),
        "env_module": str(shown / "gold_beside.py"),
        "env_byte_code": cache_from_source(str(shown / "gold_beside.py")),
        "plugin_data": str(shown / "site" / "plugged" / "gold.json"),
        "shown_file": str(shown / "inside.py"),
        "suite_file": str(Path(gymcp.envs.suites.__path__[0]) / "bfcl" / "suite.py"),
    }


def main() -> None:
    sandbox, folder, token, set_id = sys.argv[1:]
    found = asyncio.run(play("none" if sandbox == "none" else "bwrap", Path(folder), token, set_id))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
