"""Fresh worlds of files: every reset is proven clean, and an unclean one never gets a score."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from desk import act, ask, desk_env, desk_server, desk_task, in_episode, last_state

from gymcp.agents.runner.rollout import Job, Rollout, rollout
from gymcp.agents.strategies.scripted import Replay
from gymcp.envs.episodes.episode import Episode, open_episode
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.worlds.baseline_store import BaselineStore
from gymcp.errors import ConfigError, DirtyReset, EnvInfraError
from gymcp.mcp_servers.cleanup import find_leftovers, remove_leftovers
from gymcp.mcp_servers.sandbox import Launch, Limits, Mount, get_sandbox
from gymcp.mcp_servers.sandbox.users.identity import id_on_the_host, identity
from gymcp.mcp_servers.sandbox.users.ownership import change_owner
from gymcp.mcp_servers.spec import DigestLimits, FileState
from gymcp.mcp_servers.workspaces.overlay import overlay_namespace
from gymcp.mcp_servers.workspaces.seeds import FIXED_ENVIRONMENT, seed_folder
from gymcp.mcp_servers.workspaces.workspace import open_workspace
from gymcp.outcome import Outcome
from gymcp.paths import gymcp_home
from gymcp.scratch import scratch_folder
from gymcp.types import Action, Json, Task

pytestmark = pytest.mark.usefixtures("own_home")

FILES = {"files": {"a": "1", "folder/b": {"text": "2", "mode": "600"}, "empty": None, "link": {"target": "a"}}}


def play(env: LoadedEnv, *actions: Action, sandbox: str = "bwrap") -> Rollout:
    job = Job(task=env.suite.tasks[0], trial=0, seed=1)
    agent = Replay(iter(actions))
    return asyncio.run(rollout(env, get_sandbox(sandbox), lambda task, seed: agent, job, timeout_s=60))


def seed_bytes(state: Json) -> dict[str, str]:
    folder = asyncio.run(seed_folder(state, get_sandbox("bwrap")))
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


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


def test_a_tree_that_cannot_be_walked_by_path_is_removed() -> None:
    deep = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\nos.chmod('.', 0)"
    done = play(desk_env(desk_task({"files": {"deep.py": deep}})), act("run", command="/usr/bin/python3 deep.py"))
    assert done.trajectory.outcome is Outcome.BUDGET_EXHAUSTED
    assert "nested more than 64 deep" in done.trajectory.reason
    assert not [path for path in scratch_folder().iterdir() if path.name.startswith("world-")]


def test_a_world_that_has_no_digest_after_its_reset_is_env_infra() -> None:
    server = desk_server(FileState(limits=DigestLimits(bytes=10_000)))
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


# -------------------------------------------------------------------------------------------------- seeds, workspaces


def test_a_hard_link_cannot_reach_the_seed() -> None:
    async def main() -> None:
        seed = await seed_folder({"files": {"a": "seed"}}, get_sandbox("none"))
        async with open_workspace(seed, get_sandbox("none")) as workspace:
            assert (workspace.folder / "a").stat().st_ino != (seed / "a").stat().st_ino
            (workspace.folder / "a").write_text("changed")
        assert (seed / "a").read_text() == "seed"

    asyncio.run(main())


def test_an_overlay_shows_only_what_was_written() -> None:
    if (namespace := overlay_namespace()) is None:
        pytest.skip("no overlays on this machine")

    async def main() -> None:
        seed = await seed_folder({"files": {"a": "seed"}}, get_sandbox("bwrap"))
        async with open_workspace(seed, get_sandbox("bwrap")) as workspace:
            assert list(workspace.upper_folder.iterdir()) == list(workspace.folder.iterdir()) == []
            user = [] if identity() is not None else ["--preserve-credentials", "--user"]
            command = ["nsenter", *user, "--mount", "--target", str(namespace.pid), "--"]
            command += ["cp", str(workspace.folder / "a"), str(workspace.folder / "b")]
            await asyncio.to_thread(subprocess.check_call, command)
            assert [path.name for path in workspace.upper_folder.iterdir()] == ["b"]

    asyncio.run(main())


@pytest.mark.skipif(os.getuid() != 0, reason="servers of an ordinary user own what they are given")
def test_under_root_a_seed_of_an_earlier_version_is_given_to_servers() -> None:
    if overlay_namespace() is None:
        pytest.skip("no overlays on this machine")

    async def main() -> str:
        sandbox = get_sandbox("bwrap")
        seed = await seed_folder({"files": {"folder/a": "seed"}}, sandbox)
        change_owner(seed, 0)
        async with open_workspace(seed, sandbox) as workspace:
            launch = Launch(
                argv=("python3", "-c", "open('folder/a', 'a').write(' and more'); print(open('folder/a').read())"),
                workspace=workspace.folder,
                upper_folder=workspace.upper_folder,
                entry=workspace.entry,
            )
            async with sandbox.start(launch) as process:
                said = (await process.stdout.read()).decode()
            assert (seed / "folder" / "a").read_text() == "seed"
            owners = {path.stat().st_uid for path in (seed, seed / "folder", workspace.upper_folder / "folder" / "a")}
            assert owners == {id_on_the_host()}
        return said

    assert asyncio.run(main()) == "seed and more\n"


HARNESS = """
import asyncio, sys
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.workspaces.overlay import overlay_namespace
from gymcp.mcp_servers.workspaces.seeds import seed_folder
from gymcp.mcp_servers.workspaces.workspace import open_workspace

