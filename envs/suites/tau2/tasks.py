"""Task records from what upstream's code says of tau2's telecom tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gymcp.types import GoldTurn, Json, Task, ToolCall, UserScript

ALONE = """\
You are a technical support agent. You work on a ticket, and there is nobody to ask: you have the tools of the company
and those of the customer's phone. Follow the policy. When nothing is left to be done, say so."""
TOGETHER = """\
You are a technical support agent and talk with a customer. What is done on the customer's phone only they can do: tell
them, one thing at a time. Follow the policy. Either say something or call a tool."""
GREETING = "Hello. I need help with my phone; my case was written down like this: {ticket}"
INSTRUCTION = "Please do this on your phone: {what}"
ENDS = "That is all."


def task_id(upstream: str) -> str:
    """The task's id here.

    It is ``mms_issue.bad_vpn+data_mode_off.easy`` for upstream's ``[mms_issue]bad_vpn|data_mode_off[PERSONA:Easy]``.
    """
    return ".".join((_issue(upstream), "+".join(_faults(upstream)), _persona(upstream)))


def solo_task(row: Json, suite: Json) -> Task:
    """The task in which the agent reads the ticket and has all tools, the phone's too."""
    needed = row["last_necessary"]
    return Task(
        **_common_fields(row),
        prompts=(row["ticket"],),
        handbook=_handbook(ALONE, suite["texts"]["main_policy_solo"], suite["texts"]["tech_support_workflow_solo"]),
        target={"task": row["id"], "solo": True},
        gold=(GoldTurn(calls=tuple(_calls(row["gold"])), final_text=ENDS),),
        last_necessary=None if needed is None else (0, needed),
    )


def dual_task(row: Json, suite: Json) -> Task:
    """The task in which the agent talks with a user who has the phone's tools.

    Its gold has one turn for each instruction to the user.
    """
    turns: list[GoldTurn] = []
    places: list[tuple[int, int]] = []
    calls: list[ToolCall] = []
    for action, call in zip(row["gold"], _calls(row["gold"]), strict=True):
        places.append((len(turns), len(calls)))
        if action["requestor"] == "assistant":
            calls.append(call)
        else:
            turns.append(GoldTurn(calls=tuple(calls), final_text=INSTRUCTION.format(what=_in_words(action))))
            calls = []
    turns.append(GoldTurn(calls=tuple(calls), final_text=ENDS))
    needed = row["last_necessary"]
    return Task(
        **_common_fields(row),
        prompts=(GREETING.format(ticket=row["ticket"]),),
        handbook=_handbook(TOGETHER, suite["texts"]["main_policy"], suite["texts"]["tech_support_manual"]),
        target={"task": row["id"], "solo": False, "script": [a for a in row["gold"] if a["requestor"] == "user"]},
        gold=tuple(turns),
        last_necessary=None if needed is None else places[needed],
        user=UserScript(scenario=f"{suite['guidelines']}\n<scenario>\n{row['scenario']}\n</scenario>\n"),
    )


def script(task: Task) -> tuple[ToolCall, ...]:
    """The calls that the user of a task in dual control knows how to make."""
    return tuple(_calls(task.target["script"]))


def _common_fields(row: Json) -> dict[str, Json]:
    faults = _faults(row["id"])
    return {
        "id": task_id(row["id"]),
        "initial_state": {"actions": row["setup"]},
        "split": next((name for name in ("train", "test") if name in row["splits"]), "full"),
        "tags": (_issue(row["id"]), f"{len(faults)} faults", f"persona {_persona(row['id'])}"),
    }


def _handbook(instructions: str, main: str, support: str) -> str:
    policy = f"<main_policy>\n{main}\n</main_policy>\n<tech_support_policy>\n{support}\n</tech_support_policy>"
    return f"{instructions}\n\n<policy>\n{policy}\n</policy>"


def _calls(actions: Json) -> Iterator[ToolCall]:
    for number, action in enumerate(actions):
        yield ToolCall(id=f"gold-{number}", name=action["name"], arguments=action["arguments"])


def _in_words(action: Json) -> str:
    arguments = ", ".join(f"{name}: {value}" for name, value in action["arguments"].items())
    return f"{action['name']} ({arguments})" if arguments else str(action["name"])


def _issue(upstream: str) -> str:
    return _parts(upstream)[0]


def _faults(upstream: str) -> list[str]:
    return _parts(upstream)[1].split("|")


def _persona(upstream: str) -> str:
    return _parts(upstream)[2].casefold()


def _parts(upstream: str) -> tuple[str, str, str]:
    match = re.fullmatch(r"\[(\w+)\](.+)\[PERSONA:(\w+)\]", upstream)
    assert match is not None, upstream
    return match[1], match[2], match[3]
