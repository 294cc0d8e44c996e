"""The forward pass of the engine: a transformers causal LM over keys and values that stay in slots."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from gymcp.errors import ConfigError

CACHE_CHUNK_TOKENS = 256
"""The cache grows to multiples of this many tokens."""

PROBE_TOKENS = 12
"""Tokens of the check that the engine computes what the model computes."""


class SlotCache:
    """Keys and values, one pair of tensors [slots, heads, tokens, size] per layer, made when a layer first asks.

    Quacks like a transformers cache for as much of it as decoder layers use.
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
        """Room for this many tokens in every slot."""
        if tokens > self.capacity:
            self._grow(max(tokens, 2 * self.capacity))

    def aim(self, write: tuple[torch.Tensor, torch.Tensor], read: torch.Tensor | slice, length: int) -> None:
        """What the next forward pass writes, (slots [B, 1], positions [B, T]), and reads: slots, the first `length`."""
        self._write, self._read, self._length = write, read, length

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by the attention layers, [B, heads, T, size] -> all keys and values to attend to."""
        if layer_idx not in self._layers:
            shape = (self.slots, keys.shape[1], self.capacity)
            self._layers[layer_idx] = (
                keys.new_zeros((*shape, keys.shape[3])),
                values.new_zeros((*shape, values.shape[3])),
            )
        held_keys, held_values = self._layers[layer_idx]
        rows, positions = self._write
        held_keys[rows, :, positions] = keys.transpose(1, 2)
        held_values[rows, :, positions] = values.transpose(1, 2)
        return self._readable(held_keys), self._readable(held_values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions are always given, so this is only asked for form's sake."""
        return 0

    @torch.inference_mode()
    def copy(self, source: int, target: int, tokens: int) -> None:
        """The first `tokens` of one slot into another."""
        for held in self._layers.values():
            for tensor in held:
                tensor[target, :, :tokens] = tensor[source, :, :tokens]

    def _readable(self, held: torch.Tensor) -> torch.Tensor:
        if isinstance(self._read, slice):
            return held[self._read, :, : self._length]
        return held[:, :, : self._length].index_select(0, self._read)

    def _grow(self, least: int) -> None:
        self.capacity = -(-least // CACHE_CHUNK_TOKENS) * CACHE_CHUNK_TOKENS
        for layer, held in self._layers.items():
            self._layers[layer] = (self._enlarge(held[0]), self._enlarge(held[1]))

    def _enlarge(self, tensor: torch.Tensor) -> torch.Tensor:
        grown = tensor.new_zeros((*tensor.shape[:2], self.capacity, tensor.shape[3]))
        grown[:, :, : tensor.shape[2]] = tensor
        return grown


class SlotModel:
    """Runs a model's weights over slots. The weights are the caller's own tensors; mode and attention are not."""

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
        """Tokens to follow what each slot holds, from position `start` on -> logits [B, V] after the last of each.

        Chunks of unequal length are filled up in front with tokens that are written, and positioned, behind the
        chunk's own: no token of the slot looks that far, and the next chunk overwrites them.

        `window` allows reading the slots from the lowest to the highest as they lie, without a copy. The slots between
        then have garbage written behind what they hold.
        """
        rows, width = list(slots), max(len(chunk) for chunk in chunks)
        ids = torch.tensor([[0] * (width - len(chunk)) + list(chunk) for chunk in chunks], device=self.device)
        sizes = torch.tensor([len(chunk) for chunk in chunks], device=self.device)[:, None]
        offsets = (torch.arange(width, device=self.device) + sizes) % width
        positions = torch.tensor(starts, device=self.device)[:, None] + offsets
        self.cache.reserve(max(starts) + width)
        seen = max(start + len(chunk) for start, chunk in zip(starts, chunks, strict=True))
        index = torch.tensor(rows, device=self.device)
        contiguous = window and rows == list(range(rows[0], rows[0] + len(rows)))
        read = slice(rows[0], rows[0] + len(rows)) if contiguous else index
        self.cache.aim((index[:, None], positions), read, seen)
        later = torch.arange(seen, device=self.device) > positions[:, None, :, None]
        # added, not boolean: that is converted once, here, and not in every layer
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

    def close(self) -> None:
        """Lets go of the keys and values."""
        self.cache = SlotCache(0)


def copy_sharing_weights(model: Any) -> Any:
    """The same model over the same parameters and buffers, in evaluation mode, with a configuration of its own.

    So the trainer's dropout, gradient checkpointing and choice of attention do not reach the engine, and no weight is
    copied. Modules that are added to the original later are not in it.
    """
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors}).eval()


def check_supported(model: Any, max_context: int) -> None:
    """Raises ConfigError for what slots with full attention cannot compute, by name where it is known."""
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


def check_exact(model: Any, max_context: int) -> None:
    """Raises ConfigError where slots do not give the model's own logits, whatever the reason."""
    who = f"embedded engine: {type(model).__name__}"
    vocabulary = model.get_input_embeddings().weight.shape[0]
    length = min(PROBE_TOKENS, max_context - 1)
    ids = [(7 * at + 3) % vocabulary for at in range(length)]
    runner = SlotModel(model, 2, max_context)
    try:
        with torch.inference_mode():
            plain = copy_sharing_weights(model)(input_ids=torch.tensor([ids], device=runner.device), use_cache=False).logits[0]
        cut = length // 2
        runner.forward([0, 1], [0, 0], [ids[:cut], ids[: cut - 1]], window=False)
        ours = runner.forward([1, 0], [cut - 1, cut], [ids[cut - 1 :], ids[cut:]], window=False)
    except (TypeError, ValueError, AttributeError, RuntimeError, NotImplementedError) as error:
        raise ConfigError(f"{who} does not run over slots: {type(error).__name__}: {error}; use vLLM") from error
    difference = float((ours - plain[-1]).abs().max())
    tolerance = (1e-4 if runner.dtype == torch.float32 else 5e-2) * max(1.0, float(plain[-1].abs().max()))
    if not difference <= tolerance:
        raise ConfigError(
            f"{who} over slots differs from its own forward pass by {difference:.2g} in a logit; use vLLM"
        )
