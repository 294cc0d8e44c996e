"""A TextWorld game as an MCP server, which gets facts, rules and quests, but no walkthrough.

A task's initial state is ``{"game": ...}`` as `maker.py` writes it. The declared state is every fact that a rule can
change, the score, and the result: won or lost. It has no count of turns, so a way back leads to the same state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gymcp.mcp_servers.native.runtime import ToolError, class_server
from gymcp.mcp_servers.programs.textworld.rules import CONSTANTS, Binding, Quests, Rule, World

DIRECTIONS = ("north", "east", "south", "west")
OPENNESS = ("open", "closed", "locked")
PREPARED = ("uncut", "chopped", "sliced", "diced", "raw", "fried", "roasted", "grilled", "burned")
_DEFAULT_STATES = ("uncut", "raw")
"""States that descriptions leave out."""


class TextWorld:
    """Public methods are the tools; `facts`, `score`, `won` and `lost` are the state."""

    def __init__(self, game: Mapping[str, Any] | None = None) -> None:
        game = game or {"rules": [], "facts": [], "names": {}, "kinds": {}, "texts": {}, "quests": []}
        self._rules = [Rule(*rule) for rule in game["rules"]]
        self._names = {entity: name for entity, (name, _) in game["names"].items()}
        kinds = {entity: game["kinds"][kind] for entity, (_, kind) in game["names"].items()}
        self._world = World(game["facts"], {**kinds, **{kind: [kind] for kind in CONSTANTS}})
        self._texts = game["texts"]
        self._quests = Quests(game["quests"])
        self._changing = set(_changing(self._rules))
        self._update_state()

    def look(self) -> str:
        """What there is where you are, and where the exits lead."""
        here = self._here()
        things = [entity for _, entity, place in self._world.facts_of("at") if place == here and entity != "P"]
        furniture = [entity for entity in things if self._has_kind(entity, "c") or self._has_kind(entity, "s")]
        lying = [entity for entity in things if entity not in furniture]
        said = [f"You are in the {self._names[here]}."]
        if furniture:
            said.append(f"Here: {', '.join(map(self._with_content, furniture))}.")
        if lying:
            said.append(f"On the floor: {self._format_list(lying)}.")
        exits = [self._exit(direction, room) for direction, room in self._exits()]
        return " ".join([*said, f"Exits: {', '.join(exits) or 'none'}."])

    def inventory(self) -> str:
        """What you carry."""
        return f"You carry: {self._format_list(self._list_carried()) or 'nothing'}."

    def examine(self, thing: str) -> str:
        """A closer look at a thing, such as a book."""
        entity = self._find(thing)
        text = _without_conditions(self._texts.get(entity, ""))
        return f"{self._with_content(entity)}. {text}".strip()

    def commands(self) -> str:
        """Everything that could be done now, one command a line."""
        found = {
            " ".join(rule.command.format_map(self._entity_names(binding)).split())
            for rule in self._rules
            for binding in self._world.bindings(rule, {})
        }
        return "\n".join(sorted(found)) if not self._is_over() else "nothing: the game is over"

    def go(self, direction: str) -> str:
        """Go north, east, south or west."""
        exits = dict(self._exits())
        if direction not in exits:
            raise ToolError(f"there is no exit {direction}; exits: {', '.join(exits) or 'none'}")
        if not self._apply_first(f"go {direction}", {}):
            raise ToolError(f"the way {self._exit(direction, exits[direction])} is not open")
        return f"{self.look()}{self._update_state()}"

    def open(self, thing: str) -> str:
        """Open a door or a container."""
        return self._act("open", thing)

    def close(self, thing: str) -> str:
        """Close a door or a container."""
        return self._act("close", thing)

    def unlock(self, thing: str, key: str) -> str:
        """Unlock a door or a container with a key that you carry."""
        return self._act("unlock", thing, key)

    def lock(self, thing: str, key: str) -> str:
        """Lock a door or a container with a key that you carry."""
        return self._act("lock", thing, key)

    def take(self, thing: str) -> str:
        """Take a thing, wherever you see it."""
        return self._act("take", thing)

    def drop(self, thing: str) -> str:
        """Put a thing that you carry on the floor."""
        return self._act("drop", thing)

    def insert(self, thing: str, container: str) -> str:
        """Put a thing that you carry into an open container."""
        return self._act("insert", thing, container)

    def put(self, thing: str, supporter: str) -> str:
        """Put a thing that you carry on a piece of furniture."""
        return self._act("put", thing, supporter)

    def eat(self, food: str) -> str:
        """Eat something that you carry."""
        return self._act("eat", food)

    def drink(self, food: str) -> str:
        """Drink something that you carry."""
        return self._act("drink", food)

    def chop(self, food: str, knife: str) -> str:
        """Chop food that you carry."""
        return self._act("chop", food, knife)

    def slice(self, food: str, knife: str) -> str:
        """Slice food that you carry."""
        return self._act("slice", food, knife)

    def dice(self, food: str, knife: str) -> str:
        """Dice food that you carry."""
        return self._act("dice", food, knife)

    def cook(self, food: str, appliance: str) -> str:
        """Cook food that you carry: a stove fries, an oven roasts, a BBQ grills. Cooking it twice burns it."""
        return self._act("cook", food, appliance)

    def prepare_meal(self) -> str:
        """Make the meal of the recipe from what you carry, in the kitchen."""
        if not self._apply_first("prepare meal", {}):
            raise ToolError(
                "not now: it takes the kitchen, and all ingredients in hand, cut and cooked as they must be"
            )
        return f"You prepare the meal.{self._update_state()}"

    def _act(self, verb: str, *things: str) -> str:
        entities = [self._find(thing) for thing in things]
        for rule in self._rules:
            # the first entities; "take X from Y" finds its Y itself
            if rule.verb == verb and self._apply_first(rule.command, dict(zip(rule.slots, entities))):  # noqa: B905
                return f"{verb}: {', '.join(map(self._describe, entities))}.{self._update_state()}"
        raise ToolError(f"you cannot {verb} {' '.join(things)} now")

    def _apply_first(self, command: str, bound: Binding) -> bool:
        """Apply the first applicable rule of a command; False if there is none. Raises ToolError after the game."""
        if self._is_over():
            raise ToolError("the game is over")
        for rule in self._rules:
            if rule.command == command:
                for binding in self._world.bindings(rule, bound):
                    self._world.apply(rule, binding)
                    return True
        return False

    def _update_state(self) -> str:
        """Update score, result and facts, and return a text about their changes."""
        before = self._quests.score
        self._quests.watch(self._world)
        self.facts = [self._format_fact(fact) for fact in self._world.facts() if fact[0] in self._changing]
        self.score = self._quests.score
        self.lost = self._quests.is_lost
        self.won = self._quests.is_won and not self.lost
        said = f" Score: {self.score} of {self._quests.max_score}." if self.score > before else ""
        return said + (" You have lost." if self.lost else " You have won." if self.won else "")

    def _is_over(self) -> bool:
        return self.won or self.lost

    def _here(self) -> str:
        return next(place for _, entity, place in self._world.facts_of("at") if entity == "P")

    def _exits(self) -> Iterator[tuple[str, str]]:
        here = self._here()
        for direction in DIRECTIONS:
            for _, room, other in self._world.facts_of(f"{direction}_of"):
                if other == here:
                    yield direction, room

    def _exit(self, direction: str, room: str) -> str:
        door = self._door(self._here(), room)
        return f"{direction} through {self._describe(door)}" if door else direction

    def _door(self, a: str, b: str) -> str | None:
        return next((door for _, left, door, right in self._world.facts_of("link") if (left, right) == (a, b)), None)

    def _list_carried(self) -> list[str]:
        return self._inside("in", "I")

    def _inside(self, how: str, place: str) -> list[str]:
        return [entity for _, entity, holder in self._world.facts_of(how) if holder == place]

    def _visible_entities(self) -> Iterator[str]:
        here = self._here()
        yield from self._list_carried()
        for _, entity, place in self._world.facts_of("at"):
            if place == here and entity != "P":
                yield entity
                yield from self._content(entity)
        yield from (door for _, left, door, _ in self._world.facts_of("link") if left == here)

    def _content(self, entity: str) -> list[str]:
        """Entities that are visible in or on an entity."""
        if self._has_kind(entity, "c"):
            return self._inside("in", entity) if ("open", entity) in self._world else []
        return self._inside("on", entity)

    def _find(self, thing: str) -> str:
        wanted = " ".join(thing.lower().split()).removeprefix("the ")
        for entity in self._visible_entities():
            if self._names[entity].lower() == wanted:
                return entity
        raise ToolError(f"there is no {thing} here")

    def _has_kind(self, entity: str, kind: str) -> bool:
        return kind in self._world.kinds[entity]

    def _format_list(self, entities: Iterable[str]) -> str:
        return ", ".join(map(self._describe, entities))

    def _describe(self, entity: str) -> str:
        """Name of an entity as tool calls take it, and its states."""
        states = [state for state in (*OPENNESS, *PREPARED) if (state, entity) in self._world]
        named = [state for state in states if state not in _DEFAULT_STATES]
        return f"{self._names[entity]} ({', '.join(named)})" if named else self._names[entity]

    def _with_content(self, entity: str) -> str:
        content = self._content(entity)
        if content:
            return f"{self._describe(entity)} with {' and '.join(map(self._describe, content))}"
        return self._describe(entity)

    def _entity_names(self, binding: Binding) -> dict[str, str]:
        return {name: self._names.get(entity, entity) for name, entity in binding.items()}

    def _format_fact(self, fact: tuple[str, ...]) -> str:
        words = (f"{self._names[part]} {part}" if self._names.get(part) else part for part in fact[1:])
        return f"{fact[0]}({', '.join(words)})"


def _changing(rules: Iterable[Rule]) -> Iterator[str]:
    """Predicates of facts that some rule removes or adds."""
    for rule in rules:
        yield from (fact[0] for fact in set(rule.needs) ^ set(rule.gives))


def _without_conditions(text: str) -> str:
    """The text without the parts that TextWorld's player would fill in by the state, which `_describe` adds instead."""
    parts, depth = [], 0
    for part in text.replace("]", "[").split("["):
        depth += part.startswith("if ") - (part == "end if")
        if depth == 0 and part != "end if":
            parts.append(part)
    lines = (" ".join(line.split()) for line in "".join(parts).splitlines())
    return "; ".join(line for line in lines if line.strip("-"))


def main() -> None:
    class_server(TextWorld, "textworld").run()
