"""A model that the plan gives to a vLLM server: what is refused before the server starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gymcp.agents.policies.specs import TRAINED, parse_policy
from gymcp.agents.policies.vllm.install import CPU, GPU, vllm_folder
from gymcp.errors import ConfigError
from gymcp.scale.plan import PolicyPlace
from gymcp.scale.served_model import check_servable, check_vllm
from gymcp.types import Sampling

ON_CPU, ON_GPU = PolicyPlace(engine="vllm"), PolicyPlace(engine="vllm", num_gpus=1)


def test_a_machine_without_vllm_is_told_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path))
    for place, build, how in ((ON_CPU, CPU, "gymcp serve MODEL --cpu"), (ON_GPU, GPU, "gymcp serve MODEL")):
        with pytest.raises(ConfigError) as raised:
            check_vllm(place)
        assert str(raised.value) == (
            f"the plan's policy.engine is 'vllm', and {build.package} {build.version} is not installed there"
            f" ({vllm_folder(build)}): type `{how}` there once, which installs it"
        )


def test_a_machine_needs_the_build_of_its_place_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path))
    vllm_folder(CPU).mkdir(parents=True)
    (vllm_folder(CPU) / "complete").touch()
    check_vllm(ON_CPU)
    with pytest.raises(ConfigError, match=f"and {GPU.package} {GPU.version} is not installed there"):
        check_vllm(ON_GPU)


def test_models_of_this_process_can_be_served(tmp_path: Path) -> None:
    shutil.copytree(TRAINED, tmp_path / "model")
    for policy in ("tiny", "tiny:llama", f"local:{tmp_path}/model"):
        check_servable(parse_policy(policy), Sampling(temperature=0.5))


@pytest.mark.parametrize(
    ("lacks", "says"),
    [("config.json", "no model in {}: it has no config.json"), ("tokenizer.json", "no tokenizer in {}: it has no")],
)
def test_an_incomplete_model_folder_is_refused(lacks: str, says: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(TRAINED, model)
    (model / lacks).unlink()
    with pytest.raises(ConfigError) as raised:
        check_servable(parse_policy(f"local:{model}"), Sampling())
    assert str(raised.value).startswith(f"vllm: {says.format(model)}")


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.9), Sampling(top_k=5)])
def test_sampling_that_changes_logprobs_is_refused(sampling: Sampling) -> None:
    with pytest.raises(ConfigError, match="vllm: top-p and top-k change the logprobs it reports"):
        check_servable(parse_policy("tiny"), sampling)
