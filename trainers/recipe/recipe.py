"""The settings of a training run, as records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gymcp.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecipe:
    path: str = ""
    """Folder of a transformers model, ``smollm2``, or ``OWNER/NAME`` of a model on the Hugging Face hub; empty: a tiny
    model with random weights is made."""
    style: Literal["qwen", "llama", "compact", "terse"] = "compact"
    """Chat template and architecture of the tiny model."""
    vocabulary: int = 1024
    """Maximum size of the tiny model's vocabulary."""
    hidden: int = 128
    """Width of the tiny model's hidden states."""
    layers: int = 4
    """Layers of the tiny model."""
    heads: int = 4
    """Attention heads of each layer of the tiny model."""
    context: int = 1024
    """Context length in tokens; a model from a folder uses at most its own."""
    lora_rank: int = 0
    """Rank of the LoRA adapter; 0: all weights are trained."""
    lora_alpha: int = 0
    """LoRA scaling factor alpha; 0: twice the rank."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the forward pass; auto: bfloat16 on a GPU. Trained weights are float32 in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecipe:
    levels: tuple[int, ...] = ()
    """Difficulty levels, in environments that generate tasks; empty: all levels."""
    families: tuple[str, ...] = ()
    """Task families; empty: every family that is allowed for training."""
    pool: int = 0
    """Number of different training tasks, which are then repeated; 0: every generated task is a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumRecipe:
    """The choice of training tasks. Its state is in every checkpoint, so a resumed run plays the same tasks."""

    order: Literal["sequence", "frontier", "failures", "vade"] = "sequence"
    """sequence: every kind (family and level) in turn. frontier: more of the kinds whose success rate is near `target`.
    failures: new tasks of the kinds that failed. vade: of the tasks that are repeated, those which promise most."""
    target: float = 0.5
    """Success rate that `frontier` seeks."""
    explore: float = 0.1
    """Share of the groups whose kind is chosen uniformly, with `frontier` and `failures`."""
    memory: float = 0.9
    """Factor on the earlier counts of a kind, with `vade` and `knapsack` of a task, with each new group of it; 1: no
    decay."""
    low: float = 0.05
    """Lowest expected success rate of a kind of which `failures` makes new tasks."""
    high: float = 0.75
    """Highest such rate."""
    start_turns: int = 0
    """Maximum turns of an episode in the first iteration, growing to rollout.max_turns (TTI); 0: always max_turns."""
    horizon: Literal["multiply", "add"] = "multiply"
    """multiply: the turns grow by start_turns; add: by one."""
    horizon_every: int = 1
    """Iterations after which the turns grow."""
    refill: int = 0
    """Maximum number of extra waves of groups in an iteration, to replace groups with equal scores (DAPO); 0: none."""


