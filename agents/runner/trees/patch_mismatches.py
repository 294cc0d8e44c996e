"""A controller that keeps an episode on the path of a recorded one: an action that differs from it is replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gymcp.agents.runner.trees.controller import GO_ON, Choice, Played, Replace, Start, Stop, TreeBudget
from gymcp.mcp_servers.digest import digest
from gymcp.types import Action, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchMismatches:
    """A controller that replaces each action that is not the demonstration's by the demonstration's.

    The policy goes on from its own earlier answers, and from the demonstration's action where its own was replaced. Its
    own answer stays in the record, as a side answer of the step, so that it can be learnt from. Nothing branches. An
    episode of a task without a demonstration ends at its first step.

    Source: arXiv:2509.11543 (UI-S1). There states come from the recording as well, and an episode ends at the mismatch
    after the last that is replaced; here the world is live, and that mismatch is replaced, too.
    """

    undoes: ClassVar[bool] = True
    demonstrations: Mapping[str, Sequence[Action]]
    """Id of a task -> the actions of its demonstration, one for each step."""
    patches: int = 2
    """Mismatches in an episode after which it goes on; the next one ends it."""
    texts: bool = False
    """True: what is said without a call must be the demonstration's, apart from case and space; False: it must be said
    without a call."""

    def plan(self, tasks: Sequence[Task], budget: TreeBudget) -> tuple[Start, ...]:
        """As many episodes of every task as the run has trials."""
        return tuple(Start(task=task.id, trees=budget.trials) for task in tasks)

    def after(self, played: Played) -> Choice:
        """The demonstration's action in place of another one; the end where the demonstration has ended."""
        actions = self.demonstrations.get(played.task, ())
        if played.number > len(actions):
            return Stop(f"the demonstration ends with step {len(actions)}" if actions else "there is no demonstration")
        shown = actions[played.number - 1]
        if is_same_action(played.step.action, shown, texts=self.texts):
            return GO_ON
        is_last = played.spent.undone >= self.patches
        why = f"one more action differs than may be replaced ({self.patches})" if is_last else ""
        return Replace(shown, keep_answer=True, stop=why)

    def at_end(self, played: Played) -> Choice:
        """The same for the step that ended the episode, such as an answer that came too early."""
        return self.after(played)


def is_same_action(action: Action, shown: Action, *, texts: bool) -> bool:
    """True if both make the same calls with the same arguments, in the same order, or both only speak.

    `texts`: what they say must then be the same, too, apart from case and space.
    """
    if not action.tool_calls and not shown.tool_calls:
        return not texts or action.text.lower().split() == shown.text.lower().split()
    return _digest_calls(action) == _digest_calls(shown)


def _digest_calls(action: Action) -> list[tuple[str, str]]:
    return [(call.name, digest(call.arguments)) for call in action.tool_calls]
