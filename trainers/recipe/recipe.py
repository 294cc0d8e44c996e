"""What a training run consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_type_hints

from gymcp.errors import ConfigError
from gymcp.trainers.credit.estimators import BetaDensity
from gymcp.trainers.credit.filters import CleanSuccesses, Informative
from gymcp.trainers.credit.presets import Preset, make_preset
from gymcp.trainers.credit.shapers import ShortEnough, Sum
from gymcp.trainers.credit.transforms import Negative
from gymcp.trainers.settings.from_toml import record_of
from gymcp.trainers.settings.loss import BandWeight, Loss, TruncatedWeight
from gymcp.trainers.settings.validate import check_range, check_value
from gymcp.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecipe:
    path: str = ""
    """Folder of a transformers model; empty: a tiny one is made, with random weights."""
    style: Literal["qwen", "llama", "compact", "terse"] = "compact"
    vocabulary: int = 1024
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    context: int = 1024
    """Tokens. Of a given model: at most this many of its own."""
    lora_rank: int = 0
    """0: all weights are trained."""
    lora_alpha: int = 0
    """0: twice the rank."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """What it computes in; auto: bfloat16 on a GPU. Weights that are trained are float32 in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecipe:
    levels: tuple[int, ...] = ()
    """Of environments that make tasks without end; empty: all levels."""
    families: tuple[str, ...] = ()
    """Empty: all that may be trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartRecipe:
    """Supervised learning from recorded episodes, before anything is sampled."""

    tasks: int = 0
    """How many episodes are shown; 0: no warm start."""
    run: str = ""
    """Folder of a run whose good episodes are shown, whoever played them; empty: the oracle plays."""
    least_score: float = 1.0
    """Of a run's episodes: those that scored less are not shown."""
    context: float = 0.0
    """What foretelling a token of the request or of a result counts, beside 1 for one of the actions: much of what is
    copied stands there twice."""
    epochs: int = 4
    batch: int = 32
    learning_rate: float = 1e-3
    families: tuple[str, ...] = ()
    """Empty: those of the tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecipe:
    groups: int = 16
    """Tasks an iteration."""
    episodes: int = 8
    """Of each task: the group that is compared."""
    temperature: float = 1.0
    max_tokens: int = 64
    """Of one answer."""
    turns: int = 12
    """Answers of one episode."""
    concurrency: int = 64
    slots: int = 64
    """Samples that the engine draws at a time."""
    sandbox: str = "bwrap"
    engine: Literal["embedded", "vllm"] = "embedded"
    server: str = ""
    """vLLM only: ``vllm:URL#MODEL``, as ``gymcp serve`` prints it, on this machine; empty: one is started."""
    vllm: tuple[str, ...] = ()
    """Further arguments for the server that is started, as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnRecipe:
    iterations: int = 20
    updates: int = 1
    """Of the optimiser, an iteration: its batch is cut into so many parts, by groups."""
    passes: int = 1
    """Over the batch of an iteration; the clipped ratios bound what the later ones can do."""
    learning_rate: float = 1e-4
    max_grad_norm: float = 1.0
    warmup_steps: int = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    informative: bool = False
    """True: tasks whose episodes all scored the same are left out (DAPO): they say little, and take time."""
    cleanest: int = 0
    """Of each task so many episodes are learnt from, the solved ones with the fewest failed calls first
    (`selectors.CleanSuccesses`, GRPO-RoC); 0: all."""
    overlong_tokens: int = 0
    """Drawn tokens of an episode at which its score is docked by 1 (`shapers.ShortEnough`, DAPO); 0: none is."""
    overlong_buffer: int = 0
    """Tokens before that within which the docking grows from 0."""
    negative: float = 1.0
    """What an advantage below zero counts, beside 1 for one above: see `modulators.Negative`."""
    demonstrations: int = 0
    """Examples of the warm start that follow each update in one of their own, so that practice keeps what was shown
    (PPO-ptx in arXiv:2203.02155 mixes old text in likewise); 0: none."""
    micro_batch_tokens: int = 8192
    least_entropy: float = 0.001
    """In nats; a policy whose mean entropy stays below it for `patience` iterations has collapsed."""
    patience: int = 5
    critic_learning_rate: float = 1e-3
    critic_epochs: int = 4
    """Passes over an iteration's steps, of presets that need a critic (`ppo`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecipe:
    every: int = 10
    """Iterations; 0: only at the end."""
    splits: tuple[str, ...] = ("seeds",)
    levels: tuple[int, ...] = ()
    """Empty: those of the tasks."""
    families: tuple[str, ...] = ()
    """Empty: those of the tasks. A split that has none of them, such as one of other families, has its own."""
    tasks: int = 64
    """Of each split, at most."""
    temperature: float = 0.0
    """0: the likeliest token always taken; that of practice shows what is practised, chance included."""
    whole_splits: tuple[str, ...] = ()
    """Looked at before the first iteration and after the last; empty: the same."""
    whole_tasks: int = 0
    """Of each split then; 0: the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    env: str
    name: str = "run"
    seed: int = 0
    deterministic: bool = False
    """The same metrics to the last digit on the same machine, at the cost of speed."""
    model: ModelRecipe = field(default_factory=ModelRecipe)
    tasks: TaskRecipe = field(default_factory=TaskRecipe)
    warm_start: WarmStartRecipe = field(default_factory=WarmStartRecipe)
    rollout: RolloutRecipe = field(default_factory=RolloutRecipe)
    credit: Mapping[str, Json] = field(default_factory=lambda: {"preset": "gigpo"})
    """The preset's name and its options."""
    loss: Mapping[str, Json] = field(default_factory=dict)
    """What differs from the preset's own loss."""
    learn: LearnRecipe = field(default_factory=LearnRecipe)
    evaluation: EvaluationRecipe = field(default_factory=EvaluationRecipe)

    @property
    def preset_name(self) -> str:
        return str(self.credit.get("preset", "gigpo"))

    @property
    def preset(self) -> Preset:
        """Raises ConfigError for an unknown preset or option, or a loss that cannot be."""
        options = {key: value for key, value in self.credit.items() if key != "preset"}
        preset = make_preset(self.preset_name, **options)
        chosen = replace(preset, loss=_loss(preset.loss, self.loss))
        if self.learn.overlong_tokens:
            chosen = _docked(chosen, ShortEnough(most=self.learn.overlong_tokens, buffer=self.learn.overlong_buffer))
        if self.learn.cleanest:
            chosen = replace(chosen, selectors=(*chosen.selectors, CleanSuccesses(keep=self.learn.cleanest)))
        if self.learn.informative:
            chosen = replace(chosen, selectors=(*chosen.selectors, Informative()))
        if self.learn.negative != 1.0:
            less = Negative(share=self.learn.negative)
            terms = tuple(replace(term, modulators=(*term.modulators, less)) for term in chosen.terms)
            chosen = replace(chosen, terms=terms)
        return chosen