async def main():
    seed = await seed_folder({"files": {"a": "1"}}, get_sandbox("bwrap"))
    async with open_workspace(seed, get_sandbox("bwrap")) as workspace:
        print(workspace.entry[workspace.entry.index("--target") + 1], flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


def test_mounts_end_with_a_harness_that_is_killed() -> None:
    if overlay_namespace() is None:
        pytest.skip("no overlays on this machine")
    command = [sys.executable, "-c", HARNESS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        mounter = os.pidfd_open(int(harness.stdout.readline()))
        harness.kill()
    ended, _, _ = select.select([mounter], [], [], 30)
    os.close(mounter)
    assert ended
    remove_leftovers(find_leftovers())


def test_a_cache_that_cannot_be_mounted_is_copied_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "a:b,c"))

    async def main() -> None:
        seed = await seed_folder({"files": {"a": "1"}}, get_sandbox("bwrap"))
        async with open_workspace(seed, get_sandbox("bwrap")) as workspace:
            assert (workspace.folder == workspace.upper_folder, workspace.entry) == (True, ())
            assert (workspace.folder / "a").read_text() == "1"

    asyncio.run(main())


def test_a_killed_mounter_is_replaced() -> None:
    env = desk_env(desk_task(FILES))
    namespace = overlay_namespace()
    if namespace is None:
        pytest.skip("no overlays on this machine")
    namespace.close()
    assert play(env).trajectory.outcome is Outcome.SCORED


@pytest.mark.parametrize(
    "state",
    [
        {"files": {"../a": ""}},
        {"files": {"/a": ""}},
        {"files": {"l": {"target": "/tmp"}, "l/a": ""}},
        {"files": {"a": 5}},
        {"file": {}},
        [],
        "text",
    ],
)
def test_a_malformed_initial_state_is_refused(state: Json) -> None:
    if state == []:
        state = [1]
    with pytest.raises(ConfigError):
        asyncio.run(seed_folder(state, get_sandbox("bwrap")))
    assert not list((gymcp_home() / "seeds").glob(".*"))


def test_a_seed_command_that_fails_says_why() -> None:
    state = {"commands": [["sh", "-c", "echo broken pipe dream >&2; exit 3"]]}
    with pytest.raises(EnvInfraError, match="seed: command 'sh': ended with 3: broken pipe dream"):
        asyncio.run(seed_folder(state, get_sandbox("bwrap")))


def test_seed_commands_run_in_the_sandbox() -> None:
    secret = gymcp_home() / "secret"
    secret.parent.mkdir(parents=True, exist_ok=True)
    secret.write_text("gold")
    state = {"commands": [["sh", "-c", f"cat {secret} /etc/shadow > found 2>/dev/null; echo $HOME >> found"]]}
    assert seed_bytes(state) == {"found": "/tmp\n"}


