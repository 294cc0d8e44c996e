"""Compares a compiled forward pass with plain torch, in a process of its own: ``python -m ...cpp_check LIBRARY``.

A library of wrong numbers, or one that crashes, ends this process with another exit code than 0 and one line.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch

from gymcp.agents.policies.engine.cpp_forward import CppForward, CppLibrary, draw_tokens
from gymcp.agents.policies.engine.llama_weights import LayerWeights, Sizes, Weights
from gymcp.agents.policies.engine.sampler import draw
from gymcp.agents.policies.engine.torch_forward import TorchForward
from gymcp.types import Sampling

TOLERANCE = 1e-5
"""Largest difference of a logit, relative to the largest logit if that is above 1."""
SLOTS, MAX_CONTEXT, ROUNDS = 4, 512, 6
SHAPES = (
    Sizes(
        layers=2, hidden=40, intermediate=72, heads=6, key_heads=2, head_size=20, vocabulary=101, head_norms=True,
        eps=1e-6,
    ),
    Sizes(
        layers=3, hidden=64, intermediate=96, heads=4, key_heads=4, head_size=72, vocabulary=64, head_norms=False,
        eps=1e-5, rotary_scaling=1.5,
    ),
)  # fmt: skip
"""Sizes that are no multiples of a vector, groups of heads, heads wider than a panel."""


def main() -> None:
    """Exit with an error line if the library's numbers are not those of torch."""
    torch.set_num_threads(1)
    library = CppLibrary(Path(sys.argv[1]))
    for sizes in SHAPES:
        check_forward(library, sizes)
    check_draws(library)


def check_forward(library: CppLibrary, sizes: Sizes) -> None:
    """Exit unless ragged batches, with copied prefixes and new weights between them, give torch's logits."""
    rng, weights = random.Random(0), [make_weights(sizes, 0)]
    ways: list[CppForward | TorchForward] = [
        CppForward(library, lambda: weights[-1], sizes, SLOTS, MAX_CONTEXT),
        TorchForward(lambda: weights[-1], sizes, SLOTS, MAX_CONTEXT),
    ]
    lengths = [0] * SLOTS
    for number in range(ROUNDS):
        rows = rng.sample(range(SLOTS), rng.randint(1, SLOTS))
        chunks = [[rng.randrange(sizes.vocabulary) for _ in range(rng.choice([1, 1, 5, 70]))] for _ in rows]
        starts = [lengths[row] for row in rows]
        ours, plain = (way.forward(rows, starts, chunks, window=True) for way in ways)
        difference, scale = float((ours - plain).abs().max()), max(1.0, float(plain.abs().max()))
        if not difference <= TOLERANCE * scale:
            sys.exit(f"a logit differs from torch's by {difference:.2g} of {scale:.2g}")
        for row, start, chunk in zip(rows, starts, chunks, strict=True):
            lengths[row] = start + len(chunk)
        if number == ROUNDS // 2:
            weights.append(make_weights(sizes, 1))
        for way in ways:
            way.reload()
            way.copy(rows[0], (rows[0] + 1) % SLOTS, lengths[rows[0]])
        lengths[(rows[0] + 1) % SLOTS] = lengths[rows[0]]


def check_draws(library: CppLibrary) -> None:
    """Exit unless the same random numbers draw the tokens that torch draws, with the same log-probabilities."""
    generator = torch.Generator().manual_seed(0)
    rules = [
        Sampling(temperature=temperature, top_p=top_p, top_k=top_k)
        for temperature in (0.0, 0.7, 1.0)
        for top_p in (0.5, 0.9, 1.0)
        for top_k in (0, 1, 7, 100)
    ]
    logits = 3 * torch.randn(len(rules), 300, generator=generator)
    uniforms = torch.rand(len(rules), generator=generator).tolist()
    ours, plain = draw_tokens(library, logits, rules, uniforms), draw(logits, rules, uniforms)
    difference = max(abs(a - b) for a, b in zip(ours.logprobs, plain.logprobs, strict=True))
    if ours.ids != plain.ids or not difference <= TOLERANCE:
        sys.exit(f"a drawn token differs from torch's, or its log-probability by {difference:.2g}")


def make_weights(sizes: Sizes, seed: int) -> Weights:
    """Random weights."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator).mul(columns**-0.5)

    def norm(size: int) -> torch.Tensor:
        return 1 + 0.3 * torch.randn(size, generator=generator)

    hidden, size = sizes.hidden, sizes.head_size
    layers = tuple(
        LayerWeights(
            norm=norm(hidden),
            query=matrix(sizes.heads * size, hidden),
            key=matrix(sizes.key_heads * size, hidden),
            value=matrix(sizes.key_heads * size, hidden),
            query_norm=norm(size) if sizes.head_norms else None,
            key_norm=norm(size) if sizes.head_norms else None,
            out=matrix(hidden, sizes.heads * size),
            mlp_norm=norm(hidden),
            gate=matrix(sizes.intermediate, hidden),
            up=matrix(sizes.intermediate, hidden),
            down=matrix(hidden, sizes.intermediate),
        )
        for _ in range(sizes.layers)
    )
    frequencies = 10000.0 ** -(torch.arange(size // 2) / (size // 2))
    embedding = matrix(sizes.vocabulary, hidden)
    return Weights(embedding=embedding, layers=layers, norm=norm(hidden), head=embedding, frequencies=frequencies)


if __name__ == "__main__":
    main()
