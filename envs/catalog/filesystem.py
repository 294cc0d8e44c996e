"""Tasks that tidy, edit and add up files, with a third-party server: @modelcontextprotocol/server-filesystem."""

import random
from pathlib import Path

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.generation.single_turn import Call, one_turn
from gymcp.envs.tool_costs import rate_risks
from gymcp.evaluators.graders import final_files_equal
from gymcp.mcp_servers.packages.locked_server import LockedServerRef
from gymcp.mcp_servers.spec import FileState
from gymcp.types import Suite, Task

ROOT = "/workspace"
NOUNS = ("apples", "bolts", "candles", "drums", "envelopes", "flags", "gloves", "hinges")
Files = dict[str, str | None]


def tidy(number: int, rng: random.Random) -> Task:
    """A task that moves the notes whose text says that they are done into a new folder."""
    names = rng.sample(NOUNS, 5)
    done = set(rng.sample(names, 2))
    files: Files = {f"{name}.md": f"# {name}\nstatus: {'done' if name in done else 'open'}\n" for name in names}
    target: Files = {
        f"archive/{path}" if path.removesuffix(".md") in done else path: text for path, text in files.items()
    }
    moves: list[Call] = [
        ("move_file", {"source": f"{ROOT}/{name}.md", "destination": f"{ROOT}/archive/{name}.md"})
        for name in names
        if name in done
    ]
    calls: list[Call] = [
        ("read_multiple_files", {"paths": [f"{ROOT}/{name}.md" for name in names]}),
        ("create_directory", {"path": f"{ROOT}/archive"}),
        *moves,
    ]
    prompt = f"Move the notes in {ROOT} whose status is done into a new folder named archive. Leave the others."
    return _task(f"tidy_{number}", prompt, files, calls, target)


def edit(number: int, rng: random.Random) -> Task:
    """A task that changes one setting among several that look alike."""
    sections = rng.sample(NOUNS, 3)
    ports = rng.sample(range(8000, 9000), 4)
    text = "".join(f"[{name}]\nport = {port}\n\n" for name, port in zip(sections, ports, strict=False))
    which = rng.randrange(3)
    old = f"[{sections[which]}]\nport = {ports[which]}"
    new = f"[{sections[which]}]\nport = {ports[3]}"
    target: Files = {"settings.ini": text.replace(old, new), "README": "Ports are in settings.ini.\n"}
    calls: list[Call] = [
        ("read_text_file", {"path": f"{ROOT}/settings.ini"}),
        ("edit_file", {"path": f"{ROOT}/settings.ini", "edits": [{"oldText": old, "newText": new}]}),
    ]
    prompt = f"In {ROOT}/settings.ini set the port of {sections[which]} to {ports[3]}. Change nothing else."
    return _task(f"edit_{number}", prompt, {**target, "settings.ini": text}, calls, target)


def add_up(number: int, rng: random.Random) -> Task:
    """A task that adds up numbers from several files and writes the sum into a new one."""
    noun = rng.choice(NOUNS)
    counts = {f"shelf_{shelf}.txt": rng.randrange(3, 60) for shelf in range(1, 4)}
    files: Files = {path: f"{count} {noun}\n" for path, count in counts.items()}
    total = f"{sum(counts.values())} {noun}"
    calls: list[Call] = [
        ("read_multiple_files", {"paths": [f"{ROOT}/{path}" for path in files]}),
        ("write_file", {"path": f"{ROOT}/total.txt", "content": total}),
    ]
    prompt = (
        f"Add up the {noun} on the shelves in {ROOT} and write the total to {ROOT}/total.txt in the same form as on "
        "the shelves, as one line without a line end."
    )
    return _task(f"add_up_{number}", prompt, files, calls, {**files, "total.txt": total})


def make_suite() -> Suite:
    """The suite of 15 tasks, always the same ones."""
    rng = random.Random(20260831)
    tasks = [make(number, rng) for make in (tidy, edit, add_up) for number in range(5)]
    return Suite(name="filesystem", version="1", tasks=tuple(tasks), source="generated")


def _task(task_id: str, prompt: str, files: Files, calls: list[Call], target: Files) -> Task:
    return one_turn(task_id, prompt, calls, initial_state={"files": files}, target=target)


SERVER = LockedServerRef(
    name="filesystem", lock=Path(__file__).with_name("servers.lock"), state=FileState(kind="workspace")
)
ENV = EnvSpec(
    name="filesystem",
    description="Tidying and editing with server-filesystem (npm): 15 tasks.",
    servers=SERVER.servers,
    installed=SERVER.is_installed,
    suite=make_suite,
    costs=rate_risks({0.5: ("move_file", "write_file"), 0.2: ("create_directory", "edit_file")}),
    grade=final_files_equal(),
)
