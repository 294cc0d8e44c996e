"""Names for people: of models, runs, parts of a breakdown and figures; and names of a judge's verdicts in a grade."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gymcp.types import Json

WITHOUT_NETWORK = "without_network"
"""Key in `Usage.tools` of the number of a tool's calls that failed for want of network; there is none if none did."""
UPPER_BOUND_KEY = "upper_bound"
"""Key of a run's config and summary: the reason why its success is only an upper bound."""
NET_OF_PRICE = "net_of_price"
"""Component of a score: the score less what the episode's questions or calls cost, at least 0."""
LOST_IN_ALL = "a server was lost after the agent's call in all"
"""Part of the reason of an episode that is graded though every attempt at it lost a server."""
LOSS_NOTE = "each time after a call of the agent; if the server is at fault, these scores say nothing of the agent"
"""Said to a reader of such scores."""
JUDGE_PREFIX = "judge."
"""Prefix of the components of a judge's verdict: one for each point of the rubric, and the two figures below."""
JUDGE_VERDICTS = f"{JUDGE_PREFIX}verdicts"
"""Component with the number of a judge's answers that are verdicts."""
JUDGE_UNANIMOUS = f"{JUDGE_PREFIX}unanimous"
"""Component that is 1 if all verdicts of a judge are equal, else 0."""
_DIGITS = re.compile(r"([0-9]{1,18})")


def model_name(policy: str) -> str:
    """The model of a policy spec without its address: "gpt-x" of ``openai:http://127.0.0.1:8799/v1#gpt-x``.

    A folder is named by its last part, ``local:/models/mine`` by "mine"; any other spec is its own name.
    """
    address, mark, model = policy.partition("#")
    if mark and model:
        return model
    kind, _, path = address.partition(":")
    return path.rstrip("/").rpartition("/")[2] or policy if kind == "local" else policy


def run_name(config: Mapping[str, Json]) -> str:
    """ "MODEL · ENVIRONMENT · AGENT" of a run's config, without the parts that it lacks; empty if it lacks all.

    The model comes first, because it is what differs between two runs.
    """
    model = model_name(str(config["policy"])) if config.get("policy") else ""
    return " · ".join(part for part in (model, *(str(config.get(key) or "") for key in ("env", "agent"))) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPart:
    """Verdict of a judge by one rubric: a whole grade, or a part of one."""

    name: str
    """Name of the part in a combined grade, which is also the component with its score; empty for a whole grade."""
    points: Mapping[str, bool]
    """Point of the rubric -> True if more than half of the votes say that it is met. In a combined grade, the id of the
    point follows the name of the part: "manners.polite"."""


def list_judged_parts(components: Mapping[str, float]) -> list[JudgedPart]:
    """Verdicts of judges in a grade, from its components; empty if no judge has given one.

    A verdict that ``gymcp judge --as-component`` added stands for the whole grade: those of its parts are left out.
    """
    dotted = {name.removesuffix(JUDGE_VERDICTS) for name in components if f".{name}".endswith(f".{JUDGE_VERDICTS}")}
    places = [""] if "" in dotted else sorted(dotted)
    return [JudgedPart(name=place.removesuffix("."), points=_read_points(components, place)) for place in places]


def _read_points(components: Mapping[str, float], place: str) -> dict[str, bool]:
    """The points of the part whose components begin with `place`, in their order."""
    start, figures = place + JUDGE_PREFIX, (place + JUDGE_VERDICTS, place + JUDGE_UNANIMOUS)
    return {
        place + name.removeprefix(start): share > 0.5
        for name, share in components.items()
        if name.startswith(start) and name not in figures
    }


def find_judged_points(components: Mapping[str, float]) -> dict[str, bool]:
    """Points of all rubrics by which a judge has given a verdict, as `JudgedPart` names them -> True if met."""
    return {name: met for part in list_judged_parts(components) for name, met in part.points.items()}


def label_of_part(axis: str, value: str) -> str:
    """A part of a breakdown as people say it: "level 2" and "split seeds", and a category or tag by its own name."""
    if axis in ("category", "tag"):
        return value
    return f"level {value}" if axis == "difficulty" and value.isdigit() else f"{axis} {value}"


def mark_upper_bound(text: str, why: Json) -> str:
    """The name of a run, or its success, with the mark of an upper bound if there is a reason why it is one.

    `why`: value of `UPPER_BOUND_KEY` in the run's config; None or empty for an ordinary run.
    """
    return f"{text} (upper bound)" if why else text


def natural_order(text: str) -> list[tuple[int, int, str]]:
    """Sort key by which "level 2" comes before "level 10"."""
    pieces = enumerate(_DIGITS.split(text))  # every second one is a number
    return [(number % 2, int(piece) if number % 2 else 0, piece) for number, piece in pieces]
