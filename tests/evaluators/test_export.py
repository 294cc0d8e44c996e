"""`gymcp view --export`: the folder, its data and its limits, without a browser."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
import warm_command
from recorded_runs import write_hostile, write_run, write_training_run
from records import HOSTILE_TEXT, order_episode
from typer.testing import CliRunner

from gymcp.cli.app import app
from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.viewer.export.export import export_viewer
from gymcp.evaluators.viewer.export.folder import MARK, is_export
from gymcp.evaluators.viewer.export.pages import bundle_script, make_page
from gymcp.evaluators.viewer.export.run_data import Choice, fold_words
from gymcp.evaluators.viewer.pages import STATIC
from gymcp.store import TrajectoryStore
from gymcp.types import Json

ALL = Choice()


def unpack(out: Path, name: str) -> Json:
    """The value in a file of data; fails if the file holds anything but one call with two plain texts."""
    script = (out / "data" / f"{name}.js").read_text(encoding="ascii")
    found = re.fullmatch(r'gymcpData\("([a-z0-9/-]+)","([A-Za-z0-9+/=]+)"\);\n', script)
    assert found is not None
    assert found[1] == name
    return json.loads(gzip.decompress(base64.b64decode(found[2])))


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_export_holds_every_episode_with_its_texts_facts_and_anchors(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "steady", paying=2, tasks=3)
    done = export_viewer([run], tmp_path / "out", listed=False, choice=ALL)
    assert (done.runs, done.episodes, done.notes) == (1, 7, ())
    assert done.page == tmp_path / "out" / "index.html"
    assert is_export(tmp_path / "out")
    about = unpack(tmp_path / "out", "0/about")
    assert (about["folder"], about["episodes"], about["held"]["episodes"], about["chunks"]) == ("run", 7, 7, 1)
    rows = unpack(tmp_path / "out", "0/rows")
    assert [row["n"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert (rows[0]["task"], rows[0]["tools"], rows[0]["tags"]) == ("task000", ["get_order", "pay_order"], ["refund"])
    episode = unpack(tmp_path / "out", "0/e1")
    assert [sibling["n"] for sibling in episode["siblings"]] == [1, 2]
    assert episode["steps"][0]["tokens"]["ids"] == [11, 12, 13, 14]
    assert episode["credits"][0]["advantages"] == [0.25, -0.5]
    assert unpack(tmp_path / "out", f"0/facts-{episode['facts']}")["tools"][0]["count"] == 0
    assert [each["n"] for each in unpack(tmp_path / "out", "0/anchors-1")["0"]] == [1, 2]
    words = dict(unpack(tmp_path / "out", "0/words-0"))
    assert " pay order 7 " in words[1]


def test_numbers_of_episodes_are_unique_over_all_runs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / "runs" / name, name, paying=1, tasks=2)
    export_viewer([tmp_path / "runs"], tmp_path / "out", listed=True, choice=ALL)
    rows = [row["n"] for number in (0, 1) for row in unpack(tmp_path / "out", f"{number}/rows")]
    assert rows == list(range(1, 11))
    assert unpack(tmp_path / "out", "1/e6")["siblings"][1]["n"] == 7
    assert unpack(tmp_path / "out", "beside-0-1")["1-6"] == {"parted": None, "rows": []}
    runs = unpack(tmp_path / "out", "runs")
    assert ([run["label"] for run in runs["runs"]], runs["folders"]) == (["a", "b"], [])


def test_no_file_names_the_place_of_a_run_on_the_disk(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "a", "steady", paying=1, tasks=1)
    write_run(tmp_path / "runs" / "b", "steady", paying=1, tasks=1)
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "run.json").write_text("{")
    export_viewer([run, run.parent], tmp_path / "list", listed=True, choice=ALL)
    export_viewer([run], tmp_path / "one", listed=False, choice=ALL)
    for out in (tmp_path / "list", tmp_path / "one"):
        names = [path.relative_to(out / "data").with_suffix("") for path in (out / "data").rglob("*.js")]
        assert len(names) > 5
        assert [name for name in names if str(tmp_path) in json.dumps(unpack(out, str(name)))] == []


def test_no_text_of_a_run_stands_in_a_page_or_script(tmp_path: Path) -> None:
    run = write_hostile(tmp_path / "run")
    with TrajectoryStore.open(run, write=True) as store:
        text = '</script>\u2028\u2029\ud800"); alert(1); //'
        store.append(order_episode("ends", 0, pays=True, run="x", words=text, reason=text), {})
    export_viewer([run, write_training_run(tmp_path / "t")], tmp_path / "out", listed=True, choice=ALL)
    for path in (tmp_path / "out").rglob("*.*"):
        if path.suffix in (".html", ".js") and "static" not in path.parts:
            assert "alert(" not in path.read_text(encoding="utf-8")
    names = [
        str(each.relative_to(tmp_path / "out" / "data").with_suffix(""))
        for each in (tmp_path / "out").rglob("data/**/*.js")
    ]
    values = {name: unpack(tmp_path / "out", name) for name in names}
    assert values["0/e1"]["task"] == HOSTILE_TEXT
    assert values["0/e3"]["reason"] == text
    assert values["0/texts-2"]["0-reason-0"].startswith("w" * 100_000)


def test_a_limit_and_a_query_are_said_on_the_pages(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "steady", paying=2, tasks=6)
    done = export_viewer([run], tmp_path / "out", listed=False, choice=Choice(limit=2, find="is:failed pay"))
    gap = "this export holds 2 of 13 episodes: --find 'is:failed pay', --limit 2"
    assert (done.episodes, done.notes) == (2, (f"run: {gap}",))
    about = unpack(tmp_path / "out", "0/about")
    assert about["problems"] == [gap]
    assert (about["failed"], about["held"]["failed"], about["held"]["solved"]) == (7, 2, 0)
    rows = unpack(tmp_path / "out", "0/rows")
    assert all(row["score"] == 0.0 for row in rows)
    assert (tmp_path / "out" / "data" / "0" / f"e{rows[1]['n']}.js").exists()
    assert not (tmp_path / "out" / "data" / "0" / "e1.js").exists()


def test_an_export_replaces_an_earlier_one_and_nothing_else(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", "steady", paying=1, tasks=2), tmp_path / "out"
    export_viewer([run], out, listed=False, choice=ALL)
    (out / "data" / "stale.js").write_text("old")
    export_viewer([run], out, listed=False, choice=Choice(limit=1))
    assert not (out / "data" / "stale.js").exists()
    assert len(unpack(out, "0/rows")) == 1
    (out / "mine.txt").write_text("mine")
    before = snapshot(out)
    with pytest.raises(ConfigError, match=r"other files beside an earlier export, which would be lost: mine\.txt"):
        export_viewer([run], out, listed=False, choice=ALL)
    assert snapshot(out) == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("a")
    (tmp_path / "link").symlink_to(out)
    for place, why in (
        ("full", "is not empty"),
        ("full/a", "is no folder"),
        ("link", "is no folder"),
        ("run", "is not empty"),
    ):
        before = snapshot(tmp_path)
        with pytest.raises(ConfigError, match=why):
            export_viewer([run], tmp_path / place, listed=False, choice=ALL)
        assert snapshot(tmp_path) == before
    (tmp_path / "empty").mkdir()
    export_viewer([run], tmp_path / "empty", listed=False, choice=ALL)


def test_an_error_leaves_the_earlier_export_and_no_other_folder(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", "steady", paying=1, tasks=2), tmp_path / "out"
    export_viewer([run], out, listed=False, choice=ALL)
    before = snapshot(out)

    def fail(what: str, done: int, total: int) -> None:
        if what == "episodes" and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_viewer([run], out, listed=False, choice=Choice(limit=3), report=fail)
    with pytest.raises(ConfigError, match="no such key"):
        export_viewer([run], out, listed=False, choice=Choice(find="colour:red"))
    with pytest.raises(StoreError, match="no such folder"):
        export_viewer([tmp_path / "absent"], out, listed=False, choice=ALL)
    assert snapshot(out) == before
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}


def kill_export(run: Path, out: Path) -> int:
    """Exit code of an export that is killed while it writes its episodes."""
    with tempfile.TemporaryFile() as said:
        words = ["view", str(run), "--export", str(out)]
        command = warm_command.start(words, said.fileno(), said.fileno(), cwd=None, env=os.environ)
        while not list(out.parent.glob(".out-*/new/data/0/e9.js")) and not command.ends_within(0.002):
            pass
        with contextlib.suppress(ProcessLookupError):  # it has come to its end
            os.kill(command.pid, signal.SIGKILL)
        status = command.wait(60)
        said.seek(0)
        assert status in (0, -signal.SIGKILL), said.read().decode()
    return status


def test_a_killed_export_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", "steady", paying=100), tmp_path / "out"
    while kill_export(run, out) == 0:  # it was whole before it was killed
        shutil.rmtree(out)
    assert not out.exists()
    (left,) = tmp_path.glob(".out-*")
    assert not (left / "new" / MARK).exists()
    assert export_viewer([run], out, listed=False, choice=Choice(limit=3)).episodes == 3


def test_damaged_episodes_and_broken_runs_are_said(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", "steady", paying=1, tasks=2)
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "run.json").write_text("{")
    done = export_viewer([tmp_path / "runs"], tmp_path / "out", listed=True, choice=ALL)
    assert done.runs == 1
    runs = unpack(tmp_path / "out", "runs")["runs"]
    assert [(run["label"], run["readable"]) for run in runs] == [("a", True), ("broken", False)]
    assert 'data-held="0"' in (tmp_path / "out" / "index.html").read_text()
    with pytest.raises(StoreError, match="broken: "):
        export_viewer([tmp_path / "runs" / "broken"], tmp_path / "none", listed=True, choice=ALL)
    assert not (tmp_path / "none").exists()


def test_more_than_five_runs_are_not_put_side_by_side_and_the_pages_say_so(tmp_path: Path) -> None:
    for n in range(6):
        write_run(tmp_path / "runs" / str(n), f"agent{n}", paying=1, tasks=1)
    done = export_viewer([tmp_path / "runs"], tmp_path / "out", listed=True, choice=ALL)
    assert done.notes == ("side by side is left out: this export holds 6 runs, and it is made for at most 5",)
    assert unpack(tmp_path / "out", "runs")["problems"] == list(done.notes)
    assert not list((tmp_path / "out" / "data").glob("beside-*"))


def test_many_runs_that_are_exported_in_part_share_one_note(tmp_path: Path) -> None:
    for n in range(4):
        write_run(tmp_path / "runs" / str(n), f"agent{n}", paying=1, tasks=2)
    done = export_viewer([tmp_path / "runs"], tmp_path / "out", listed=True, choice=Choice(limit=1))
    assert len(done.notes) == 1
    assert done.notes[0].startswith("4 runs are exported in part, as their own pages say; 0: this export holds 1 of ")
    assert all(len(unpack(tmp_path / "out", f"{n}/about")["problems"]) == 1 for n in range(4))


def test_every_module_can_be_bundled_and_pages_name_files_that_exist() -> None:
    for entry in ("main.js", "runs.js"):
        script = bundle_script(entry)
        assert "fetch(" not in script
        assert not re.search(r"^\s*(import|export)\b", script, re.MULTILINE)
        for module in re.findall(r'= modules\["(\w+\.js)"\]', script):
            assert f'modules["{module}"] = (() =>' in script.partition(f'= modules["{module}"];')[0]
    page = make_page("index.html", "run.js", {"data-root": "../../", "data-runs": "0"})
    assert re.findall(r'(?:src|href)="([^"#]+)"', page) == [
        "../../static/icon.svg", "../../static/style.css", "../../static/run.js",
    ]  # fmt: skip
    assert 'type="module"' not in page
    assert "modulepreload" not in page
    assert (STATIC / "exported.js").exists()


def test_words_are_folded_as_the_search_of_the_viewer_does() -> None:
    assert fold_words("Crème-brûlée, task_01\nÜBER\u200bx") == " creme brulee task 01 uber x"
    assert fold_words("… _ -") == ""


def test_the_command_prints_the_page_and_refuses_impossible_exports(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "steady", paying=1, tasks=2)
    ask = CliRunner().invoke
    done = ask(app, ["view", str(run), "--export", str(tmp_path / "out"), "--limit", "0"])
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == str(tmp_path / "out" / "index.html")
    assert "exported 5 episodes of 1 runs" in done.stdout
    refused = ask(app, ["view", str(run), "--limit", "3"])
    assert refused.exit_code != 0
