"""Tasks that stage, commit and branch, with a third-party server: mcp-server-git.

Times and names are fixed, so the hashes of objects are known in advance: targets are computed here, without git.
"""

import random
from pathlib import Path
from typing import Any

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.generation.git_objects import ENVIRONMENT, commit_name, index_of, repository_equals
from gymcp.envs.suites.generation.single_turn import Call, one_turn
from gymcp.envs.tool_costs import rate_risks
from gymcp.mcp_servers.packages.locked_server import LockedServerRef
from gymcp.mcp_servers.spec import FileState
from gymcp.types import Suite, Task

ROOT = "/workspace"
NAMES = ("anchor", "bridge", "cellar", "dock", "engine", "ferry", "gate", "harbour")
START = [["git", "init", "-q", "-b", "main"], ["git", "add", "-A"], ["git", "commit", "-q", "-m", "Start"]]
Files = dict[str, str]


def stage(number: int, rng: random.Random) -> Task:
    """A task that stages one of three changed files."""
    before, changed = _changes(rng)
    only = rng.choice(sorted(changed))
    staged = {**before, only: changed[only]}
    calls: list[Call] = [("git_status", {}), ("git_add", {"files": [only]})]
    prompt = f"In the repository {ROOT} stage the changes to {only}, and only those. Do not commit."
    return _task(f"stage_{number}", prompt, before, changed, calls, _state(before, staged, changed))


def commit(number: int, rng: random.Random) -> Task:
    """A task that commits two of three changed files."""
    before, changed = _changes(rng)
    chosen = sorted(rng.sample(sorted(changed), 2))
    message = f"Change {chosen[0]} and {chosen[1]}"
    staged = {**before, **{path: changed[path] for path in chosen}}
    head = commit_name(staged, message, parent=commit_name(before, "Start\n"))
    calls: list[Call] = [("git_add", {"files": chosen}), ("git_commit", {"message": message})]
    prompt = f"In the repository {ROOT} commit the changes to {chosen[0]} and {chosen[1]} with the message '{message}'."
    target = {**_state(before, staged, changed), "refs": {"refs/heads/main": head}}
    return _task(f"commit_{number}", prompt, before, changed, calls, target)


def branch(number: int, rng: random.Random) -> Task:
    """A task that makes a branch and checks it out; changed files stay changed."""
    before, changed = _changes(rng)
    name = f"topic/{rng.choice(NAMES)}"
    start = commit_name(before, "Start\n")
    calls: list[Call] = [("git_create_branch", {"branch_name": name}), ("git_checkout", {"branch_name": name})]
    prompt = f"In the repository {ROOT} make a branch named {name} from the current commit, and switch to it."
    target = {
        **_state(before, before, changed),
        "head": f"ref: refs/heads/{name}",
        "refs": {"refs/heads/main": start, f"refs/heads/{name}": start},
    }
    return _task(f"branch_{number}", prompt, before, changed, calls, target)


def make_suite() -> Suite:
    """The suite of 15 tasks, always the same ones."""
    rng = random.Random(20261019)
    tasks = [make(number, rng) for make in (stage, commit, branch) for number in range(5)]
    return Suite(name="git", version="1", tasks=tuple(tasks), source="generated")


def _changes(rng: random.Random) -> tuple[Files, Files]:
    """Four committed files, and the present content of the three that have changed since."""
    names = rng.sample(NAMES, 4)
    before = {f"{name}.txt": f"{name} {rng.randrange(100)}\n" for name in names}
    changed = {f"{name}.txt": f"{name} {rng.randrange(100, 200)}\n" for name in names[:3]}
    return before, changed


def _state(before: Files, staged: Files, changed: Files) -> dict[str, Any]:
    refs = {"refs/heads/main": commit_name(before, "Start\n")}
    return {"head": "ref: refs/heads/main", "refs": refs, "index": index_of(staged), "files": {**before, **changed}}


def _task(task_id: str, prompt: str, before: Files, changed: Files, calls: list[Call], target: dict[str, Any]) -> Task:
    gold = [(name, {"repo_path": ROOT, **arguments}) for name, arguments in calls]
    change = [["sh", "-c", 'printf %s "$2" > "$1"', "change", path, text] for path, text in changed.items()]
    state = {"files": before, "commands": [*START, *change]}
    return one_turn(task_id, prompt, gold, initial_state=state, target=target)


SERVER = LockedServerRef(
    name="git",
    lock=Path(__file__).with_name("servers.lock"),
    state=FileState(kind="git"),
    env=ENVIRONMENT,
)
ENV = EnvSpec(
    name="git",
    description="Staging, committing and branching with mcp-server-git (PyPI): 15 tasks.",
    servers=SERVER.servers,
    installed=SERVER.is_installed,
    suite=make_suite,
    costs=rate_risks(
        {0.5: ("git_checkout", "git_reset"), 0.2: ("git_add", "git_commit", "git_create_branch")},
    ),
    grade=repository_equals(),
)
