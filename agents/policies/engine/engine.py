"""The embedded engine: a transformers causal LM as a policy, in this process, over the trainer's own weights.

Hundreds of episodes await `Engine.sample` at once; a separate thread runs the model, with continuous batching over a
fixed number of slots. The next turn of an episode continues in the slot that holds its tokens. If a prompt shares a
prefix with another slot, the keys and values of that prefix are copied. Prompts are computed in chunks between the
tokens of other requests.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gymcp.agents.policies.engine.forward import open_forward
from gymcp.agents.policies.engine.loop import EngineLoop, EngineStats, Update
from gymcp.agents.policies.engine.model import check_supported
from gymcp.agents.policies.engine.request import Decoder, Request, StopRule
from gymcp.agents.policies.engine.sampler import check_sampling
from gymcp.errors import ConfigError
from gymcp.types import Sampled, Sampling

CLOSE_TIMEOUT_S = 60.0
"""Maximum seconds that closing waits for the forward pass under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Settings of the engine whose defaults fit most callers."""

    tokenizer: Decoder | None = None
    """Tokenizer, needed for stop texts only; None for the one in the model's folder, if the model comes from one."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end a sample, beside the end-of-sequence tokens of the model's generation config."""
    max_context: int = 0
    """Maximum number of tokens of prompt and sample together; 0 for the model's own maximum."""
    prefill_tokens: int = 512
    """Maximum number of prompt tokens computed between two sampled ones: it bounds how long a prompt delays others."""
    seed: int | None = None
    """Seed of the generator for requests without a seed of their own; None for a random one."""
    deterministic: bool = False
    """True for results that do not depend on what else is sampled at the same time: the same seed, prompt and weights
    give the same tokens and logprobs to the last bit. The forward pass in C++ always does. The others then take one
    request per forward pass and reuse nothing, which costs most of the speed. If False, the same holds up to rounding:
    a token can differ if its random number falls within rounding of the border between two tokens."""
    forward: str = ""
    """Forward pass: cpp, torch or transformers; empty for $GYMCP_ENGINE_FORWARD, else the fastest that can be used."""


class Engine:
    """A `Policy`. Made by `open_engine`."""

    def __init__(self, loop: EngineLoop, model: Any, max_context: int, options: EngineOptions) -> None:
        self.max_context = max_context
        self._loop = loop
        self._model = model
        self._can_stop = options.tokenizer is not None
        self._vocabulary: int = model.get_input_embeddings().weight.shape[0]
        self._rng = random.Random(options.seed)

    @property
    def version(self) -> str:
        """The version of the weights with which the next token is sampled."""
        return self._loop.version

    @property
    def forward_pass(self) -> str:
        """Name of the forward pass: cpp, torch or transformers."""
        return self._loop.forward_pass

    @property
    def stats(self) -> EngineStats:
        """Counts of the work done so far."""
        return self._loop.stats

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        """Sample an answer. Raises ConfigError for an invalid request, PolicyInfraError if the engine fails.

        A prompt that fills the context is answered at once with no tokens, and `finish` is "length". Cancelling frees
        the slot.
        """
        check_sampling(sampling)
        prompt = tuple(prompt_ids)
        if not prompt:
            raise ConfigError("embedded engine: the prompt is empty; it needs one token at least")
        if min(prompt) < 0 or max(prompt) >= self._vocabulary:
            raise ConfigError(
                f"embedded engine: the prompt has ids outside the model's vocabulary of {self._vocabulary}"
            )
        if sampling.stop and not self._can_stop:
            raise ConfigError("embedded engine: stop texts need a tokenizer; pass one in EngineOptions")
        if len(prompt) >= self.max_context:
            return Sampled(prompt_ids=prompt, ids=(), logprobs=(), versions=(), finish="length")
        request = Request(prompt, sampling, self._rng)
        self._loop.submit(request)
        try:
            return await request.future
        except asyncio.CancelledError:
            request.cancelled = True
            raise

    async def update(self, version: str, change: Callable[[], None] = lambda: None) -> None:
        """Change the weights and their version. `change` is called on the model's thread between two forward passes.

        A trainer that changes weights while requests run, as an optimizer step does, must do it in `change`.

        Every token is sampled from the distribution that a plain forward pass with the weights of its version gives.
        Therefore requests under way keep their tokens, but their keys and values are computed again, and idle slots are
        cleared. If `change` raises, its error is raised here, and the version and the computed keys and values stay; so
        `change` must change everything or nothing.
        """
        update = Update(change=change, version=version)
        self._loop.submit(update)
        await asyncio.wrap_future(update.done)

    async def load_state(self, state: Mapping[str, torch.Tensor], version: str) -> None:
        """Copy tensors into the shared weights, by the names of the model's `state_dict`; the others stay as they are.

        Raises ConfigError for an unknown name or a different shape, before anything is changed.
        """
        own: dict[str, torch.Tensor] = self._model.state_dict(keep_vars=True)
        if unknown := sorted(set(state) - set(own)):
            raise ConfigError(f"embedded engine: the model has no tensor {unknown[0]!r} ({len(unknown)} such names)")
        for name, tensor in state.items():
            if tensor.shape != own[name].shape:
                shapes = f"{tuple(tensor.shape)}, the model's {tuple(own[name].shape)}"
                raise ConfigError(f"embedded engine: tensor {name!r} has shape {shapes}")

        def change() -> None:
            with torch.no_grad():
                for name, tensor in state.items():
                    own[name].copy_(tensor)

        await self.update(version, change)


