"""Records of episodes that visit given states, for tests that compare the steps of one state."""

from __future__ import annotations

from gymcp.types import Action, Message, Observation, Step, Trajectory


def visit(score: float, *places: tuple[str, str], group: str = "g", key: str = "{0}{1}") -> Trajectory:
    """An episode with a step for each place: the world, and the text that is read there; then the world is the next.

    `key`: format of a step's state key, from world and text.
    """
    worlds = [world for world, _ in places] + ["end"]
    steps = tuple(
        Step(
            turn=0,
            observation=Observation(messages=(Message(role="tool", content=seen),), tools=()),
            action=Action(),
            world_key=after,
            state_key=key.format(world, seen),
        )
        for (world, seen), after in zip(places, worlds[1:], strict=True)
    )
    return Trajectory(id="", env="e", task="t", group=group, steps=steps, initial_key=worlds[0], score=score)
