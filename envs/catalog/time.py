"""Clock arithmetic with a third-party server: mcp-server-time, whose only deterministic tool is convert_time.

All zones are without daylight saving time: the server converts as of today, and an answer must stay right for ever.
"""

import random
from pathlib import Path

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.generation.fixed_offset_zones import DAY, ZONES, clock, shift
from gymcp.envs.suites.generation.single_turn import Call, one_turn
from gymcp.envs.tool_costs import CallCost, ToolCosts
from gymcp.evaluators.graders import all_of, answer_equals, calls_made
from gymcp.mcp_servers.packages.locked_server import LockedServerRef
from gymcp.types import Suite, Task


def convert(number: int, rng: random.Random) -> Task:
    """A task with one conversion."""
    source, target = rng.sample(sorted(ZONES), 2)
    now = _some_time(rng)
    there = shift(now, ZONES[target] - ZONES[source])
    prompt = f"A call is planned for {clock(now)} in {source}. Ask the time server what time that is in {target}."
    return _task(f"convert_{number}", prompt, [(source, now, target)], clock(there))


def arrive(number: int, rng: random.Random) -> Task:
    """A task whose second conversion depends on the result of the first."""
    source, target, home = rng.sample(sorted(ZONES), 3)
    start, minutes = _some_time(rng), rng.randrange(65, 14 * 60, 5)
    start_there = shift(start, ZONES[target] - ZONES[source])
    arrival = shift(start_there, minutes)
    at_home = shift(arrival, ZONES[home] - ZONES[target])
    prompt = (
        f"A flight leaves {source} at {clock(start)} local time and takes {minutes // 60} h {minutes % 60} min to "
        f"{target}. First ask the time server what time it is in {target} when it leaves. Add the duration of the "
        f"flight. Then ask the server what time that arrival is for somebody in {home}, and answer with that."
    )
    return _task(f"arrive_{number}", prompt, [(source, start, target), (target, arrival, home)], clock(at_home))


def meet(number: int, rng: random.Random) -> Task:
    """A task that converts one time for three other places, in order."""
    source, *others = rng.sample(sorted(ZONES), 4)
    now = _some_time(rng)
    there = [clock(shift(now, ZONES[other] - ZONES[source])) for other in others]
    prompt = (
        f"A meeting begins at {clock(now)} in {source}. Ask the time server, in this order, when that is in "
        f"{', '.join(others)}. Answer with the three times in that order, with commas between them"
    )
    return _task(f"meet_{number}", prompt + ".", [(source, now, other) for other in others], ", ".join(there))


def make_suite() -> Suite:
    """The suite of 18 tasks, always the same ones."""
    rng = random.Random(20261019)
    tasks = [make(number, rng) for make in (convert, arrive, meet) for number in range(6)]
    return Suite(name="time", version="1", tasks=tuple(tasks), source="generated")


def _task(task_id: str, prompt: str, conversions: list[tuple[str, int, str]], answer: str) -> Task:
    calls: list[Call] = [
        ("convert_time", {"source_timezone": source, "time": clock(time), "target_timezone": target})
        for source, time, target in conversions
    ]
    return one_turn(
        task_id,
        f"{prompt} Answer as HH:MM on a 24-hour clock, and say nothing else.",
        calls,
        target={"calls": [{"name": name, "arguments": arguments} for name, arguments in calls], "answer": answer},
        answer=answer,
    )


def _some_time(rng: random.Random) -> int:
    return rng.randrange(0, DAY, 5)


SERVER = LockedServerRef(name="time", lock=Path(__file__).with_name("servers.lock"), state="stateless")
ENV = EnvSpec(
    name="time",
    description="Clock arithmetic with mcp-server-time (PyPI): 18 tasks.",
    servers=SERVER.servers,
    installed=SERVER.is_installed,
    suite=make_suite,
    costs=ToolCosts(default=CallCost(seconds=0.0)),  # it computes, and looks nothing up
    components=("answer", "calls", "calls.calls_found"),
    grade=all_of({"answer": answer_equals(target_key="answer"), "calls": calls_made(target_key="calls")}),
    tools=frozenset({"convert_time"}),
)
