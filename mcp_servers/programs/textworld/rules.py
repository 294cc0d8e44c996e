"""The logic of a TextWorld game: facts, rules that change them, quests that watch them. Standard library only.

A fact is ``(predicate, entity, ...)``. A rule is applied to entities of its kinds, with a different entity for each
variable; facts that it needs and does not give back are removed. A quest is won or failed by its first event of which
all facts hold, and stays so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Fact = tuple[str, ...]
Binding = dict[str, str]

CONSTANTS = {"P": "P", "I": "I"}
"""Kind -> its only entity, for the player and its inventory: a variable of that kind has no other value."""


class Rule:
    """One way to act: a command with ``{variables}``, the facts that it needs, the facts that hold afterwards."""

    def __init__(self, command: str, needs: Sequence[Any], gives: Sequence[Any]) -> None:
        self.command = command
        self.verb = command.partition(" ")[0]
        self.slots = [part.split("}")[0] for part in command.split("{")[1:]]
        self.kinds = {name: kind for term in (*needs, *gives) for name, kind in term[1:]}
        self.needs = [(term[0], *(name for name, _ in term[1:])) for term in needs]
        self.gives = [(term[0], *(name for name, _ in term[1:])) for term in gives]


class World:
    """The facts that hold now. `kinds` maps an entity to all of its kinds."""

    def __init__(self, facts: Sequence[Sequence[str]], kinds: Mapping[str, Sequence[str]]) -> None:
        self.kinds = kinds
        self._by_name: dict[str, set[Fact]] = {}
        for fact in facts:
            self.add(tuple(fact))

    def __contains__(self, fact: Fact) -> bool:
        return fact in self._by_name.get(fact[0], ())

    def add(self, fact: Fact) -> None:
        self._by_name.setdefault(fact[0], set()).add(fact)

    def remove(self, fact: Fact) -> None:
        self._by_name[fact[0]].discard(fact)

    def facts_of(self, name: str) -> list[Fact]:
        """Facts of one predicate, in the order of their entities."""
        return sorted(self._by_name.get(name, ()))

    def facts(self) -> list[Fact]:
        return sorted(fact for facts in self._by_name.values() for fact in facts)

    def bindings(self, rule: Rule, bound: Mapping[str, str]) -> Iterator[Binding]:
        """All variable bindings with which the rule can be applied, and that include `bound`."""
        fixed = {name: CONSTANTS[kind] for name, kind in rule.kinds.items() if kind in CONSTANTS}
        start = {**fixed, **bound}
        if all(self._has_kind(entity, rule.kinds[name]) for name, entity in start.items()):
            yield from self._match(rule, 0, start)

    def apply(self, rule: Rule, binding: Binding) -> None:
        """Apply a rule: remove the facts that it needs, then add those that it gives, which may be the same facts."""
        for fact in rule.needs:
            self.remove(_substitute(fact, binding))
        for fact in rule.gives:
            self.add(_substitute(fact, binding))

    def _match(self, rule: Rule, at: int, binding: Binding) -> Iterator[Binding]:
        if at == len(rule.needs):
            yield binding
            return
        pattern = rule.needs[at]
        if all(name in binding for name in pattern[1:]):
            if _substitute(pattern, binding) in self:
                yield from self._match(rule, at + 1, binding)
            return
        for fact in self.facts_of(pattern[0]):
            if len(fact) == len(pattern) and (extended := self._unify(rule, pattern, fact, binding)) is not None:
                yield from self._match(rule, at + 1, extended)

    def _unify(self, rule: Rule, pattern: Fact, fact: Fact, binding: Binding) -> Binding | None:
        extended = dict(binding)
        for name, entity in zip(pattern[1:], fact[1:]):  # noqa: B905 (3.9 has no strict=; lengths are equal)
            if name in extended:
                if extended[name] != entity:
                    return None
            elif entity in extended.values() or not self._has_kind(entity, rule.kinds[name]):
                return None
            else:
                extended[name] = entity
        return extended

    def _has_kind(self, entity: str, kind: str) -> bool:
        return kind in self.kinds.get(entity, ())


class Quests:
    """The quests of a game and their results. A quest is ``[reward, win events, fail events]``."""

    def __init__(self, quests: Sequence[Any]) -> None:
        self._quests = quests
        self.won = [False] * len(quests)
        self.failed = [False] * len(quests)

    def watch(self, world: World) -> None:
        """Update the results; call it at the start and after every change."""
        for at, (_, win, fail) in enumerate(self._quests):
            if not (self.won[at] or self.failed[at]):
                self.won[at] = any(_holds(event, world) for event in win)
                self.failed[at] = any(_holds(event, world) for event in fail)

    @property
    def score(self) -> int:
        return sum(quest[0] for quest, won in zip(self._quests, self.won) if won)  # noqa: B905

    @property
    def max_score(self) -> int:
        return sum(quest[0] for quest in self._quests)

    @property
    def is_lost(self) -> bool:
        return any(self.failed)

    @property
    def is_won(self) -> bool:
        """True if every quest that can be won is won; a quest without win events can only be failed."""
        return all(won for (_, win, _), won in zip(self._quests, self.won) if win)  # noqa: B905


def _substitute(fact: Fact, binding: Mapping[str, str]) -> Fact:
    return (fact[0], *(binding[name] for name in fact[1:]))


def _holds(event: Sequence[Sequence[str]], world: World) -> bool:
    return all(tuple(fact) in world for fact in event)
