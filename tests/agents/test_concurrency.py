"""The number of episodes at a time that is chosen, and the limit that it comes from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gymcp.agents.policies.specs import ModelOptions, parse_policy
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.agents.runner.concurrency import (
    EPISODES_PER_CORE,
    FILES_PER_EPISODE,
    FILES_PER_SERVER,
    FORKED_SHARE,
    MAX_ENDPOINT_REQUESTS,
    MAX_EPISODES,
    MAX_LAZY_SERVERS,
    MAX_VLLM_REQUESTS,
    RESERVED_FILES,
    STARTED_SHARE,
    WAITING_EPISODES_PER_CORE,
    ConcurrencyChoice,
    EpisodeLoad,
    choose_concurrency,
    describe_load,
    keep_given,
    limit_by_policy,
    limit_by_slots,
    limit_by_tasks,
)
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.mcp_servers.machine_limits import FREE_MEMORY_FACTOR, MachineLimits
from gymcp.mcp_servers.sandbox.spec import Forkable

BANK = load_env(load_spec(str(Path(__file__).parents[2] / "examples" / "bank.py")))
LARGE = MachineLimits(cores=64, free_memory_mb=500_000, open_files=1_000_000)
SMALL_MB = 50.0
SCRIPTED_LOAD = EpisodeLoad(memory_mb=SMALL_MB, open_files=10, kept_free_mb=1_000, waits_for_model=False)
MODEL_LOAD = replace(SCRIPTED_LOAD, waits_for_model=True)


def binding(choice: ConcurrencyChoice) -> tuple[int, str]:
    return choice.episodes, choice.limit.name


def test_cores_bind_if_servers_do_the_work() -> None:
    choice = choose_concurrency(replace(LARGE, cores=2), SCRIPTED_LOAD)
    assert binding(choice) == (2 * EPISODES_PER_CORE, "cpu")
    assert choice.describe("--concurrency") == (
        "8 episodes at a time; the limit is the CPU (2 cores, 4 episodes for each); --concurrency sets another number"
    )


def test_one_core_plays_a_few_episodes_and_a_part_of_one_at_least_one() -> None:
    assert binding(choose_concurrency(replace(LARGE, cores=1), SCRIPTED_LOAD)) == (EPISODES_PER_CORE, "cpu")
    tenth = choose_concurrency(replace(LARGE, cores=0.1, is_cpu_quota=True), SCRIPTED_LOAD)
    assert binding(tenth) == (1, "cpu")
    assert "1 episode at a time; the limit is the CPU (0.1 cores by the quota of its control group" in tenth.describe(
        ""
    )


def test_low_memory_binds_and_says_how_much_there_is() -> None:
    choice = choose_concurrency(replace(LARGE, free_memory_mb=1_180, is_memory_limit=True), MODEL_LOAD)
    assert binding(choice) == (4, "memory")  # the first one, and 180 MB for three more
    assert (
        choice.limit.reason == "memory (1,180 MB free in its control group, of which 1,000 stay free; 50 MB an episode)"
    )
    assert binding(choose_concurrency(replace(LARGE, free_memory_mb=10), MODEL_LOAD)) == (1, "memory")


def test_episodes_that_wait_for_a_remote_policy_are_more_than_the_cores_could_play() -> None:
    machine = replace(LARGE, cores=1)
    endpoint = limit_by_policy(parse_policy("openai:http://127.0.0.1:1/v1#m"), ModelOptions())
    choice = choose_concurrency(machine, replace(MODEL_LOAD, limits=endpoint))
    assert choice.episodes == MAX_ENDPOINT_REQUESTS > EPISODES_PER_CORE
    assert choice.limit.name == "endpoint"
    assert choice.allowed["cpu"] == WAITING_EPISODES_PER_CORE
    vllm = limit_by_policy(parse_policy("vllm:http://127.0.0.1:1#m"), ModelOptions())
    assert binding(choose_concurrency(LARGE, replace(MODEL_LOAD, limits=vllm))) == (MAX_VLLM_REQUESTS, "vllm")


def test_a_rate_of_requests_binds_below_the_endpoint() -> None:
    slow = limit_by_policy(parse_policy("openai:http://127.0.0.1:1/v1#m"), ModelOptions(requests_per_minute=10))
    choice = choose_concurrency(LARGE, replace(MODEL_LOAD, limits=slow))
    assert binding(choice) == (5, "rate")  # a turn takes half a minute at most
    assert "10 requests a minute: --requests-per-minute" in choice.describe("")


@pytest.mark.parametrize("slots", [1, 16, 64])
def test_an_embedded_engine_plays_as_many_episodes_as_it_has_slots(slots: int) -> None:
    limits = limit_by_policy(parse_policy("tiny"), ModelOptions(slots=slots))
    choice = choose_concurrency(replace(LARGE, cores=2), replace(MODEL_LOAD, limits=limits))
    assert binding(choice) == (slots, "slots")
    assert f"{slots} slots, one an episode: --slots" in choice.limit.reason


def test_the_smallest_of_all_limits_binds() -> None:
    limits = (limit_by_tasks(3), limit_by_slots(16, "--slots"))
    choice = choose_concurrency(replace(LARGE, cores=2), replace(MODEL_LOAD, limits=limits))
    assert binding(choice) == (3, "tasks")
    assert choice.to_json() == {
        "episodes": 3,
        "limit": "tasks",
        "reason": "the number of episodes to play",
        "limits": {"tasks": 3, "slots": 16, "memory": 9_981, "cpu": 64, "files": 99_987, "process": MAX_EPISODES},
    }


def test_a_large_machine_is_bound_by_its_open_files_and_then_by_one_process() -> None:
    files = choose_concurrency(replace(LARGE, open_files=1_024), SCRIPTED_LOAD)
    assert binding(files) == ((1_024 - RESERVED_FILES) // 10, "files")
    assert binding(choose_concurrency(replace(LARGE, cores=128), SCRIPTED_LOAD)) == (MAX_EPISODES, "process")


def test_a_group_that_must_run_together_does_so_below_another_limit() -> None:
    choice = choose_concurrency(replace(LARGE, cores=1), replace(SCRIPTED_LOAD, min_episodes=6))
    assert binding(choice) == (6, "group")
    assert "that a group's 6 episodes run together, in spite of the CPU" in choice.describe("")


def test_a_given_number_is_kept_and_recorded_as_given() -> None:
    assert keep_given(5).to_json() == {"episodes": 5, "limit": "given"}
    assert not keep_given(5).is_chosen


def load_of(env: LoadedEnv, *, forks: bool = True, program: ProgramSettings | None = None) -> EpisodeLoad:
    return describe_load(env, forks=forks, waits_for_model=True, program=program)


def test_the_load_of_an_episode_is_that_of_the_servers_it_starts() -> None:
    server = replace(BANK.servers[0], fork=Forkable(path=("/srv",), module="bank"))
    bank = replace(BANK, servers=(server,))
    limit_mb = server.limits.memory_mb
    forked, started = load_of(bank), load_of(bank, forks=False)
    assert (forked.memory_mb, started.memory_mb) == (limit_mb * FORKED_SHARE, limit_mb * STARTED_SHARE)
    assert forked.kept_free_mb == FREE_MEMORY_FACTOR * limit_mb
    assert forked.open_files == FILES_PER_EPISODE + FILES_PER_SERVER
    many = replace(BANK, servers=tuple(replace(server, name=f"bank{n}") for n in range(9)))
    assert load_of(many).memory_mb == 9 * forked.memory_mb
    lazy = replace(many, spec=replace(many.spec, lazy=True))
    assert load_of(lazy).memory_mb == MAX_LAZY_SERVERS * forked.memory_mb
    remote = replace(BANK, servers=(replace(server, argv=(), fork=None, url="https://example.org/mcp"),))
    assert (load_of(remote).memory_mb, load_of(remote).kept_free_mb) == (0, 0)
    assert "memory" not in choose_concurrency(LARGE, load_of(remote)).allowed


def test_a_program_as_agent_takes_memory_and_the_cpu() -> None:
    program = ProgramSettings(argv=("agent",))
    load = load_of(BANK, program=program)
    assert load.memory_mb == load_of(BANK).memory_mb + program.limits.memory_mb * STARTED_SHARE
    assert (load_of(BANK).waits_for_model, load.waits_for_model) == (True, False)
