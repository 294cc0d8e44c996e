"""Seeds derived from the seed of a run, so that each random choice depends on nothing but its own place in the run.

A name space is a fixed sequence of names. These are all that `derive_seed` is called with; names are joined by slashes
before they are hashed:

| names | seed for |
|---|---|
| run's seed, task id, trial | an episode, in an evaluation and in training |
| episode's seed, number of the answer | one answer of the agent's model |
| ``user``, episode's seed, number of messages | one answer of a model that plays the user |
| ``search``, first episode's seed, number of the episode | an episode of a search, after the first |
| ``branch``, episode's seed, place in the tree | an agent that goes on in a branch, or after a step was undone |
| ``entropy``, episode's seed, number of the step | the lot by which an episode branches before a step |
| check's seed, name of the tool | arguments of a trial call of `gymcp check`; nothing of it is recorded |
| ``critic``, critic's seed, environment, task id, trial | the errors of a scripted critic in one episode |

A name space added here must differ from all others in the number of its names or in a word in front: recorded runs
depend on every number, so none of them may change. Trial calls came without such a word. They do no harm: a tool whose
name is a number would only share its draws with an answer of a model.

For the same reason some modules keep a derivation of their own, which seeds `random.Random` with a text:
`envs/layers.py` (draws of a layer), `trainers/rollouts/curriculum.py` (order of the training tasks),
`trainers/rollouts/curricula/frontier.py` and `trainers/rollouts/curricula/failures.py` (kinds of tasks),
`trainers/rollouts/curricula/vade.py` (success rates of tasks),
`trainers/rollouts/recorded_demonstrations.py` (order of the demonstrations),
`trainers/run/experience/replay_buffer.py` (recalled episodes) and `envs/suites/rounds/demonstrators.py` (draws of an
imperfect agent, from the seed of its episode). Suites make each task from a text that names the task, without the seed
of a run.
"""

from __future__ import annotations

import hashlib


def derive_seed(*names: int | str) -> int:
    """A seed of 31 bits, because some inference engines accept no more: the first bits of the names' SHA-256."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
