"""``gymcp compare`` and the options of ``gymcp grade``, as a user types them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp

from gymcp.cli.app import run as run_typed
from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore, create_run
from gymcp.types import Json, Trajectory

SUITE = {"env": "shop", "env_version": "0", "suite": "shop", "suite_version": "1", "suite_digest": "ab", "agent": "x"}


@dataclass(frozen=True, kw_only=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Typed = Callable[..., Done]


@pytest.fixture
def type_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """The command line in this process, which saves the imports."""

    def type_(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["gymcp", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run_typed()
        code = ended.value.code or 0
        assert isinstance(code, int)
        return Done(returncode=code, stdout=(said := capsys.readouterr()).out, stderr=said.err)

    return type_


def make_run(folder: Path, scores: list[float | None], *, price: float | None = None, **config: Json) -> Path:
    """A run with these scores; with a `price`, each episode has paid it, and has a net of price."""
    with create_run(folder, {**SUITE, **config}), TrajectoryStore.open(folder, write=True) as store:
        for n, score in enumerate(scores):
            outcome = Outcome.SCORED if score is not None else Outcome.ENV_INFRA
            net = {} if price is None or score is None else {"net_of_price": max(0.0, score - price)}
            played = Trajectory(id=f"e{n}", env="shop", task=f"t{n}", score=score, outcome=outcome, components=net)
            store.append(played, {})
    return folder


@pytest.fixture
def weak(tmp_path: Path) -> Path:
    return make_run(tmp_path / "weak", [float(n < 10) for n in range(40)])


@pytest.fixture
def strong(tmp_path: Path) -> Path:
    return make_run(tmp_path / "strong", [float(n < 30) for n in range(40)])


def test_compare_does_not_rank_a_run_with_too_few_scored_episodes(
    type_command: Typed, weak: Path, tmp_path: Path
) -> None:
    sparse = make_run(tmp_path / "sparse", [1.0] * 36 + [None] * 4)
    done = type_command("compare", weak, sparse)
    assert done.returncode == 1
    assert "is better than" not in done.stdout
    assert "No ranking: too few episodes have a score in sparse." in done.stdout
    assert "sparse: over all episodes 90.0 % if the lost ones failed, 100.0 % if they succeeded" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "gymcp: not compared: sparse: 36 of 40 episodes (90 %) have a score, below the floor of 95 %"
    )
    assert f"--out {sparse} --resume; to accept this coverage: --min-coverage 0.9" in line
    accepted = type_command("compare", weak, sparse, "--min-coverage", "0.9")
    assert (accepted.returncode, accepted.stderr) == (0, "")
    assert "sparse is better than weak" in accepted.stdout
    assert type_command("compare", weak, sparse, "--min-coverage", "95").returncode == 2


def test_the_report_of_such_a_run_shows_bounds_in_place_of_a_headline(type_command: Typed, tmp_path: Path) -> None:
    sparse = make_run(tmp_path / "sparse", [1.0] * 27 + [0.0] * 9 + [None] * 4)
    done = type_command("report", sparse)
    assert done.returncode == 0
    assert "67.5 .. 77.5 %" in done.stdout
    assert "no headline figure: 36 of 40 episodes (90 %) have a score" in done.stdout
    assert "75.0 %" not in done.stdout.split("no headline figure")[0]
    page = (sparse / "report.html").read_text()
    assert "no headline figure: too few episodes have a score" in page
    assert "<strong>67.5 .. 77.5 %</strong>" in page
    summary = json.loads((sparse / "summary.json").read_text())
    assert (summary["success"], summary["success_bounds"]) == (0.75, [0.675, 0.775])
    markdown = type_command("report", sparse, "--format", "md").stdout
    assert "**no headline figure: 67.5 .. 77.5 %, 36/40 scored, 4 infra**" in markdown
    accepted = type_command("report", sparse, "--min-coverage", "0.9")
    assert "no headline figure" not in accepted.stdout
    assert "75.0 %" in accepted.stdout
    assert "over all episodes, success is 67.5 % if the lost ones failed, else up to 77.5 %" in accepted.stdout
    assert "<strong>75.0 %</strong>" in (sparse / "report.html").read_text()


def test_compare_names_the_better_run_and_the_difference(type_command: Typed, weak: Path, strong: Path) -> None:
    done = type_command("compare", weak, strong)
    assert (done.returncode, done.stderr) == (0, "")
    assert "strong is better than weak by 50.0 points, 95 % interval 33.8 to 66.2 points" in done.stdout
    assert "strong is the best in success." in done.stdout
    printed = json.loads(type_command("compare", weak, strong, "--json").stdout)
    assert printed["problems"] == []
    (found,) = printed["comparisons"]
    assert [each["name"] for each in found["runs"]] == ["weak", "strong"]
    assert found["pairs"][0]["better"] == "strong"
    assert found["pairs"][0]["paired"]["p_mcnemar"] == pytest.approx(2 / 2**20)


def test_the_net_of_price_stands_beside_success_if_anything_had_a_price(type_command: Typed, tmp_path: Path) -> None:
    """Both solve all tasks; one asks for everything."""
    asks = make_run(tmp_path / "asks", [1.0] * 40, price=0.25)
    looks = make_run(tmp_path / "looks", [1.0] * 40, price=0.0)
    free = make_run(tmp_path / "free", [1.0] * 40)
    compared = type_command("compare", asks, looks, free).stdout
    assert "net of price" in compared
    assert "75.0 %" in next(line for line in compared.splitlines() if line.startswith("│ asks"))
    (found,) = json.loads(type_command("compare", asks, looks, free, "--json").stdout)["comparisons"]
    assert [each.get("net_of_price", "none") for each in found["runs"]] == [0.75, 1.0, "none"]
    reported = type_command("report", asks, looks, free, "--out", tmp_path / "all.html").stdout
    assert "75.0 %" in next(line for line in reported.splitlines() if line.startswith("│ asks"))
    other = make_run(tmp_path / "other", [1.0] * 40)
    for verb in ("compare", "report"):
        assert "net of price" not in type_command(verb, free, other).stdout


def test_compare_does_not_rank_differences_within_the_noise(type_command: Typed, strong: Path, tmp_path: Path) -> None:
    nearly = make_run(tmp_path / "nearly", [float(n < 29) for n in range(40)])
    done = type_command("compare", strong, nearly)
    assert done.returncode == 0
    assert "No run can be put before another in success" in done.stdout


def test_an_incomparable_run_is_reported_and_the_rest_is_compared(
    type_command: Typed, weak: Path, strong: Path, tmp_path: Path
) -> None:
    other = make_run(tmp_path / "other", [1.0] * 40, suite_version="2")
    lost = make_run(tmp_path / "lost", [None] * 3)
    cut = make_run(tmp_path / "cut", [1.0] * 40)
    database = cut / "trajectories.sqlite"
    database.write_bytes(database.read_bytes()[:10_000])
    done = type_command("compare", weak, other, lost, cut, tmp_path / "nowhere", strong)
    assert done.returncode == 1
    assert "strong is better than weak by 50.0 points" in done.stdout
    assert "0/3 scored, 3 infra" in done.stdout
    errors = done.stderr.splitlines()
    assert all(line.startswith("gymcp: not compared: ") for line in errors)
    for said in (
        "other: suite_version is 2, of weak it is 1",
        "lost: has no score",
        f"run folder {cut}: trajectories.sqlite is damaged; gymcp report and gymcp view show what can be read of it",
        f"run folder {tmp_path / 'nowhere'}: no such folder",
    ):
        assert sum(said in line for line in errors) == 1


def test_an_unknown_metric_is_reported_and_the_others_are_compared(
    type_command: Typed, weak: Path, strong: Path
) -> None:
    done = type_command("compare", weak, strong, "--metric", "success", "--metric", "beauty", "--metric", "steps")
    assert done.returncode == 1
    assert done.stderr.startswith("gymcp: not compared: compare: no metric 'beauty'; these runs have success, score")
    assert "strong is the best in success." in done.stdout
    assert "No run can be put before another in steps" in done.stdout


def grades(run: Path) -> list[Json]:
    with TrajectoryStore.open(run) as store:
        return [(row.task, row.trial, row.outcome, row.score, row.components, row.reason) for row in store.summaries()]


@pytest.mark.parametrize("env", [BANK, "backoffice"])
def test_grading_again_gives_the_same_scores_to_the_last_bit(env: object, type_command: Typed, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert gymcp("eval", env, "--agent", "random", "--limit", "8", "--out", run, "--json").returncode == 0
    first = grades(run)
    for _ in range(2):
        done = type_command("grade", run, "--json")
        assert (done.returncode, json.loads(done.stdout)["changed"]) == (0, 0)
        assert grades(run) == first


def test_a_run_can_be_graded_by_another_grader_and_back(bank_run: Path, type_command: Typed, tmp_path: Path) -> None:
    run = shutil.copytree(bank_run, tmp_path / "run")
    first = grades(run)
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from gymcp.types import Score\n"
        "def GRADE(task, trajectory, states):\n"
        "    return Score(value=0.5, reason=f'{len(trajectory.steps)} steps')\n"
    )
    by_mine = type_command("grade", run, "--grader", mine)
    assert by_mine.returncode == 1
    assert "pay_back_5 trial 0: 1.0 -> 0.5: 2 steps" in by_mine.stdout
    with TrajectoryStore.open(run) as store:
        assert {row.grader for row in store.summaries()} == {str(mine)}
    assert type_command("grade", run, "--json").returncode == 1
    assert grades(run) == first
    unfit = type_command("grade", run, "--grader", "calls", "--json")
    assert (unfit.returncode, list(json.loads(unfit.stdout))) == (2, ["error", "exit_code"])
    assert "nothing was recorded" in unfit.stderr
    assert grades(run) == first
    refused = type_command("grade", run, "--grader", "poetry")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "no grader 'poetry'; have NAME or NAME:KEY" in refused.stderr


def test_a_ground_truth_is_reused_until_it_is_refreshed(type_command: Typed, tmp_path: Path) -> None:
    truth, env, run = tmp_path / "truth.json", tmp_path / "env.py", tmp_path / "run"
    env.write_text(
        BANK.read_text()
        + "\nimport json\nfrom dataclasses import replace\nfrom pathlib import Path\n"
        + "from gymcp.evaluators.graders import dynamic\n"
        + f"find_out = lambda task: json.loads(Path({str(truth)!r}).read_text())[task.id]\n"
        + "ENV = replace(ENV, grade=dynamic('accounts', find_out, final_state_equals()))\n"
    )
    right = {f"pay_back_{debt}": {"accounts": {"ann": 100 - debt, "bob": 20 + debt}} for debt in (5, 30, 100)}
    truth.write_text(json.dumps(right))
    assert json.loads(gymcp("eval", env, "--out", run, "--json").stdout)["success"] == 1.0
    truth.write_text(json.dumps({**right, "pay_back_5": {"accounts": {}}}))
    assert type_command("grade", run, "--json").returncode == 0
    for options in (["--refresh"], []):  # the new result is kept in its turn
        done = type_command("grade", run, "--json", *options)
        assert (done.returncode, json.loads(done.stdout)["success"]) == (1 if options else 0, pytest.approx(2 / 3))
    truth.unlink()
    lost = type_command("grade", run, "--refresh", "--json")
    assert (lost.returncode, list(json.loads(lost.stdout))) == (2, ["error", "exit_code"])
    assert "FileNotFoundError" in lost.stderr
    assert json.loads(type_command("grade", run, "--json").stdout)["success"] == pytest.approx(2 / 3)
