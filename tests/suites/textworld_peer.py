"""A program inside the sandbox: TextWorld makes games, and its own logic plays them at random.

It writes each game as the maker would, then the facts and commands at every step.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
from typing import Any

from gymcp.mcp_servers.programs.textworld.maker import _game_record, make_game, textworld

STEPS = 30
OTHER_WAYS = ("look", "inventory", "examine", "prepare")
"""Commands that change nothing, and one whose conditions TextWorld knows in its compiled games only."""


def main() -> None:
    new_options, walkthrough = textworld()
    progression = importlib.import_module("textworld.generator.game").GameProgression
    for line in sys.stdin:
        order = json.loads(line)
        game = make_game(new_options, order)
        answer = [_game_record(game, walkthrough), play(progression(game), order["seed"])]
        walkthrough.clear()
        sys.stdout.write(json.dumps(answer) + "\n")


def play(game: Any, seed: int) -> list[Any]:
    """The command, facts, possible commands, score and failure of every step of one random play."""
    rng = random.Random(seed)
    names = {key: info.name for key, info in game.game.infos.items()}
    steps, chosen = [], ""
    for _ in range(STEPS):
        actions = {command: action for action in game.valid_actions if (command := command_of(action, names))}
        facts = sorted([fact.name, *(each.name for each in fact.arguments)] for fact in game.state.facts)
        failed = any(quest.failed for quest in game.quest_progressions)
        steps.append([chosen, facts, sorted(actions), game.score, failed])
        if not actions or failed or game.completed:
            break
        chosen = rng.choice(sorted(actions))
        game.update(actions[chosen])
    return steps


def command_of(action: Any, names: dict[str, str]) -> str:
    """The command of an action; empty for one that is not compared."""
    command = str(action.format_command(names))
    return "" if command.startswith(OTHER_WAYS) else command
