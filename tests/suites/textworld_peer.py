"""Runs inside: TextWorld's own logic plays at random, and says at every step what holds and what could be done."""

from __future__ import annotations

import importlib
import json
import random
import sys
from typing import Any

from gymcp.mcp_servers.programs.textworld.maker import make_game, textworld

STEPS = 30
OTHER_WAYS = ("look", "inventory", "examine", "prepare")
"""Commands that change nothing, and the one whose conditions TextWorld knows in its compiled games only."""


def main() -> None:
    new_options, said = textworld()
    progression = importlib.import_module("textworld.generator.game").GameProgression
    for line in sys.stdin:
        order = json.loads(line)
        said.clear()
        sys.stdout.write(json.dumps(played(progression(make_game(new_options, order)), order["seed"])) + "\n")


def played(game: Any, seed: int) -> list[Any]:
    rng = random.Random(seed)
    names = {key: info.name for key, info in game.game.infos.items()}
    found, chosen = [], ""
    for _ in range(STEPS):
        actions = {command: action for action in game.valid_actions if (command := worded(action, names))}
        facts = sorted([fact.name, *(each.name for each in fact.arguments)] for fact in game.state.facts)
        failed = any(quest.failed for quest in game.quest_progressions)
        found.append([chosen, facts, sorted(actions), game.score, failed])
        if not actions or failed or game.completed:
            break
        chosen = rng.choice(sorted(actions))
        game.update(actions[chosen])
    return found


def worded(action: Any, names: dict[str, str]) -> str:
    command = str(action.format_command(names))
    return "" if command.startswith(OTHER_WAYS) else command
