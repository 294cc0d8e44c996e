"""Seeds of worlds: files, commands, git repositories, databases; and the mounts over them."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from desk import act, ask, desk_env, desk_server, desk_task, in_episode, last_state
from world_play import FILES, play, seed_bytes

from gymcp.envs.episodes.episode import Episode
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError, DirtyReset, EnvInfraError
from gymcp.mcp_servers.cleanup import find_leftovers, remove_leftovers
from gymcp.mcp_servers.sandbox import Launch, get_sandbox
from gymcp.mcp_servers.sandbox.users.identity import id_on_the_host, identity
from gymcp.mcp_servers.sandbox.users.ownership import change_owner
from gymcp.mcp_servers.spec import FileState
from gymcp.mcp_servers.workspaces.overlay import overlay_namespace
from gymcp.mcp_servers.workspaces.seeds import FIXED_ENVIRONMENT, seed_folder
from gymcp.mcp_servers.workspaces.workspace import open_workspace
from gymcp.outcome import Outcome
from gymcp.paths import gymcp_home
from gymcp.scratch import scratch_folder
from gymcp.types import Json, Task

pytestmark = pytest.mark.usefixtures("own_home")


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


def test_seeds_of_an_unmountable_cache_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
