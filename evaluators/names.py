"""Names for people: of models, of runs, and of the parts of a breakdown; and the name of a figure."""

from __future__ import annotations

import re
from collections.abc import Mapping

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


def list_judged_points(components: Mapping[str, float]) -> list[str]:
    """Ids of the points of a rubric that a judge has given its verdict on, from the components of a score."""
    figures = ("judge.verdicts", "judge.unanimous")
    return [name.removeprefix("judge.") for name in components if name.startswith("judge.") and name not in figures]


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
