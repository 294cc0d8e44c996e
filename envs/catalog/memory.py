"""Tasks that keep a graph of people and firms correct, on a third-party server: @modelcontextprotocol/server-memory."""

import random
from pathlib import Path

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.generation.memory_graph import FILE, Graph, copy_graph, graph_equals, write_graph
from gymcp.envs.suites.generation.single_turn import Call, one_turn
from gymcp.envs.tool_costs import rate_risks
from gymcp.mcp_servers.packages.locked_server import LockedServerRef
from gymcp.mcp_servers.spec import FileState
from gymcp.types import Suite, Task

PEOPLE = ("Ann", "Bob", "Chen", "Dora", "Emil", "Fatma", "Goro", "Hana")
FIRMS = ("Acme", "Globex", "Initech", "Umbrella")
TASTES = ("likes tea", "plays chess", "speaks Dutch", "rides a bicycle", "collects stamps", "sings bass")


def remember(number: int, rng: random.Random) -> Task:
    """A task that adds a person and the firm that the person works at."""
    graph = _graph(rng)
    name = next(person for person in PEOPLE if person not in graph["entities"])
    taste, firm = rng.choice(TASTES), rng.choice(FIRMS)
    entity = {"name": name, "entityType": "person", "observations": [taste]}
    relation = {"from": name, "to": firm, "relationType": "works at"}
    target = copy_graph(graph)
    target["entities"][name] = ["person", [taste]]
    target["relations"] = sorted([*target["relations"], [name, "works at", firm]])
    calls: list[Call] = [("create_entities", {"entities": [entity]}), ("create_relations", {"relations": [relation]})]
    prompt = (
        f"Remember the person {name} with the observation '{taste}', and the relation 'works at' from {name} to {firm}."
    )
    return _task(f"remember_{number}", prompt, graph, calls, target)


def correct(number: int, rng: random.Random) -> Task:
    """A task that replaces a wrong observation."""
    graph = _graph(rng)
    name = rng.choice([name for name, (kind, _) in graph["entities"].items() if kind == "person"])
    wrong = graph["entities"][name][1][0]
    right = rng.choice([taste for taste in TASTES if taste not in graph["entities"][name][1]])
    target = copy_graph(graph)
    target["entities"][name][1] = sorted({*target["entities"][name][1], right} - {wrong})
    calls: list[Call] = [
        ("delete_observations", {"deletions": [{"entityName": name, "observations": [wrong]}]}),
        ("add_observations", {"observations": [{"entityName": name, "contents": [right]}]}),
    ]
    prompt = f"It is not true of {name} that '{wrong}'. Replace that observation by '{right}'."
    return _task(f"correct_{number}", prompt, graph, calls, target)


def change_job(number: int, rng: random.Random) -> Task:
    """A task that replaces a person's firm; the prompt does not name the old one."""
    graph = _graph(rng)
    name, _, old = rng.choice(graph["relations"])
    new = rng.choice([firm for firm in FIRMS if firm != old])
    target = copy_graph(graph)
    target["relations"] = sorted([row for row in graph["relations"] if row[0] != name] + [[name, "works at", new]])
    calls: list[Call] = [
        ("open_nodes", {"names": [name]}),
        ("delete_relations", {"relations": [{"from": name, "to": old, "relationType": "works at"}]}),
        ("create_relations", {"relations": [{"from": name, "to": new, "relationType": "works at"}]}),
    ]
    prompt = f"{name} has left for {new}. Look where {name} works now, and correct the relation."
    return _task(f"change_job_{number}", prompt, graph, calls, target)


def make_suite() -> Suite:
    """The suite of 15 tasks, always the same ones."""
    rng = random.Random(20260831)
    tasks = [make(number, rng) for make in (remember, correct, change_job) for number in range(5)]
    return Suite(name="memory", version="1", tasks=tuple(tasks), source="generated")


def _graph(rng: random.Random) -> Graph:
    """Four people with two tastes each, four firms, and for each person the relation to a firm."""
    people = rng.sample(PEOPLE, 4)
    entities = {name: ["person", sorted(rng.sample(TASTES, 2))] for name in people}
    entities |= {firm: ["firm", []] for firm in FIRMS}
    return {"entities": entities, "relations": sorted([name, "works at", rng.choice(FIRMS)] for name in people)}


def _task(task_id: str, prompt: str, graph: Graph, calls: list[Call], target: Graph) -> Task:
    return one_turn(task_id, prompt, calls, initial_state={"files": {FILE: write_graph(graph)}}, target=target)


SERVER = LockedServerRef(
    name="memory", lock=Path(__file__).with_name("servers.lock"), state=FileState(kind="workspace")
)
ENV = EnvSpec(
    name="memory",
    description="A knowledge graph kept right with server-memory (npm): 15 tasks.",
    servers=SERVER.servers,
    installed=SERVER.is_installed,
    suite=make_suite,
    costs=rate_risks(
        {
            0.5: ("delete_entities", "delete_observations", "delete_relations"),
            0.2: ("add_observations", "create_entities", "create_relations"),
        }
    ),
    grade=graph_equals(),
)
