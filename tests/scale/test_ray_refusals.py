"""`gymcp eval` and `gymcp train` with `--ray`, and options or a cluster that do not fit: one line, no run folder."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import BANK, TIMEOUT_S, gymcp
from free_ports import refusing_port

DEMO = Path(__file__).parents[2] / "recipes" / "demo.toml"
RUBRIC = 'name = "calls"\npoints = [{id = "pays", text = "Ann was paid."}]\n'
PLAN = 'judge = "openai:http://127.0.0.1:1/v1#m"\n[policy]\nnum_gpus = 1\n'


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--ray", "127.0.0.1:{port}"], "no cluster there: Connection refused; start one: ray start --head"),
        (["--ray", "somewhere"], "--ray somewhere: is no address; give HOST:PORT"),
        (["--ray", "ray://127.0.0.1:10001"], "start gymcp on a node of the cluster"),
        (
            ["--ray", "auto", "--search", "best_of_n,width=2,value=judge,rubric={rubric}"],
            "its judge is asked here, and not on nodes",
        ),
        (["--plan", "{plan}"], "--plan: places a run on the nodes of a Ray cluster; name it: --ray auto"),
        (["--ray", "auto", "--plan", "{plan}", "--judge", "tiny"], "judge: is 'openai:http://127.0.0.1:1/v1#m', and"),
        (["--ray", "auto", "--plan", "{plan}"], "policy: places the model of --policy, and the command names none"),
        (["--ray", "auto", "--plan", "{learner}"], "learner: is the driver of a training, and an evaluation has none"),
        (
            ["--ray", "auto", "--plan", "{served}", "--policy", "tiny", "--top-p", "0.9"],
            "served.toml': policy.engine: vllm: top-p and top-k change the logprobs it reports",
        ),
        (["--ray", "auto", "--cassette", "record"], "record without --ray, then replay"),
    ],
    ids=[
        "no cluster",
        "no address",
        "client address",
        "judge",
        "no ray",
        "two judges",
        "no policy",
        "learner",
        "top-p",
        "recording",
    ],
)
def test_an_option_that_does_not_fit_is_refused(ray: None, options: list[str], says: str, tmp_path: Path) -> None:
    with refusing_port() as port:
        plan = tmp_path / "plan.toml"
        plan.write_text(PLAN)
        served, learner = tmp_path / "served.toml", tmp_path / "learner.toml"
        served.write_text("[policy]\nengine = 'vllm'\n")
        learner.write_text("[learner]\n")
        rubric = tmp_path / "rubric.toml"
        rubric.write_text(RUBRIC)
        filled = {
            "port": str(port),
            "plan": str(plan),
            "rubric": str(rubric),
            "served": str(served),
            "learner": str(learner),
        }
        words = [option.format(**filled) for option in options]
        done = gymcp("eval", BANK, *words, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--check"], "play one episode, on this machine; leave --ray out"),
        (["--set", "reward.judge=openai:http://127.0.0.1:1/v1#m"], "names reward.judge, whose answers are kept"),
        (
            ["--plan", "{plan}"],
            "places a policy or a judge, and the model of a training is the driver's: keep its groups, without",
        ),
    ],
    ids=["check", "judge", "policy of a plan"],
)
def test_a_training_that_nodes_cannot_play_is_refused(ray: None, options: list[str], says: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text("[policy]\n")
    words = [option.replace("{plan}", str(plan)) for option in options]
    done = gymcp("train", DEMO, *words, "--ray", "auto", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_without_ray_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['ray'] = None  # as if it were not installed\n")
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": path}
    out = ["--out", tmp_path / "run"]
    for command in (["eval", BANK, *out], ["train", DEMO, *out], ["doctor"]):
        words = [sys.executable, "-m", "gymcp.cli", *map(str, command), "--ray", "auto"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == (
            "gymcp: --ray: needs Ray, which is not installed: pip install 'gymcp[scale]'"
        )
    assert not (tmp_path / "run").exists()


def test_without_the_option_nothing_of_it_is_imported() -> None:
    code = (
        "import sys, gymcp.cli.evaluation.eval_run, gymcp.cli.machine.doctor;"
        "print([name for name in sys.modules if name.split('.')[0] == 'ray' or name.startswith('gymcp.scale')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert done.stdout == "[]\n"


OTHER_VERSION = """
import ray
from ray._private.utils import check_version_info
from gymcp.scale.ray_calls import connect_ray
ray.init = lambda **given: check_version_info({"ray_version": "2.1", "python_version": "3.11.99"}, "node address: here")
with connect_ray("auto"):
    pass
"""


def test_a_cluster_of_another_version_is_named_with_both_versions(ray: None) -> None:
    """Ray's own comparison, with the versions of a cluster that it would get from the cluster."""
    command = [sys.executable, "-c", OTHER_VERSION]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    said = done.stderr.splitlines()[-1]
    assert said.startswith("gymcp.errors.ConfigError: --ray auto: Version mismatch: The cluster was started with: Ray:")
    for part in ("Python: 3.11.99", f"Python: {platform.python_version()}", "driver and nodes need the same versions"):
        assert part in said
    assert "ray start" not in said
