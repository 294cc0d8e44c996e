"""The forward pass of the engine: a transformers causal LM over keys and values held in slots."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from gymcp.agents.policies.engine.sampler import Drawn, draw
from gymcp.agents.policies.engine.slots import round_capacity
from gymcp.errors import ConfigError
from gymcp.types import Sampling

PROBE_TOKENS = 12
"""Number of tokens in the check that the engine computes the model's own logits."""


class SlotCache:
    """Keys and values, one pair of tensors [slots, heads, tokens, size] per layer, allocated at a layer's first use.

    Implements the part of a transformers cache that decoder layers use.
    """

    is_compileable = False

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.capacity = 0
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._write: tuple[torch.Tensor, torch.Tensor] = (torch.empty(0), torch.empty(0))
        self._read: torch.Tensor | slice = slice(0)
        self._length = 0

    def reserve(self, tokens: int) -> None:
        """Make room for this many tokens in every slot."""
        if tokens > self.capacity:
            self._grow(max(tokens, 2 * self.capacity))

    def set_access(self, write: tuple[torch.Tensor, torch.Tensor], read: torch.Tensor | slice, length: int) -> None:
        """Set the places that the next forward pass writes and reads.

        `write`: slots [B, 1] and positions [B, T]. `read`: slots, of which the first `length` positions are read.
        """
        self._write, self._read, self._length = write, read, length

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, heads, T, size] -> all keys and values to attend to; called by the attention layers."""
        if layer_idx not in self._layers:
            shape = (self.slots, keys.shape[1], self.capacity)
            self._layers[layer_idx] = (
                keys.new_zeros((*shape, keys.shape[3])),
                values.new_zeros((*shape, values.shape[3])),
            )
        all_keys, all_values = self._layers[layer_idx]
        rows, positions = self._write
        all_keys[rows, :, positions] = keys.transpose(1, 2)
        all_values[rows, :, positions] = values.transpose(1, 2)
        return self._select(all_keys), self._select(all_values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: decoder layers ask for it, but the engine always passes positions."""
        return 0

    @torch.inference_mode()
    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` of one slot into another."""
        for pair in self._layers.values():
            for tensor in pair:
                tensor[target, :, :tokens] = tensor[source, :, :tokens]

    def _select(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a layer's keys or values that the forward pass reads."""
        if isinstance(self._read, slice):
            return tensor[self._read, :, : self._length]
        return tensor[:, :, : self._length].index_select(0, self._read)

    def _grow(self, min_tokens: int) -> None:
        self.capacity = round_capacity(min_tokens)
        for layer, (keys, values) in self._layers.items():
            self._layers[layer] = (self._enlarge(keys), self._enlarge(values))

    def _enlarge(self, tensor: torch.Tensor) -> torch.Tensor:
        larger = tensor.new_zeros((*tensor.shape[:2], self.capacity, tensor.shape[3]))
        larger[:, :, : tensor.shape[2]] = tensor
        return larger


class SlotModel:
    """Runs a model over slots. The weights are the caller's own tensors; the mode and the attention kernel are not."""

    name = "transformers"
    ragged = False
    batch_invariant = False

    def __init__(self, model: Any, slots: int, max_context: int) -> None:
        self.weights = model
        self.max_context = max_context
        self.cache = SlotCache(slots)
        self._view = copy_sharing_weights(model)
        self._view.config._attn_implementation = "sdpa"
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype

    @torch.inference_mode()
    def forward(
        self, slots: Sequence[int], starts: Sequence[int], chunks: Sequence[Sequence[int]], *, window: bool
    ) -> torch.Tensor:
        """Chunks of tokens, one per slot, at positions from `start` on -> logits [B, V] after the last of each chunk.

        Shorter chunks are padded in front. The padding is written, and positioned, behind the chunk's own tokens: no
        token of the slot attends that far, and the next chunk overwrites it.

        `window` allows reading contiguous slots in place, without a copy.
        """
        rows, width = list(slots), max(len(chunk) for chunk in chunks)
        ids = torch.tensor([[0] * (width - len(chunk)) + list(chunk) for chunk in chunks], device=self.device)
        sizes = torch.tensor([len(chunk) for chunk in chunks], device=self.device)[:, None]
        offsets = (torch.arange(width, device=self.device) + sizes) % width
        positions = torch.tensor(starts, device=self.device)[:, None] + offsets
        self.cache.reserve(max(starts) + width)
        length = max(start + len(chunk) for start, chunk in zip(starts, chunks, strict=True))
        index = torch.tensor(rows, device=self.device)
        contiguous = window and rows == list(range(rows[0], rows[0] + len(rows)))
        read = slice(rows[0], rows[0] + len(rows)) if contiguous else index
        self.cache.set_access((index[:, None], positions), read, length)
        later = torch.arange(length, device=self.device) > positions[:, None, :, None]
        # an additive mask: a boolean one would be converted in every layer
        mask = torch.zeros(later.shape, dtype=self.dtype, device=self.device).masked_fill_(later, -torch.inf)
        output = self._view(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions.clamp(max=self.max_context - 1),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def draw(self, logits: torch.Tensor, rules: Sequence[Sampling], uniforms: Sequence[float]) -> Drawn:
        """Sample one token per row."""
        return draw(logits, rules, uniforms)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the keys and values of the first `tokens` of one slot into another."""
        self.cache.copy(source, target, tokens)

    def reload(self) -> None:
        """Nothing to do: the modules hold the caller's own tensors."""

    def close(self) -> None:
        """Release the keys and values."""
        self.cache = SlotCache(0)


def copy_sharing_weights(model: Any) -> Any:
    """The same model over the same parameters and buffers, in evaluation mode, with a configuration of its own.

    The trainer's dropout, gradient checkpointing and attention kernel do not affect the copy, and no weight is copied.
    Modules that are added to the original later are not in the copy.
    """
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors}).eval()


def check_supported(model: Any, max_context: int) -> None:
    """Raises ConfigError for layers and positions known to need more than slots with full attention."""
    config = model.config
    who = f"embedded engine: {type(model).__name__}"
    kinds = set(getattr(config, "layer_types", None) or ())
    if unknown := kinds - {"full_attention", "sliding_attention"}:
        raise ConfigError(
            f"{who} has layers of type {', '.join(sorted(unknown))}, which keep no keys and values; use vLLM"
        )
    window = getattr(config, "sliding_window", None)
    if window and (not kinds or "sliding_attention" in kinds) and max_context > window:
        raise ConfigError(
            f"{who} attends through a sliding window of {window} tokens, which slots of {max_context} tokens do not; "
            f"set max_context to {window} or less"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    for part in [rope, *(value for value in rope.values() if isinstance(value, dict))]:
        if part.get("rope_type") in ("dynamic", "longrope"):
            raise ConfigError(
                f"{who} has {part['rope_type']} positions, which depend on the longest row of a batch; use vLLM"
            )


class ExactForward(Protocol):
    """The part of a forward pass that is checked."""

    def forward(
        self, slots: Sequence[int], starts: Sequence[int], chunks: Sequence[Sequence[int]], *, window: bool
    ) -> torch.Tensor: ...


def check_exact(model: Any, max_context: int, runner: ExactForward | None = None) -> None:
    """Raises ConfigError if a forward pass over slots fails or does not give the model's own logits.

    `runner`: a forward pass over two slots; None for that of transformers.
    """
    who = f"embedded engine: {type(model).__name__}"
    vocabulary = model.get_input_embeddings().weight.shape[0]
    length = min(PROBE_TOKENS, max_context - 1)
    ids = [(7 * at + 3) % vocabulary for at in range(length)]
    parameter = next(model.parameters())
    runner = runner or SlotModel(model, 2, max_context)
    try:
        with torch.inference_mode():
            inputs = torch.tensor([ids], device=parameter.device)
            plain = copy_sharing_weights(model)(input_ids=inputs, use_cache=False).logits[0]
        cut = length // 2
        runner.forward([0, 1], [0, 0], [ids[:cut], ids[: cut - 1]], window=False)
        ours = runner.forward([1, 0], [cut - 1, cut], [ids[cut - 1 :], ids[cut:]], window=False)
    except (TypeError, ValueError, AttributeError, RuntimeError, NotImplementedError) as error:
        raise ConfigError(f"{who} does not run over slots: {type(error).__name__}: {error}; use vLLM") from error
    difference = float((ours - plain[-1]).abs().max())
    tolerance = (1e-4 if parameter.dtype == torch.float32 else 5e-2) * max(1.0, float(plain[-1].abs().max()))
    if not difference <= tolerance:
        raise ConfigError(
            f"{who} over slots differs from its own forward pass by {difference:.2g} in a logit; use vLLM"
        )
