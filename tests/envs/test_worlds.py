"""Fresh worlds of files: every reset is proven clean, and an unclean one never gets a score."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from desk import act, ask, desk_env, desk_server, desk_task, in_episode, last_state
from world_play import FILES, play, seed_bytes

from gymcp.envs.episodes.episode import Episode, open_episode
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.worlds.baseline_store import BaselineStore
from gymcp.mcp_servers.sandbox import Limits, Mount, get_sandbox
from gymcp.mcp_servers.spec import DigestLimits, FileState
from gymcp.mcp_servers.workspaces.seeds import seed_folder
from gymcp.outcome import Outcome
from gymcp.paths import gymcp_home
from gymcp.scratch import scratch_folder

pytestmark = pytest.mark.usefixtures("own_home")


# -------------------------------------------------------------------------------------------------------------- resets


@pytest.mark.parametrize("sandbox", ["bwrap", "none"])
def test_every_episode_starts_from_the_seed_whatever_the_last_one_did(sandbox: str) -> None:
    env = desk_env(desk_task(FILES))
    havoc = [
        act("write", path="a", text="2"),
        act("remove", path="folder/b"),
        act("chmod", path="empty", mode=0o700),
        act("run", command="echo new > empty/new; ln -s /etc/passwd p; mkfifo f; rm link"),
    ]
    before = seed_bytes(FILES)
    first = play(env, *havoc, sandbox=sandbox).trajectory
    second = play(env, sandbox=sandbox).trajectory
    assert first.outcome is second.outcome is Outcome.SCORED
    assert first.initial_key == second.initial_key == second.final_key
    assert len({first.initial_key, *(step.world_key for step in first.steps)}) == 5
    assert seed_bytes(FILES) == before


def test_graders_read_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(episode: Episode) -> None:
        await ask(episode, "write", path="new", text="3")
        assert last_state(episode) == {
            "files": {
                "a": {"type": "file", "mode": "644", "text": "1"},
                "empty": {"type": "folder", "mode": "755"},
                "folder": {"type": "folder", "mode": "755"},
                "folder/b": {"type": "file", "mode": "600", "text": "2"},
                "link": {"type": "link", "mode": "777", "target": "a"},
                "new": {"type": "file", "mode": "644", "text": "3"},
            }
        }

    asyncio.run(in_episode(desk_env(desk_task(FILES)), work))


def test_a_copy_of_a_world_keeps_hard_links_and_attributes() -> None:
    """Otherwise the same call in both would give two worlds."""
    attribute = "/usr/bin/python3 -c \"import os; os.setxattr('folder/b', 'user.note', b'1'); os.chmod('.', 0o700)\""

    async def work(episode: Episode) -> None:
        await ask(episode, "run", command=f"ln a folder/c; ln a z; {attribute}")
        assert last_state(episode)["mode"] == "700"
        assert last_state(episode)["files"]["folder/b"]["attributes"] == {"user.note": "MQ=="}
        links = {path: entry["links"] for path, entry in last_state(episode)["files"].items() if "links" in entry}
        assert links == {"a": 3, "folder/c": 3, "z": 3}
        async with episode.fork(1) as (child,):
            assert child.world_key == episode.world_key
            for each in (episode, child):
                await ask(each, "run", command="echo 2 > z; echo 3 > folder/b")
                assert await ask(each, "read", path="a") == "2\n"
            assert child.world_key == episode.world_key

    asyncio.run(in_episode(desk_env(desk_task(FILES)), work))


def test_interleaved_episodes_do_not_see_each_other() -> None:
    env = desk_env(desk_task({"files": {"a": ""}}))

    async def one(number: int) -> list[str]:
        seen = []
        async with open_episode(env, get_sandbox("bwrap"), env.suite.tasks[0], seed=number) as episode:
            for step in range(3):
                await ask(episode, "run", command=f"echo {number}.{step} >> a")
                seen.append(await ask(episode, "read", path="a"))
        return seen

    async def main() -> None:
        seen = await asyncio.gather(*(one(number) for number in range(6)))
        for number, texts in enumerate(seen):
            assert texts[-1] == f"{number}.0\n{number}.1\n{number}.2\n"

    asyncio.run(main())


def test_after_a_crash_the_next_reset_is_clean_and_nothing_is_left_behind() -> None:
    env = desk_env(desk_task(FILES))
    left = set(scratch_folder().iterdir())
    crashed = play(env, act("write", path="a", text="half"), act("crash")).trajectory
    assert (crashed.outcome, crashed.score) == (Outcome.ENV_INFRA, None)
    again = play(env).trajectory
    assert (again.outcome, again.initial_key) == (Outcome.SCORED, crashed.initial_key)
    assert {path.name.split("-")[0] for path in set(scratch_folder().iterdir()) - left} <= {"etc", "empty", "dev"}


def test_a_tree_with_paths_beyond_the_limit_is_removed() -> None:
    deep = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\nos.chmod('.', 0)"
    done = play(desk_env(desk_task({"files": {"deep.py": deep}})), act("run", command="/usr/bin/python3 deep.py"))
    assert done.trajectory.outcome is Outcome.BUDGET_EXHAUSTED
    assert "nested more than 64 deep" in done.trajectory.reason
    assert not [path for path in scratch_folder().iterdir() if path.name.startswith("world-")]


def test_a_world_that_has_no_digest_after_its_reset_is_env_infra() -> None:
    server = desk_server(FileState(limits=DigestLimits(total_bytes=10_000)))
    done = play(desk_env(desk_task({"files": {"big": "0" * 20_000}}), server))
    assert (done.trajectory.outcome, done.trajectory.score) == (Outcome.ENV_INFRA, None)
    assert "server 'desk': its state has no digest: too large: more than 10000 bytes" in done.trajectory.reason


MAPPING = """
import mmap, os, time
with open("mapped", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
    mapped[0:1] = b"1"
    time.sleep(0.1)
    open("/tmp/ready", "w").close()
    while not os.path.exists("/tmp/go"): time.sleep(0.01)
    mapped[0:1] = b"2"
    open("/tmp/done", "w").close()
"""


@pytest.mark.parametrize("sandbox", ["bwrap", "none"])
def test_writes_through_a_map_are_in_the_graded_state(sandbox: str, tmp_path: Path) -> None:
    """The first write through a map changes a time; a later one to the same page does not."""
    script = MAPPING.replace("/tmp/", f"{tmp_path}/" if sandbox == "none" else "/tmp/")
    where = tmp_path if sandbox == "none" else "/tmp"
    files = {"files": {"mapped": "0", "map.py": script, "other": "0"}}
    begin = f"/usr/bin/python3 map.py > /dev/null 2>&1 & while [ ! -e {where}/ready ]; do sleep 0.01; done"
    go_on = f"touch {where}/go; while [ ! -e {where}/done ]; do sleep 0.01; done"
    actions = [act("run", command=begin), act("read", path="other"), act("run", command=go_on)]
    done = play(desk_env(desk_task(files)), *actions, sandbox=sandbox)
    trajectory = done.trajectory
    told = [done.states[step.state_ref or ""]["files"]["mapped"]["text"] for step in trajectory.steps]
    assert trajectory.outcome is Outcome.SCORED, trajectory.reason
    assert (told[0], told[-2:]) == ("1", ["2", "2"])
    assert trajectory.final_key == trajectory.steps[-1].world_key != trajectory.steps[0].world_key


def test_a_server_that_fills_its_workspace_is_ended() -> None:
    server = desk_server(limits=Limits(disk_mb=5))
    fill = "for i in 1 2 3 4; do head -c 4000000 /dev/zero > $i; done; sleep 60"
    done = play(desk_env(desk_task(FILES), server), act("run", command=fill))
    assert done.trajectory.outcome is Outcome.BUDGET_EXHAUSTED
    assert "disk: the workspace grew by more than 5 MB" in done.trajectory.reason


# ------------------------------------------------------------------------------------------------------- dirty servers


def sharing_env(tmp_path: Path, script: str) -> LoadedEnv:
    """An environment whose server shares a folder that outlives the episode, and runs a script before it serves."""
    server = desk_server(mounts=(Mount(source=tmp_path, target=PurePosixPath("/shared"), writable=True),))
    plain = desk_server()
    argv = (*plain.argv[:-1], f"import pathlib\n{script}\n{plain.argv[-1]}")
    return desk_env(desk_task(FILES), replace(server, argv=argv, mounts=(*plain.mounts, *server.mounts)))


def test_a_server_that_leaves_something_behind_is_caught_at_the_next_reset(tmp_path: Path) -> None:
    env = sharing_env(
        tmp_path, "p = pathlib.Path('/shared/left'); p.exists() and pathlib.Path('a').write_text(p.read_text())"
    )
    first = play(env, act("run", command="echo evil > /shared/left")).trajectory
    assert first.outcome is Outcome.SCORED
    second = play(env).trajectory
    assert (second.outcome, second.score) == (Outcome.ENV_INFRA, None)
    assert "environment 'desk' version 0, task 'tidy': the reset is not clean" in second.reason
    assert f"expected {first.initial_key}, found " in second.reason


def test_a_server_that_never_starts_the_same_way_is_caught_at_the_first_reset(tmp_path: Path) -> None:
    env = sharing_env(
        tmp_path, "p = pathlib.Path('/shared/n'); p.open('a').write('x'); pathlib.Path('a').write_text(p.read_text())"
    )
    done = play(env).trajectory
    assert (done.outcome, done.score) == (Outcome.ENV_INFRA, None)
    assert "two fresh worlds differ" in done.reason


def test_a_modified_seed_is_caught() -> None:
    env = desk_env(desk_task({"files": {"a": "seed"}}))
    assert play(env).trajectory.outcome is Outcome.SCORED
    folder = asyncio.run(seed_folder({"files": {"a": "seed"}}, get_sandbox("bwrap")))
    (folder / "a").write_text("weed")
    assert "the reset is not clean" in play(env).trajectory.reason


def test_a_mask_excludes_differences_between_runs() -> None:
    script = "pathlib.Path('started.log').write_text(__import__('time').ctime() + __import__('secrets').token_hex())"
    plain = desk_server(FileState(masks=("*.log",)))
    server = replace(plain, argv=(*plain.argv[:-1], f"import pathlib\n{script}\n{plain.argv[-1]}"))
    assert [play(desk_env(desk_task(FILES), server)).trajectory.outcome for _ in range(2)] == [Outcome.SCORED] * 2


def test_baselines_depend_on_all_that_the_world_is_made_from() -> None:
    """Another initial state, version or server has a baseline of its own."""
    keys = []
    for task in (desk_task(FILES), desk_task({"files": {"a": "other"}})):
        done = play(desk_env(task)).trajectory
        assert done.outcome is Outcome.SCORED
        keys.append(done.initial_key)
    assert keys[0] != keys[1]


def test_only_the_first_reset_of_a_task_opens_a_second_world() -> None:
    env, book = desk_env(desk_task(FILES), name="once"), gymcp_home() / "baselines" / "baselines.jsonl"
    play(env)
    written = book.read_bytes()
    play(env)
    assert book.read_bytes() == written
    assert json.loads(written.splitlines()[-1])["env"] == "once"


WRITER = """
import sys
from pathlib import Path
from gymcp.envs.worlds.baseline_store import BaselineStore
store = BaselineStore(Path(sys.argv[1]))
for number in range(200):
    print(store.add(f"id{number}", f"key{number}-{sys.argv[2]}", {"env": "e"}))
"""


def test_processes_that_write_baselines_at_once_agree(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "book")]
    writers = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True) for n in range(3)]
    printed = {writer.communicate(timeout=300)[0] for writer in writers}
    assert len(printed) == 1
    assert len((tmp_path / "book").read_text().splitlines()) == 200


def test_a_torn_baseline_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "book").write_bytes(b'not JSON\n{"id": "x", "wor')
    store = BaselineStore(tmp_path / "book")
    assert store.get("x") is None
    assert store.add("x", "key", {}) == "key"
    assert BaselineStore(tmp_path / "book").get("x") == "key"