# --------------------------------------------------------------------------------------------------------- git, sqlite


GIT = {
    "files": {"repo/readme": "hello"},
    "commands": [
        ["git", "init", "-q", "-b", "main", "repo"],
        ["git", "-C", "repo", "add", "."],
        ["git", "-C", "repo", "commit", "-q", "-m", "first"],
    ],
}


def test_commits_of_a_seed_and_of_a_server_are_the_same_in_every_episode() -> None:
    server = desk_server(FileState(kind="git", path="repo"))
    server = replace(server, env={**server.env, **FIXED_ENVIRONMENT})
    env = desk_env(desk_task(GIT), server)
    commit = act("run", command="cd repo && echo more >> readme && git commit -qam second && git tag v1")
    first, second = (play(env, commit) for _ in range(2))
    assert first.trajectory.outcome is Outcome.SCORED
    assert first.trajectory.initial_key == second.trajectory.initial_key != first.trajectory.final_key
    assert first.trajectory.final_key == second.trajectory.final_key
    state = first.states[first.trajectory.final_state or ""]
    assert state["head"] == "ref: refs/heads/main"
    assert sorted(state["refs"]) == ["refs/heads/main", "refs/tags/v1"]
    assert state["files"]["readme"]["text"] == "hellomore\n"


def sql_task() -> Task:
    script = (
        "import sqlite3; c = sqlite3.connect('shop.db'); c.execute('CREATE TABLE item (name TEXT, price REAL)');"
        "c.execute(\"INSERT INTO item VALUES ('pen', 1.5)\"); c.commit()"
    )
    return desk_task({"commands": [["python3", "-c", script]]})


def test_rows_are_the_world_and_the_file_is_not() -> None:
    env = desk_env(sql_task(), desk_server(FileState(kind="sqlite", path="shop.db")))
    run = "/usr/bin/python3 -c \"import sqlite3; c = sqlite3.connect('shop.db'); {}; c.commit(); c.execute('VACUUM')\""

    async def work(episode: Episode) -> None:
        first = episode.world_key
        await ask(episode, "run", command=run.format("c.execute('DELETE FROM item')"))
        assert last_state(episode)["tables"] == {"item": []}
        assert episode.world_key != first
        await ask(episode, "run", command=run.format("c.execute('INSERT INTO item VALUES (?, ?)', ('pen', 1.5))"))
        assert last_state(episode)["tables"] == {"item": [["pen", 1.5]]}
        assert episode.world_key == first

    asyncio.run(in_episode(env, work))


def test_a_seed_dependent_world_is_refused() -> None:
    """Environment and task determine the world; the seed must not."""
    with pytest.raises(DirtyReset, match="two fresh worlds differ"):
        asyncio.run(in_episode(seed_dependent_env(), nothing))


async def nothing(episode: Episode) -> None:
    raise AssertionError("the reset should have failed")


def seed_dependent_env() -> LoadedEnv:
    program = desk_server()
    script = (
        "import sys\nsys.path.insert(0, '/srv/program')\nfrom gymcp.mcp_servers.native.runtime import Server\n"
        "server, world = Server('seeded'), {}\n"
        "@server.setup\ndef setup(initial_state, seed): world['seed'] = seed\n"
        "@server.state\ndef state(): return world\n"
        "@server.tool()\ndef look() -> str:\n    'Look.'\n    return str(world)\n"
        "server.run()\n"
    )
    return desk_env(desk_task(None), replace(program, argv=("python3", "-S", "-c", script), state="declared"))


def test_a_server_in_memory_leaves_no_folder() -> None:
    before = os.listdir(scratch_folder())  # noqa: PTH208

    async def work(episode: Episode) -> None:
        assert not [name for name in os.listdir(scratch_folder()) if name not in before and "world" in name]  # noqa: PTH208

    asyncio.run(in_episode(desk_env(desk_task(None), desk_server("opaque")), work))
