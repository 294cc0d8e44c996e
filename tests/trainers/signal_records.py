"""Records of a small shop for tests of signals, and a model that is asked about them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gymcp.trainers.credit.signals.signal import Continuation, HeadPlaces
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats
from gymcp.types import Action, GoldTurn, Observation, Sampled, Step, Task, Tool, ToolCall, ToolResult, Trajectory

NAN = math.nan
PIECES = {
    20: "<swi",
    21: "tch>SWITCH</switch>",
    22: "<subgoal>find",
    23: " it</subgoal>",
    24: "<switch>KEEP</switch>",
    25: "go",
}
FIND, BUY = ToolCall(id="0", name="find", arguments={"q": 1}), ToolCall(id="1", name="buy", arguments={"n": 2})
SELL = ToolCall(id="2", name="sell", arguments={"n": 2})
TASKS = {"shop": Task(id="shop", prompts=("",), gold=(GoldTurn(calls=(FIND, BUY), final_text="done"),))}


def make_step(*calls: ToolCall, sampled: Sampled | None = None, turn: int = 0, valid: bool = True) -> Step:
    results = tuple(ToolResult(call_id=call.id, content="") for call in calls)
    action = Action(text="" if calls else "done", tool_calls=calls)
    seen = Observation(messages=(), tools=())
    return Step(
        turn=turn, observation=seen, action=action, results=results, sampled=sampled, valid=valid, state_key="s"
    )


def make_record(*steps: Step, trial: int = 0, score: float = 0.0, task: str = "shop") -> Trajectory:
    return Trajectory(id=str(trial), env="e", task=task, group=f"e/{task}", trial=trial, steps=steps, score=score)


def make_sample(prompt: Sequence[int], ids: Sequence[int]) -> Sampled:
    return Sampled(prompt_ids=tuple(prompt), ids=tuple(ids), logprobs=(-1.0,) * len(ids), versions=())


class CountingModel:
    """Log-probability of every token: minus a tenth of the mean of its context. `asked` keeps the continuations."""

    def __init__(self) -> None:
        self.asked: list[Continuation] = []

    def logprobs(self, continuations: Sequence[Continuation]) -> list[Floats]:
        self.asked += continuations
        return [np.full(len(each.ids), -0.1 * float(np.mean(each.context))) for each in continuations]

    def drawn_logprobs(self, batch: StepBatch) -> list[Floats]:
        found = [each.sampled for own in batch.sources for each in own.steps]
        return [np.full(len(each.ids), -0.1 * float(np.mean(each.prompt_ids))) for each in found if each is not None]

    def drawn_entropies(self, batch: StepBatch) -> list[Floats]:
        return [np.ones(len(each)) for each in self.drawn_logprobs(batch)]

    def entropies(self, batch: StepBatch) -> Floats:
        return np.ones(int(batch.starts[-1]))

    def values(self, batch: StepBatch) -> Floats:
        return np.zeros(int(batch.starts[-1]))

    def head_values(self, name: str, places: HeadPlaces) -> Floats:
        """Values 0, 1, 2 ... of the 13 tokens that the test of segments has; 100 more from the head of segments."""
        return np.arange(13.0) + (100 if name == "option_high" else 0)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        return [PIECES[token] for token in ids]

    def encode_answer(self, action: Action, tools: Sequence[Tool]) -> tuple[int, ...]:
        return (90, 91) if action.text else (92, 93, 94)

    def encode_text(self, text: str) -> tuple[int, ...]:
        return (70, 71)

    @property
    def markup_ids(self) -> frozenset[int]:
        return frozenset({1})


TWO_STEPS = make_record(
    make_step(FIND, sampled=make_sample([2, 4], [6])),
    make_step(BUY, sampled=make_sample([2, 4, 6, 1, 8, 8, 8, 1], [10, 10])),
    score=1.0,
)
