"""Reads sizes and weights from a transformers model that is like Llama, or says why it is not."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import LlamaForCausalLM, Qwen3ForCausalLM

from gymcp.agents.policies.engine.llama_weights import LayerWeights, Sizes, Weights


def find_obstacle(model: Any) -> str | None:
    """The reason why the model is not computed by hand; None if it can be."""
    config = model.config
    if type(model) not in (LlamaForCausalLM, Qwen3ForCausalLM):
        return f"{type(model).__name__} is neither LlamaForCausalLM nor Qwen3ForCausalLM"
    tensors = {(tensor.device.type, tensor.dtype) for tensor in model.parameters()}
    if tensors != {("cpu", torch.float32)}:
        kinds = ", ".join(sorted(f"{str(dtype).removeprefix('torch.')} on {device}" for device, dtype in tensors))
        return f"its weights are {kinds}, not float32 on cpu"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            return f"its module {name or 'model'} has hooks"
        if name.endswith("_proj") and type(module) is not nn.Linear:
            return f"its module {name} is a {type(module).__name__}, such as an adapter that is not merged"
        if type(module) is nn.Linear and module.bias is not None:
            return f"its module {name} has a bias"
    return None


def read_sizes(model: Any) -> Sizes:
    """The sizes of a model without an obstacle."""
    config, attention = model.config, model.model.layers[0].self_attn
    return Sizes(
        layers=len(model.model.layers),
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head_size=attention.head_dim,
        vocabulary=model.lm_head.weight.shape[0],
        head_norms=hasattr(attention, "q_norm"),
        eps=model.model.norm.variance_epsilon,
        rotary_scaling=model.model.rotary_emb.attention_scaling,
    )


def read_weights(model: Any) -> Weights:
    """The model's own tensors as they are now."""
    core = model.model
    layers = []
    for layer in core.layers:
        attention, mlp = layer.self_attn, layer.mlp
        layers.append(
            LayerWeights(
                norm=layer.input_layernorm.weight,
                query=attention.q_proj.weight,
                key=attention.k_proj.weight,
                value=attention.v_proj.weight,
                query_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
                key_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
                out=attention.o_proj.weight,
                mlp_norm=layer.post_attention_layernorm.weight,
                gate=mlp.gate_proj.weight,
                up=mlp.up_proj.weight,
                down=mlp.down_proj.weight,
            )
        )
    return Weights(
        embedding=core.embed_tokens.weight,
        layers=tuple(layers),
        norm=core.norm.weight,
        head=model.lm_head.weight,
        frequencies=core.rotary_emb.inv_freq,
    )
