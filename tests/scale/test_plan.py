"""Plans of runs on a cluster: what they choose, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_runner import BANK
from page_blocks import DOCS

from gymcp.errors import ConfigError
from gymcp.scale.plan import (
    ClusterNode,
    NodeGroup,
    NodePlace,
    PolicyPlace,
    RunPlan,
    check_learner,
    check_plan,
    check_policies,
    read_plan,
)

BIG = ClusterNode(id="1", name="gpu-1/aa", resources={"CPU": 8, "GPU": 2, "memory": 1e9}, labels={"zone": "a"})
SMALL = ClusterNode(id="2", name="cpu-1/bb", resources={"CPU": 4, "bubblewrap": 1}, labels={"zone": "b"})
HEAD = ClusterNode(id="3", name="head/cc", labels={"ray.io/node_id": "3"})
HAVE = "the cluster has gpu-1/aa (CPU 8, GPU 2, zone=a), cpu-1/bb (CPU 4, bubblewrap 1, zone=b), head/cc ()"
PLAN = """
judge = "openai:http://10.0.0.9:8000/v1#judge"
[policy]
nodes = "gpu-*"
num_gpus = 1
resources = { policy = 0.5 }
engine = "vllm"
vllm_args = ["--max-model-len", "4096"]
[[group]]
nodes = "cpu-*"
labels = { zone = "b" }
resources = ["bubblewrap"]
environments = ["backoffice", "envs/bank.py"]
concurrency = 32
policy = "vllm:http://10.0.0.3:8000#m"
[[group]]
"""


def read(folder: Path, text: str) -> RunPlan:
    (folder / "plan.toml").write_text(text)
    return read_plan(folder / "plan.toml")


def test_a_plan_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "bank.py").write_text(BANK.read_text())
    assert read(tmp_path, PLAN) == RunPlan(
        judge="openai:http://10.0.0.9:8000/v1#judge",
        policy=PolicyPlace(
            nodes="gpu-*",
            num_gpus=1,
            resources={"policy": 0.5},
            engine="vllm",
            vllm_args=["--max-model-len", "4096"],
        ),
        group=[
            NodeGroup(
                nodes="cpu-*",
                labels={"zone": "b"},
                resources=["bubblewrap"],
                environments=["backoffice", str(tmp_path / "envs" / "bank.py")],
                concurrency=32,
                policy="vllm:http://10.0.0.3:8000#m",
            ),
            NodeGroup(),
        ],
    )


def test_the_plans_of_the_page_are_plans(tmp_path: Path) -> None:
    text = (DOCS / "scale.md").read_text()
    local, remote = (read(tmp_path, block) for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL))
    check_policies(local, "plan", "tiny")
    check_policies(remote, "plan", "openai:http://10.0.0.2:8000/v1#model")
    assert local.policy is not None
    assert [bool(group.policy) for group in remote.group] == [True, False]


def test_the_first_group_of_a_node_counts_and_a_node_in_none_plays_nothing() -> None:
    first = NodeGroup(nodes="gpu-*", environments=["bfcl"])
    second = NodeGroup(labels={"zone": "a"})
    third = NodeGroup(nodes="cpu-1/bb", resources=["bubblewrap"])
    plan = RunPlan(group=[first, second, third])
    assert [plan.find_group(node, "bfcl") for node in (BIG, SMALL, HEAD)] == [first, third, None]
    assert [plan.find_group(node, "backoffice") for node in (BIG, SMALL, HEAD)] == [None, third, None]
    assert RunPlan().find_group(HEAD, "bfcl") == NodeGroup()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("groups = []", "no key 'groups'; have judge, policy, learner, group"),
        (
            "[[group]]\nnode = 1",
            "no key 'group.1.node'; have nodes, labels, resources, environments, concurrency, policy",
        ),
        ("[policy]\ngpus = 1", "no key 'policy.gpus'; have nodes, labels, num_gpus, resources, engine, vllm_args"),
        ("[learner]\nengine = 'vllm'", "no key 'learner.engine'; have nodes, labels, num_gpus, resources"),
        ("[policy]\nengine = 'sglang'", "policy.engine: must be 'embedded' or 'vllm'"),
        ("[policy]\nvllm_args = ['--seed', '1']", "policy.vllm_args is for policy.engine = 'vllm'"),
        ("[[group]]\n[[group]]\nconcurrency = 0", "group.2.concurrency: must be greater than or equal to 1"),
        ("[[group]]\nconcurrency = '8'", "group.1.concurrency: must be a valid integer"),
        ("[policy]\nnum_gpus = -1", "policy.num_gpus: must be greater than or equal to 0"),
        ("[[group]]\nenvironments = ['none']", "group 1.environments: no environment 'none'; have agentdojo, "),
        ("[[group]]\npolicy = 'gpt'", "group 1.policy: no policy 'gpt'; write tiny"),
        ("judge = 'gpt'", "judge: no policy 'gpt'; write tiny"),
        ("judge =", "is not TOML: "),
    ],
)
def test_a_wrong_file_is_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    assert str(raised.value).startswith(f"plan '{tmp_path}/plan.toml': {says}")


def test_a_plan_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        read_plan(tmp_path / "plan.toml")


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (RunPlan(group=[NodeGroup(), NodeGroup(nodes="tpu-*")]), "group 2: no node is named 'tpu-*'"),
        (
            RunPlan(group=[NodeGroup(labels={"zone": "c"}, resources=["TPU"])]),
            "group 1: no node has the label zone=c and has the resource TPU",
        ),
        (RunPlan(policy=PolicyPlace(num_gpus=4)), "policy: no node has the resource GPU 4"),
        (
            RunPlan(policy=PolicyPlace(nodes="cpu-*", num_gpus=1)),
            "policy: no node is named 'cpu-*' and has the resource GPU 1",
        ),
        (RunPlan(policy=PolicyPlace(resources={"policy": 1})), "policy: no node has the resource policy 1"),
        (RunPlan(learner=NodePlace(labels={"zone": "c"})), "learner: no node has the label zone=c"),
        (RunPlan(group=[NodeGroup(environments=["bfcl"])]), "no node with a CPU plays 'backoffice' by its groups"),
        (RunPlan(group=[NodeGroup(nodes="head")]), "no node with a CPU plays 'backoffice' by its groups"),
    ],
)
def test_a_plan_that_the_cluster_does_not_fit_is_refused(plan: RunPlan, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_plan(plan, "plan", [BIG, SMALL, HEAD], "backoffice")
    assert str(raised.value) == f"plan: {says}; {HAVE}"


def test_a_plan_that_fits_is_accepted() -> None:
    place = PolicyPlace(nodes="gpu-*", labels={"zone": "a"}, num_gpus=2)
    check_plan(RunPlan(policy=place, group=[NodeGroup(nodes="cpu-*")]), "plan", [BIG, SMALL, HEAD], "backoffice")


def test_a_learner_on_another_node_than_the_plan_asks_for_is_refused() -> None:
    nodes = [BIG, SMALL, HEAD]
    on_gpu = RunPlan(learner=NodePlace(nodes="gpu-*", num_gpus=1, resources={"CPU": 8}))
    check_learner(RunPlan(), "plan", nodes, HEAD.id)
    check_learner(RunPlan(learner=NodePlace()), "plan", nodes, HEAD.id)
    check_learner(on_gpu, "plan", nodes, BIG.id)
    with pytest.raises(ConfigError) as raised:
        check_learner(on_gpu, "plan", nodes, SMALL.id)
    assert str(raised.value) == (
        "plan: learner: must be on a node that is named 'gpu-*' and has the resource CPU 8 and has the resource GPU 1,"
        " and the command runs on cpu-1/bb (CPU 4, bubblewrap 1, zone=b); type it on gpu-1/aa (CPU 8, GPU 2, zone=a)"
    )


@pytest.mark.parametrize(
    ("plan", "policy", "says"),
    [
        (RunPlan(policy=PolicyPlace()), None, "policy: places the model of --policy, and the command names none"),
        (
            RunPlan(policy=PolicyPlace()),
            "vllm:http://a:1#m",
            "policy: places the model of --policy, and the command names 'vllm:http://a:1#m', which is at an address",
        ),
        (
            RunPlan(group=[NodeGroup(policy="vllm:http://b:1#other")]),
            "vllm:http://a:1#m",
            "group 1.policy is 'vllm:http://b:1#other': it may only be another address of the model of --policy",
        ),
        (RunPlan(group=[NodeGroup(policy="vllm:http://b:1#m")]), "tiny", "group 1.policy is 'vllm:http://b:1#m'"),
    ],
)
def test_a_plan_for_another_model_is_refused(plan: RunPlan, policy: str | None, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_policies(plan, "plan", policy)
    assert str(raised.value).startswith(f"plan: {says}")


def test_a_model_may_be_at_several_addresses() -> None:
    check_policies(RunPlan(group=[NodeGroup(policy="vllm:http://b:1#m")]), "plan", "vllm:http://a:1#m")
    check_policies(RunPlan(policy=PolicyPlace()), "plan", "tiny")
