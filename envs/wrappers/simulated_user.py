"""A model in place of an environment's user."""

from __future__ import annotations

from dataclasses import replace

from gymcp.envs.spec import LoadedEnv
from gymcp.envs.users import SimulatedUser
from gymcp.errors import ConfigError
from gymcp.protocols import ChatPolicy, User
from gymcp.types import Sampling, Task


def simulate_user(env: LoadedEnv, policy: ChatPolicy, sampling: Sampling) -> LoadedEnv:
    """The environment with a user that the policy plays according to each task's scenario.

    It makes no further tasks: these have no scenario.
    """

    def user(task: Task) -> User:
        return SimulatedUser(policy=policy, scenario=task.user.scenario or "", sampling=sampling)

    return replace(env, spec=replace(env.spec, user=user, more_tasks=None))


def check_scenarios(env: LoadedEnv) -> None:
    """Raises ConfigError if a task has no scenario, which tells a model how to play the user."""
    if bare := next((task for task in env.suite.tasks if not task.user.scenario), None):
        raise ConfigError(
            f"environment '{env.spec.name}': task '{bare.id}' has no scenario, so no model can play its user; "
            "environments whose tasks have one: tau2_dual"
        )