def _docked(preset: Preset, rule: ShortEnough) -> Preset:
    """The preset with what it reads of the score lowered for long episodes; the score itself stays as it is."""
    if not 0 < rule.buffer <= rule.most:
        raise ConfigError(
            f"recipe: learn.overlong_buffer is {rule.buffer}; it must be from 1 to learn.overlong_tokens, {rule.most}"
        )
    docked = tuple(
        replace(term, channels=tuple(replace(c, signal="net") if c.signal == "reward" else c for c in term.channels))
        for term in preset.terms
    )
    if docked == preset.terms:
        raise ConfigError("recipe: learn.overlong_tokens lowers the score, which this preset does not read by itself")
    if any(isinstance(channel.scale, BetaDensity) for term in docked for channel in term.channels):
        raise ConfigError("recipe: learn.overlong_tokens docks scores below 0, and bnpo needs scores from 0 to 1")
    net = Sum(name="net", weights=(("reward", 1.0), ("overlong", 1.0)))
    return replace(preset, terms=docked, shapers=(*preset.shapers, rule, net))


_WEIGHTS: Mapping[str, type[TruncatedWeight | BandWeight]] = {"truncated": TruncatedWeight, "band": BandWeight}


def _loss(own: Loss, table: Mapping[str, Json]) -> Loss:
    """The preset's loss with the recipe's keys laid over it; ``weight`` is a table with a ``rule``."""
    known = {each.name for each in fields(Loss)}
    for key in table:
        if key not in known:
            raise ConfigError(f"recipe: no key {f'loss.{key}'!r:.80}; have {', '.join(sorted(known))}")
    changes: dict[str, Any] = dict(table)
    if "weight" in changes:
        changes["weight"] = _weight(changes["weight"])
    hints = get_type_hints(Loss)
    for key, value in changes.items():
        if key != "weight":
            check_value(f"recipe: loss.{key}", value, hints[key])
            check_range(f"recipe: loss.{key}", value, 0)
    return replace(own, **changes)


def _weight(table: Json) -> TruncatedWeight | BandWeight:
    if not isinstance(table, Mapping) or str(table.get("rule")) not in _WEIGHTS:
        raise ConfigError(f"recipe: loss.weight must be a table with a rule: {' or '.join(map(repr, _WEIGHTS))}")
    rest = {key: value for key, value in table.items() if key != "rule"}
    made: TruncatedWeight | BandWeight = record_of(_WEIGHTS[str(table["rule"])], rest, "loss.weight")
    return made