@asynccontextmanager
async def open_engine(
    model_or_path: Any,
    *,
    slots: int,
    device: str | None = None,
    version: str = "0",
    options: EngineOptions = EngineOptions(),
) -> AsyncIterator[Engine]:
    """A policy over a transformers causal LM: a model object, whose weights it shares, or a folder that holds one.

    `slots` requests are computed at once; more requests wait. A folder is loaded onto `device`; None means the GPU if
    there is one, in the stored precision, else the CPU in float32. A model object stays on its device. Models that peft
    has wrapped in LoRA adapters work. Raises ConfigError for a folder without a model, and for a model that slots do
    not compute exactly, which is checked.
    """
    if slots < 1:
        raise ConfigError(f"embedded engine: {slots} slots; it needs 1 or more")
    loop, engine = await asyncio.to_thread(_build, model_or_path, slots, device, version, options)
    loop.start()
    try:
        yield engine
    finally:
        await asyncio.shield(asyncio.to_thread(loop.close, CLOSE_TIMEOUT_S))


def _build(
    model_or_path: Any, slots: int, device: str | None, version: str, options: EngineOptions
) -> tuple[EngineLoop, Engine]:
    model = model_or_path
    if isinstance(model_or_path, str | Path):
        model, options = _load(Path(model_or_path), device, options)
    elif device is not None and torch.device(device).type != next(model.parameters()).device.type:
        raise ConfigError(
            f"embedded engine: the model is on {next(model.parameters()).device}, not on {device}; move it first"
        )
    inner = model.get_base_model() if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else model
    trained_for = getattr(inner.config, "max_position_embeddings", 0)
    max_context = options.max_context or trained_for
    if not 2 <= max_context <= (trained_for or max_context):
        raise ConfigError(
            f"embedded engine: max_context is {max_context}; the model is made for 2 to {trained_for} tokens"
        )
    check_supported(inner, max_context)
    loop = EngineLoop(
        open_forward(inner, slots, max_context, options.forward),
        slots,
        version=version,
        stop=StopRule(_stop_ids(inner) | frozenset(options.stop_ids), options.tokenizer),
        prefill_tokens=options.prefill_tokens,
        deterministic=options.deterministic,
    )
    return loop, Engine(loop, model, max_context, options)


def _load(folder: Path, device: str | None, options: EngineOptions) -> tuple[Any, EngineOptions]:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"embedded engine: no model in {folder}: it has no config.json")
    target = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float32 if torch.device(target).type == "cpu" else "auto"
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        model = model.to(target)
        tokenizer: Any = options.tokenizer
        if tokenizer is None and (folder / "tokenizer.json").is_file():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(f"embedded engine: cannot load {folder}: {error}") from error
    return model, replace(options, tokenizer=tokenizer)


def _stop_ids(model: Any) -> frozenset[int]:
    """The end-of-sequence tokens of the generation config; if it has none, those of the model's config."""
    for config in (getattr(model, "generation_config", None), model.config):
        ends = getattr(config, "eos_token_id", None)
        if ends is not None:
            return frozenset([ends] if isinstance(ends, int) else ends)
    return frozenset()
