"""Makes TextWorld's games with TextWorld's own code, which is mounted beside this file; it is no MCP server.

Standard input has one order per line, ``{"challenge": ..., "settings": {...}, "seed": number}``. Standard output has
one game per line: the data that `server.py` needs to play it, and separately the commands that solve it, or null if
TextWorld cannot make a game of that seed. Nothing is compiled: a game is its facts, its rules and its quests.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Json = Any

CHALLENGES = {
    "coin": "tw_coin_collector.coin_collector",
    "treasure": "tw_treasure_hunter.treasure_hunter",
    "cooking": "tw_cooking.cooking",
}
_UNPLAYABLE = ("look", "inventory", "examine")
"""Prefixes of rules that change nothing; the server has its own tools for them."""

_PREPARE = "prepare meal"


def main() -> None:
    """Make one game per line of standard input."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    new_options, walkthrough = textworld()
    for line in sys.stdin:
        order = json.loads(line)
        try:
            game = _game_record(make_game(new_options, order), walkthrough)
        except (ValueError, AssertionError, IndexError, KeyError, TypeError) as error:
            sys.stderr.write(f"{order['challenge']} {order['seed']}: {error!r}\n")
            game = None
        finally:
            walkthrough.clear()
        sys.stdout.write(json.dumps(game, separators=(",", ":")) + "\n")
        sys.stdout.flush()


def textworld() -> tuple[Callable[[], Any], list[str]]:
    """(constructor of TextWorld's game options, list that gets the walkthrough of each game that is made).

    TextWorld is imported without the modules that play compiled games, which would need spaCy and a Z-machine.
    """
    warnings.simplefilter("ignore")
    spec = importlib.util.find_spec("textworld")
    if spec is None:
        raise SystemExit("textworld is not mounted")
    package = importlib.util.module_from_spec(spec)  # not executed: it would import the players
    sys.modules["textworld"] = package
    for name in ("textworld.envs", "textworld.envs.wrappers"):
        sys.modules[name] = types.ModuleType(name)
    _set(sys.modules["textworld.envs.wrappers"], Recorder=None)
    _set(package, g_rng=importlib.import_module("textworld.utils").g_rng)
    generator = importlib.import_module("textworld.generator")
    data = importlib.import_module("textworld.generator.data")
    names = {name: getattr(generator, name) for name in ("Game", "GameMaker", "GameOptions", "GenerationWarning")}
    _set(package, generator=generator, **names)
    _set(data.KnowledgeBase, load=functools.cache(data.KnowledgeBase.load))  # parsing it takes a second
    walkthrough: list[str] = []
    # TextWorld's own method would compile the game
    _set(generator.GameMaker, set_walkthrough=lambda maker, commands: walkthrough.extend(commands))
    return generator.GameOptions, walkthrough


def _set(target: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(target, name, value)


def make_game(new_options: Callable[[], Any], order: Mapping[str, Json]) -> Any:
    """TextWorld's own game for an order. Raises TextWorld's errors if it cannot make one."""
    options = new_options()
    options.seeds = order["seed"]
    module = importlib.import_module(f"textworld.challenges.{CHALLENGES[order['challenge']]}")
    return module.make(dict(order["settings"]), options)


def _game_record(game: Any, walkthrough: Sequence[str]) -> Json:
    planned = [command for quest in game.quests for event in quest.win_events for command in event.commands]
    return {"game": _compact(game), "walkthrough": list(walkthrough) or planned}


def _compact(game: Any) -> Json:
    infos = {key: info for key, info in game.infos.items() if key not in ("P", "I")}
    kinds = {info.type for info in infos.values()}
    above = _kinds_above(game, kinds)
    rules = [_rule(rule, game.kb.inform7_commands[rule.name]) for rule in game.kb.rules.values() if _playable(rule)]
    recipe = game.metadata.get("ingredients", ())
    rules = [
        _require_cooked(rule, recipe) for rule in rules if rule[0] != _PREPARE or len(_ingredients(rule)) == len(recipe)
    ]
    existing = {kind for kinds_above in above.values() for kind in kinds_above} | {"P", "I"}
    return {
        "kinds": above,
        "rules": [
            rule for rule in rules if {kind for fact in (*rule[1], *rule[2]) for _, kind in fact[1:]} <= existing
        ],
        "facts": sorted([fact.name, *(each.name for each in fact.arguments)] for fact in game.world.facts),
        "names": {key: [info.name or "", info.type] for key, info in infos.items()},
        "texts": {key: info.desc for key, info in infos.items() if info.desc and info.type != "r"},
        "quests": [[quest.reward, _events(quest.win_events), _events(quest.fail_events)] for quest in game.quests],
    }


def _kinds_above(game: Any, kinds: Iterable[str]) -> dict[str, list[str]]:
    """Kind -> the kinds that it is a kind of, itself included."""
    tree = game.kb.types
    return {kind: sorted({kind, *tree.get_ancestors(kind)}) for kind in sorted(kinds)}


def _playable(rule: Any) -> bool:
    return not rule.name.startswith(_UNPLAYABLE)


def _rule(rule: Any, command: str) -> Json:
    return [command, _terms(rule.preconditions), _terms(rule.postconditions)]


def _terms(predicates: Iterable[Any]) -> Json:
    return [[each.name, *([part.name, part.type] for part in each.parameters)] for each in predicates]


def _ingredients(rule: Json) -> dict[str, Json]:
    """Predicate -> variable of each ingredient in a recipe's rule."""
    return {term[0]: term[1] for term in rule[1] if term[0].startswith("ingredient_")}


def _require_cooked(rule: Json, recipe: Sequence[Sequence[str]]) -> Json:
    """Require of a meal, as in the compiled game, that its ingredients are ready. (Wrongly prepared ones lose it.)"""
    if rule[0] != _PREPARE:
        return rule
    done = [
        [state, variable]
        for variable, (_, *states) in zip(_ingredients(rule).values(), recipe)  # noqa: B905
        for state in states
        if state not in ("raw", "uncut")
    ]
    return [rule[0], [*rule[1], *done], [*rule[2], *done]]


def _events(events: Iterable[Any]) -> Json:
    return [
        [[fact.name, *(part.name for part in fact.arguments)] for fact in event.condition.preconditions]
        for event in events
    ]
