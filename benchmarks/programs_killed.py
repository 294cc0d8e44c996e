"""Agent programs of all kits, every other one killed with SIGKILL after the result of its first call.

Exit code 1 unless the killed ones end as ``agent_error`` after that step, all others solve their tasks, and nothing is
left.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from leftovers import count_resources, how_many_more
from program_killer import Killer
from program_kits import Kit, choose_kits, pick_tasks, play
from report_table import Result, options, show

from gymcp.agents.policies.models import ChatModel
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.outcome import Outcome
from gymcp.types import Task, Trajectory

ENV, TASKS = "workbench", 8
KILLED = "it ended with status 137"


def main() -> None:
    parser = options(__doc__, "2 tasks, and kits of Python only")
    parser.add_argument("--kits", default="", help="names of kits, with commas; default: all but Claude Code and Codex")
    args = parser.parse_args()
    env = load_env(load_spec(ENV))
    tasks = pick_tasks(env, 2 if args.quick else TASKS)
    chosen = choose_kits(args.kits)
    results: list[Result] = []
    for kit in chosen:
        if not (args.quick and kit.is_node):
            results += measure_kit(env, kit, tasks)
    show("programs_killed", results, as_json=args.json)
    short = [result for result in results if result.unit.startswith("of ") and result.value < int(result.unit[3:])]
    left = [result for result in results if result.metric.endswith(" left") and result.value]
    sys.exit(bool(short or left))


def measure_kit(env: LoadedEnv, kit: Kit, tasks: Sequence[Task]) -> list[Result]:
    """Ends of the episodes whose programs are killed, and of those beside them."""
    print(f"programs_killed: {kit.name}", file=sys.stderr, flush=True)
    program, victims = kit.install(), {task.id for task in tasks[::2]}
    play(env, program, tasks[1:2], ChatModel(name="gold", policy=kit.policy(tasks)), concurrency=1)  # once, unmeasured
    before = count_resources()
    policy = Killer(kit.policy(tasks), program.argv[1:], [task.prompts[0] for task in tasks[::2]])
    ended = play(env, program, tasks, ChatModel(name="gold", policy=policy), concurrency=4)
    left = how_many_more(before, count_resources())
    for episode in ended:
        if not tells_of_the_kill(episode) and episode.score != 1.0:
            print(f"programs_killed: {kit.name}: {episode.task}: {episode.outcome}: {episode.reason}", file=sys.stderr)
    typed = sum(tells_of_the_kill(episode) for episode in ended if episode.task in victims)
    solved = sum(episode.score == 1.0 for episode in ended if episode.task not in victims)
    return [
        Result(metric=f"{kit.name}: killed, then agent_error", value=typed, unit=f"of {len(victims)}"),
        Result(metric=f"{kit.name}: others solved", value=solved, unit=f"of {len(tasks) - len(victims)}"),
        Result(metric=f"{kit.name}: things left", value=sum(left.values()), unit="things"),
    ]


def tells_of_the_kill(episode: Trajectory) -> bool:
    """True if the episode has the step before the kill, and says that its program has died."""
    typed = (episode.outcome, episode.score) == (Outcome.AGENT_ERROR, 0.0) and KILLED in episode.reason
    return typed and len(episode.steps) == 1 and bool(episode.steps[0].results)


if __name__ == "__main__":
    main()