REPEATING = ("sequence", "vade")
"""Orders in which a task can come again; the others make a new one each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartRecipe:
    """Supervised learning from recorded episodes before the first rollout."""

    tasks: int = 0
    """Number of demonstrated episodes; 0: no warm start."""
    run: str = ""
    """Folder of a recorded run whose good episodes are the demonstrations, whichever agent played them; empty: `agent`
    plays them."""
    agent: str = ""
    """Agent that plays the demonstrations: a scripted one, or one of your own without a model, as ``FILE.py:NAME`` or
    ``MODULE:NAME``; empty: the oracle."""
    min_score: float = 1.0
    """Lowest score at which an episode is a demonstration; 0: failed episodes are used, too."""
    prompt_loss_weight: float = 0.0
    """Loss weight of prompt and tool-result tokens; action tokens have weight 1. Texts that actions copy often occur
    twice in the prompt, so predicting the prompt teaches to copy."""
    epochs: int = 4
    """Epochs over the demonstrations."""
    batch_size: int = 32
    """Examples per optimiser step."""
    learning_rate: float = 1e-3
    """Learning rate of the warm start."""
    families: tuple[str, ...] = ()
    """Task families of the demonstrations; empty: those of `Recipe.tasks`."""
    levels: tuple[int, ...] = ()
    """Difficulty levels of the demonstrations; empty: those of `Recipe.tasks`. Short episodes teach a new policy sooner
    what an action depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchingRecipe:
    """Settings of `RolloutRecipe.controller`. None, or 0 if the setting has no None: the controller's default."""

    ways: int | None = None
    """Continuations at a branching point, the episode's own included; 2 or more."""
    depth: int | None = None
    """Maximum number of branchings on one path; 1 or more."""
    steps: tuple[int, ...] = ()
    """Numbers of the steps after which episodes branch, from 1; empty: every step."""
    base: float = 0.5
    """`arpo`, `aepo`: probability of a branch if the entropy is that of the episode's first answer."""
    weight: float = 0.2
    """`arpo`, `aepo`: increase of the probability for each unit of entropy above that. `xrpo`: weight of the bonus for
    tasks with few episodes."""
    tokens: int = 0
    """`arpo`, `aepo`: number of first tokens of an answer over which its entropy is summed."""
    penalty: float = 0.05
    """`aepo`: decrease of the lot, as a share, for each branching at the steps directly before."""
    sensitivity: float = 0.5
    """`aepo`: effect of the difference in entropy between first answer and later ones on the number of first
    episodes."""
    retries: int = 0
    """`cleaner`: maximum number of times that a step with a failed call is sampled again."""
    patches: int = 0
    """`ui_s1`: actions of an episode that are replaced by a demonstration's before the next one ends it."""
    texts: bool = False
    """`ui_s1`: True: a text without a call must equal the demonstration's."""
    min_episodes_per_task: int = 0
    """`knapsack`: minimum number of episodes of a task. `xrpo`: episodes of each task in the first phase."""
    max_episodes_per_task: int = 0
    """`knapsack`: maximum number of episodes of a task."""
    max_episodes: int | None = None
    """Maximum number of episodes of a tree, the first one included."""
    max_tokens: int | None = None
    """Sampled tokens in a tree after which no further branch begins, 1 or more; None: no limit."""
    max_calls: int | None = None
    """Tool calls in a tree after which no further branch begins, 1 or more; None: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRecipe:
    """Speculative drafts (docs/engines.md): speed alone, because every token keeps its distribution."""

    method: Literal["", "ngram", "draft_model"] = ""
    """ngram: from earlier text; draft_model: by a smaller model; empty: no drafts."""
    tokens: int = 4
    """Drafted tokens per forward pass of the policy."""
    model: str = ""
    """Draft model, with the policy's vocabulary, named as `ModelRecipe.path`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecipe:
    groups: int = 16
    """Tasks per iteration."""
    batch_tokens: int = 0
    """Sampled tokens per iteration, those of branches included: after `groups` tasks further ones are played until
    there are as many, to the nearest group. An iteration makes up for the one before. 0: exactly `groups` tasks."""
    episodes: int = 8
    """Episodes per task: the group whose members are compared. With a `controller`: first episodes, each of which
    begins a tree; with `aepo` it decides how many of `episodes` times `branching.max_episodes` are first ones."""
    controller: Literal[
        "", "steps", "arpo", "aepo", "treepo", "treeps", "segment_spo", "cleaner", "ui_s1", "knapsack", "xrpo"
    ] = ""
    """Rule that decides after each step whether the episode branches, or the step is sampled again or replaced;
    knapsack, xrpo: rule for the number of episodes of each task, `episodes` on average; empty: no rule."""
    demonstrations: str = ""
    """`ui_s1`: folder of a recorded run; its first solved episode of each task is the demonstration."""
    branching: BranchingRecipe = field(default_factory=BranchingRecipe)
    """Settings of the controller."""
    temperature: float = 1.0
    """Sampling temperature."""
    max_tokens: int = 64
    """Maximum tokens of one answer."""
    max_turns: int = 12
    """Maximum number of answers in one episode."""
    max_seconds: float = 0.0
    """Maximum seconds of the agent's own time in one episode, which is then graded as it stands; 0: the environment's
    limit, else an hour."""
    request_timeout_s: float = 0.0
    """Maximum seconds of one answer of the policy, after which its episode is graded as it stands; 0: only the agent's
    time bounds it."""
    agent: str = ""
    """Agent that plays with the trained model: one of your own, as ``FILE.py:NAME`` or ``MODULE:NAME``, or any program,
    as ``cmd:PROGRAM ARGS``; empty: react. Files that the command names are looked for beside the recipe first."""
    agent_sandbox: Literal["bwrap", "none"] = "bwrap"
    """Sandbox of a program; none: for a program that cannot run in one."""
    agent_stdin: bool = False
    """Keep one process of a program, which reads each message of the user as a line of JSON."""
    agent_mounts: tuple[str, ...] = ()
    """Files and folders that a program may read, in addition to those that its command names."""
    concurrency: int = 0
    """Number of concurrent episodes; 0: chosen by memory, CPU and engine. It may change when a run is resumed: no
    result depends on it."""
    staleness: int = 0
    """Maximum number of weight versions between a sampled token and its update. Above 0, rollouts go on during updates
    (docs/asynchronous.md); 0: rollouts and updates alternate."""
    over_provision: int = 0
    """Extra groups in progress, so that an update need not wait for the slowest; only with `staleness`."""
    slots: int = 64
    """Number of concurrent requests of the embedded engine."""
    sandbox: str = "bwrap"
    """Sandbox of the servers: bwrap, docker, or none (trusted servers only)."""
    engine: Literal["embedded", "vllm"] = "embedded"
    """Engine that samples the tokens: embedded shares the learner's weights; vllm is a server."""
    server: str = ""
    """vLLM only: server on this machine, as ``vllm:URL#MODEL`` (printed by ``gymcp serve``); empty: one is started."""
    vllm_args: tuple[str, ...] = ()
    """Extra command-line arguments for the vLLM server that is started, passed on unchanged."""
    draft: DraftRecipe = field(default_factory=DraftRecipe)
    """vLLM only: speculative drafts of the server that is started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperRecipe:
    """Layers between the agent and its tools, in training and in held-out evaluations alike."""

    stress: tuple[str, ...] = ()
    """Stressors of the tools, as ``gymcp eval --stress``; the first is next to the servers."""
    attack: str = ""
    """Attack that plays each task with each attacker's goal, as ``gymcp eval --attack``; empty: none."""
    privileges: str = ""
    """TOML file with rules over tool calls, as ``gymcp eval --privileges``; empty: no rules."""
    retrieve: int = 0
    """Number of offered tools, while a search tool finds the others; 0: all are offered."""
    tool_budget: int = 0
    """Maximum characters of all offered tools, with `retrieve`; 0: the default of ``gymcp eval``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnRecipe:
    iterations: int = 20
    """Number of iterations: a batch of rollouts and its updates."""
    minibatches: int = 1
    """Optimiser steps per epoch: the groups of an iteration's batch are divided among this many parts."""
    epochs: int = 1
    """Epochs over the batch of an iteration; the clipped ratios bound the changes of the later ones."""
    learning_rate: float = 1e-4
    """Learning rate of the policy."""
    max_grad_norm: float = 1.0
    """Norm to which gradients are clipped."""
    warmup_steps: int = 0
    """Optimiser steps over which the learning rate rises from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the learning rate; linear and cosine fall to 0 at the last iteration."""
    restart: bool = False
    """Begin the updates of each iteration with the weights before the first one (STaR), for losses without ratios."""
    drop_uninformative: bool = False
    """Leave out tasks whose episodes all have the same score (DAPO): they carry little signal and cost time."""
    keep_cleanest: int = 0
    """Number of episodes of each task that are trained on, solved ones with the fewest failed calls first
    (`filters.KeepCleanest`, GRPO-RoC); 0: all."""
    overlong_tokens: int = 0
    """Sampled tokens of an episode at which the overlong penalty reaches 1 (`shapers.OverlongPenalty`, DAPO); 0: no
    penalty."""
    overlong_buffer: int = 0
    """Tokens before `overlong_tokens` over which the penalty grows from 0."""
    cost_weight: float = 0.0
    """Part of the price of tool calls, such as questions to the user, that is subtracted from the score; 0: none."""
    negative_scale: float = 1.0
    """Factor on advantages below zero: see `transforms.ScaleNegative`."""
    demonstrations: int = 0
    """Warm-start examples in an extra update after each update, so that the policy does not forget the demonstrations
    (PPO-ptx in arXiv:2203.02155 mixes in pretraining text); 0: none."""
    micro_batch_tokens: int = 8192
    """Maximum tokens of a micro-batch, of which gradients are accumulated."""
    min_entropy: float = 0.001
    """Entropy in nats; a policy whose mean entropy stays below it for `patience` iterations has collapsed."""
    patience: int = 5
    """Iterations of low entropy, or of unusable actions, after which the policy counts as collapsed."""
    critic_learning_rate: float = 1e-3
    """Learning rate of the critic."""
    critic_epochs: int = 4
    """Epochs over an iteration's steps, for presets that need a critic (`ppo`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRecipe:
    """Replay buffer: earlier episodes that replace new ones of the same task."""

    keep: int = 0
    """Solved episodes kept of each task, and with `recall` = alike as many others; 0: no replay."""
    recall: Literal["failed", "alike"] = "failed"
    """failed: a group without a success recalls solved episodes. alike: a group with equal scores recalls episodes with
    other scores."""
    per_group: int = 1
    """Maximum number of episodes that a group recalls."""
    max_age: int = 0
    """Maximum age, in iterations, of the weights that played an episode; 0: no limit."""
    run: str = ""
    """Folder of a training run whose episodes are in the buffer from the start; empty: it starts empty."""
    reflect: int = 0
    """Last calls of a failed episode that the prompt of its task shows when the task is tried again, as long as the
    buffer has only failures of it, with `recall` = alike; 0: the prompt stays as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRecipe:
    """Costs and rewards in addition to the score; none by default.

    The first seven are costs of a step (`gymcp.envs.tool_costs.CallCost`). Each is a weight: the amount times the
    weight is subtracted from the advantage of that step, and of no other.
    """

    money: float = 0.0
    """Weight of the price of the step's calls, questions to the user left out."""
    seconds: float = 0.0
    """Weight of the seconds of the step's calls."""
    calls: float = 0.0
    """Weight of the number of the step's calls."""
    bytes: float = 0.0
    """Weight of the bytes of the step's results."""
    risk: float = 0.0
    """Weight of the risk of the step's calls."""
    asking: float = 0.0
    """Weight of the price of questions to the user; 1: the price that the environment declares."""
    length: float = 0.0
    """Weight of each token that the policy samples in the step."""
    components: Mapping[str, Json] = field(default_factory=dict)
    """Weights of components of the verdict, by name, that are added to the score."""
    grader: str = ""
    """Grader whose verdict becomes the component ``grader``, as ``gymcp grade --grader``: a name, or a file; empty:
    none."""
    judge: str = ""
    """Model that the environment's grader asks, as ``gymcp eval --judge``; empty: none."""

    def step_weights(self) -> dict[str, float]:
        """Costs of a step that have a weight, by their names here."""
        named = ("money", "seconds", "calls", "bytes", "risk", "asking", "length")
        return {name: weight for name in named if (weight := getattr(self, name))}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecipe:
    every: int = 10
    """Iterations between evaluations; 0: only before the first and after the last."""
    splits: tuple[str, ...] = ("seeds",)
    """Splits with held-out tasks."""
    levels: tuple[int, ...] = ()
    """Difficulty levels; empty: those of `Recipe.tasks`."""
    families: tuple[str, ...] = ()
    """Task families; empty: those of `Recipe.tasks`. A split that has none of them, such as one that holds out
    families, uses its own."""
    tasks: int = 64
    """Maximum number of tasks of each split."""
    seed: int = 0
    """Seed of the choice of at most `tasks` from a fixed suite: runs that differ in `Recipe.seed` are evaluated on the
    same tasks."""
    temperature: float = 0.0
    """Sampling temperature; 0: greedy. The temperature of the rollouts measures the policy as it is trained, sampling
    noise included."""
    final_splits: tuple[str, ...] = ()
    """Splits evaluated before the first iteration and after the last; empty: `splits`."""
    final_tasks: int = 0
    """Maximum number of tasks of each split in those two evaluations; 0: `tasks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings of a training run, as its TOML file gives them."""

    env: str
    """Name of an environment, or path of its file, whose code is run."""
    name: str = "run"
    """Name of the run, also in the default folder, runs/train-NAME."""
    seed: int = 0
    """Seed of all random choices."""
    deterministic: bool = False
    """Give the same metrics to the last digit on the same machine, at the cost of speed."""
    model: ModelRecipe = field(default_factory=ModelRecipe)
    tasks: TaskRecipe = field(default_factory=TaskRecipe)
    curriculum: CurriculumRecipe = field(default_factory=CurriculumRecipe)
    warm_start: WarmStartRecipe = field(default_factory=WarmStartRecipe)
    rollout: RolloutRecipe = field(default_factory=RolloutRecipe)
    wrappers: WrapperRecipe = field(default_factory=WrapperRecipe)
    credit: Mapping[str, Json] = field(default_factory=lambda: {"preset": "gigpo"})
    """Name of the preset, or ``FILE.py:NAME`` of your own, as ``preset``, and its options."""
    loss: Mapping[str, Json] = field(default_factory=dict)
    """Settings that replace those of the preset's loss."""
    reward: RewardRecipe = field(default_factory=RewardRecipe)
    learn: LearnRecipe = field(default_factory=LearnRecipe)
    replay: ReplayRecipe = field(default_factory=ReplayRecipe)
    evaluation: EvaluationRecipe = field(default_factory=EvaluationRecipe)

    @property
    def preset_name(self) -> str:
        return str(self.credit.get("preset", "gigpo"))
