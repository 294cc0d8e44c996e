"""Tiny language models: random weights, a tokenizer trained on the spot, and a chat template of one of four styles.

Such a model knows nothing, but `AutoModelForCausalLM`, `AutoTokenizer` and vLLM load its folder as any other.
`--policy tiny:STYLE` runs one; trainers and tests start from one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config
from transformers import Qwen3ForCausalLM as Qwen3

from gymcp.agents.policies.chat_templates import COMPACT, LLAMA, QWEN, TERSE, ChatStyle
from gymcp.errors import ConfigError

Style = Literal["qwen", "llama", "compact", "terse"]

STYLES: dict[Style, ChatStyle] = {"qwen": QWEN, "llama": LLAMA, "compact": COMPACT, "terse": TERSE}

_CORPUS_TEXT = """
the a of to and in is it you that for on with as are this be at by not or from have can all one we an if your will
what which there their use how each she he do they said who up out many then them these so some her would make like
him into time has look two more write go see number no way could people my than first been call its now find long
down day did get come made may part file name path text value list type string integer number boolean object array
error result user account balance transfer amount source target owner done true false null read directory folder
move copy delete create update search open close start stop message send receive price order booking ticket city
date year month money euro dollar pay back status id key query limit offset please thank answer question tool
function arguments parameters description required properties query response request content role assistant system
"""

_APART = r" ?[a-z]+(?![a-z0-9])|[A-Z][a-z]*|[a-z]+|[0-9]|[^\sA-Za-z0-9]+|\s"
"""Pattern of the parts that a text is split into before pieces are learnt; no piece crosses the border of a part. Only
a word in lower case includes the space before it, so that a copied name or number has the same tokens everywhere."""
_SPELT = re.compile(r"[A-Z][a-z]+|[a-z]+(?=[0-9])")
"""Names and the prefixes of ids such as ``ab12``; these are never learnt as pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinySize:
    """The shape of a tiny model: about 1.3 million parameters by default."""

    vocabulary: int = 4096
    """Maximum number of tokens; a small corpus has fewer."""
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    context: int = 2048
    init_std: float = 0.06
    """Standard deviation of the random weights: larger weights give sharper distributions, in which a wrong logprob
    shows."""


def make_tiny_model(
    folder: Path, style: Style = "qwen", *, seed: int = 0, size: TinySize | None = None, corpus: Iterable[str] = ()
) -> Path:
    """Save a model in float32 and its tokenizer in `folder`, which is returned.

    The same arguments give the same weights and tokens.

    `corpus`: texts from which the tokenizer learns its pieces, beside common words and the style's own template; a
    style that spells learns from the corpus alone.
    """
    if style not in get_args(Style):
        raise ConfigError(f"no tiny model in style {style!r}; have {', '.join(get_args(Style))}")
    size = size or TinySize()
    tokenizer = make_tiny_tokenizer(style, vocabulary=size.vocabulary, context=size.context, corpus=corpus)
    chat = STYLES[style]
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": size.hidden,
        "intermediate_size": 3 * size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": max(1, size.heads // 2),
        "head_dim": size.hidden // size.heads,
        "max_position_embeddings": size.context,
        "initializer_range": size.init_std,
        "tie_word_embeddings": True,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "dtype": "float32",
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**shape)) if style == "llama" else Qwen3(Qwen3Config(**shape))
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.convert_tokens_to_ids(list(chat.end_tokens)), pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_tiny_tokenizer(
    style: Style, *, vocabulary: int = 4096, context: int = 2048, corpus: Iterable[str] = ()
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with the style's control tokens and chat template: it encodes and decodes any text."""
    chat = STYLES[style]
    pieces = Tokenizer(models.BPE())
    given_texts = list(corpus)
    texts: Iterable[str] = [*_make_corpus(), chat.template, *given_texts]
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if chat.spells:
        apart = pre_tokenizers.Split(Regex(_APART), "isolated")
        pieces.pre_tokenizer = pre_tokenizers.Sequence(
            [apart, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        texts = (_SPELT.sub(" ", text) for text in (given_texts or _make_corpus()))
    pieces.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(chat.special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        bos_token=chat.start_token,
        eos_token=chat.end_tokens[0],
        pad_token=chat.pad_token,
        additional_special_tokens=[t for t in chat.special_tokens if t not in (chat.end_tokens[0], chat.pad_token)],
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens(list(chat.tags))
    tokenizer.chat_template = chat.template
    return tokenizer


def _make_corpus() -> Iterator[str]:
    """Sentences, JSON and numbers, the same in every call."""
    rng = random.Random(0)
    vocabulary = _CORPUS_TEXT.split()
    for _ in range(400):
        words = rng.choices(vocabulary, k=12)
        yield " ".join(words) + ". " + words[0].capitalize() + ", " + words[1] + "?"
        yield f'{{"{words[0]}": "{words[1]}", "{words[2]}": {rng.randint(0, 999)}, "{words[3]}": ["{words[4]}"]}}'
        yield f'{{"name": "{words[5]}_{words[6]}", "arguments": {{"{words[7]}": "{words[8]}"}}}}\n'
