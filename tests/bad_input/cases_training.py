"""Recipes, training runs and model folders that cannot be used."""

from __future__ import annotations

from case import Case, Given
from things import BANK, BOOM, MISREADING, RECIPE, change, make_folder, record_run, record_training

MINE: Given = {"mine.toml": RECIPE}


def recipe(more: str) -> dict[str, str]:
    return {"mine.toml": f'env = "backoffice"\n{more}\n'}


CASES: tuple[Case, ...] = (
    Case("train without a recipe", "train", "train: name a recipe, such as recipes/tiny.toml"),
    Case("a recipe that is not there", "train nowhere.toml", "recipe 'nowhere.toml': not found"),
    Case(
        "a recipe that is a folder",
        "train mine.toml",
        "recipe 'mine.toml': cannot be read: Is a directory",
        given={"mine.toml": make_folder},
    ),
    Case(
        "a recipe that is not TOML",
        "train mine.toml",
        "recipe 'mine.toml': is not TOML:",
        given={"mine.toml": "env ="},
    ),
    Case(
        "a recipe that is no text",
        "train mine.toml",
        "recipe 'mine.toml': is not TOML:",
        given={"mine.toml": b"\xff\xfe\x00"},
    ),
    Case(
        "a recipe without an environment",
        "train mine.toml",
        'recipe: it must name its environment: env = "backoffice"',
        given={"mine.toml": "seed = 1\n"},
    ),
    Case(
        "a recipe for an environment that is not there",
        "train mine.toml",
        "no environment 'nope'; have agentdojo, backoffice, ",
        given={"mine.toml": 'env = "nope"\n'},
    ),
    Case(
        "a recipe for a file that raises",
        "train mine.toml --check",
        ("environment file '", "/boom.py': boom.py:1: RuntimeError: boom; gymcp --debug shows where"),
        given={"mine.toml": 'env = "boom.py"\n', "boom.py": BOOM},
    ),
    Case(
        "a recipe whose file lies elsewhere",
        "train deep/mine.toml",
        (
            "recipe: env is 'bank.py': not found at ",
            "/deep/bank.py, but at ",
            "/bank.py; paths in a recipe are relative to its folder: write the path from there, or an absolute one",
        ),
        given={"deep/mine.toml": 'env = "bank.py"\n', "bank.py": BANK},
    ),
    Case(
        "a section that is not there",
        "train mine.toml",
        "recipe: no key 'learning'; have credit, curriculum, deterministic, env, evaluation,",
        given=recipe("[learning]\nrate = 1"),
    ),
    Case(
        "a key that is not there",
        "train mine.toml --check",
        "recipe: no key 'learn.iteration'; have cost_weight, critic_epochs, critic_learning_rate,",
        given=recipe("[learn]\niteration = 5"),
    ),
    Case(
        "a reward for a cost that is unknown",
        "train mine.toml",
        "recipe: no key 'reward.monney'; have asking, bytes, calls, components, grader, judge, length, money, risk,",
        given=recipe("[reward]\nmonney = 1"),
    ),
    Case(
        "a reward for a cost that the environment does not declare",
        "train mine.toml --check",
        "recipe 'mine': reward.money: environment 'backoffice' declares no cost in money; have seconds, calls, bytes,",
        given=recipe("[reward]\nmoney = 1"),
    ),
    Case(
        "a reward for a component that the environment does not have",
        "train mine.toml",
        "recipe 'mine': reward.components: environment 'backoffice' has no component 'tone'; have state, answer,",
        given=recipe("[reward]\ncomponents = { tone = 1 }"),
    ),
    Case(
        "a text for a number",
        "train mine.toml",
        "recipe: learn.iterations is 'many'; it must be a whole number",
        given=recipe('[learn]\niterations = "many"'),
    ),
    Case(
        "a curriculum for a fixed suite",
        "train mine.toml --check",
        (
            "recipe 'mine': curriculum.order = 'frontier' chooses among families and levels, and environment 'bank'",
            " generates no tasks, so it has neither; set curriculum.order to 'sequence'",
        ),
        given={"bank.py": BANK, "mine.toml": 'env = "bank.py"\n[curriculum]\norder = "frontier"\n'},
    ),
    Case(
        "a curriculum of one kind of tasks",
        "train mine.toml --check",
        "and the recipe's tasks are of one kind (cancel, level 1); name more in tasks.families and tasks.levels",
        given=recipe('[tasks]\nlevels = [1]\nfamilies = ["cancel"]\n[curriculum]\norder = "failures"'),
    ),
    Case(
        "a batch that is refilled with what nothing drops",
        "train mine.toml",
        "recipe 'mine': curriculum.refill is 2: it replaces groups that are dropped because they all scored alike; set",
        given=recipe("[curriculum]\nrefill = 2"),
    ),
    Case(
        "a replay of other weights with a loss of ratios",
        "train mine.toml --check",
        "/old' holds episodes of other weights, and loss.kind = 'ppo' compares with the weights that the update began",
        given=recipe('[replay]\nkeep = 2\nrun = "old"'),
    ),
    Case(
        "a replay of another environment",
        "train mine.toml --check",
        "/old' is of environment 'shop' (version None), and the recipe trains on 'backoffice' (version 0): the same",
        given={
            "old": record_run,
            **recipe('[credit]\npreset = "opmd"\n[replay]\nkeep = 2\nrun = "old"'),
        },
    ),
    Case(
        "a formula without a group",
        "train mine.toml --explain",
        "recipe 'mine': rollout.episodes is 1: a group of one has nothing to be compared with; take 2 or more, or a",
        given=recipe("[rollout]\nepisodes = 1"),
    ),
    Case(
        "a formula with a discount above 1",
        "train mine.toml --explain",
        "preset 'gigpo': gamma is 2; it must be from 0 to 1",
        given=recipe("[credit]\ngamma = 2"),
    ),
    Case(
        "a formula without its divisor",
        "train mine.toml --explain",
        "loss: seq-mean-token-sum-norm needs constant_length, the tokens it divides by",
        given=recipe('[loss]\naggregation = "seq-mean-token-sum-norm"'),
    ),
    Case(
        "a formula with a dual clip of 1",
        "train mine.toml --explain",
        "loss: clips must be positive, and dual_clip above 1",
        given=recipe("[loss]\ndual_clip = 1.0"),
    ),
    Case(
        "a formula that reads no score",
        "train mine.toml --explain",
        "recipe: learn.overlong_tokens lowers the score, which this preset does not read by itself",
        given=recipe('[credit]\npreset = "otc"\n[learn]\noverlong_tokens = 9\noverlong_buffer = 3'),
    ),
    Case(
        "a setting of the loss that another makes void",
        "train mine.toml",
        "recipe: loss.dual_clip = 3.0 would change nothing, because of loss.kind = 'gspo': remove it, or change",
        given=recipe('[loss]\nkind = "gspo"\ndual_clip = 3.0'),
    ),
    Case(
        "a preset of one's own without its name",
        "train mine.toml",
        "preset 'mine.py': name the preset in the file: mine.py:NAME",
        given=recipe('[credit]\npreset = "mine.py"'),
    ),
    Case(
        "a preset whose file raises",
        "train mine.toml --explain",
        ("preset file '", "/boom.py': boom.py:1: RuntimeError: boom; gymcp --debug shows where"),
        given={**recipe('[credit]\npreset = "boom.py:mine"'), "boom.py": BOOM},
    ),
    Case(
        "a preset that is something else",
        "train mine.toml",
        ("preset '", "/three.py:mine': gave an int, not a gymcp.trainers.Preset: def NAME(*, OPTION=VALUE) -> Preset"),
        given={**recipe('[credit]\npreset = "three.py:mine"'), "three.py": "def mine():\n    return 3\n"},
    ),
    Case(
        "a preset that reads a column that nothing makes",
        "train mine.toml --check",
        "preset 'mine.py:careful': mine.py:5: credit: no column 'faild' in the batch; have calls, cost, cost_asking,",
        given={**recipe('[credit]\npreset = "mine.py:careful"'), "mine.py": MISREADING},
    ),
    Case(
        "a preset with the name of another",
        "train mine.toml",
        ("preset '", "/same.py:grpo': gymcp has a preset 'grpo'; give the function another name"),
        given={**recipe('[credit]\npreset = "same.py:grpo"'), "same.py": "def grpo():\n    return 3\n"},
    ),
    Case(
        "a cost of tools that no preset has",
        "train mine.toml",
        "preset 'gigpo': no option 'tool_cost'; have gamma, step_weight, norm, unit,",
        given=recipe("[credit]\ntool_cost = 0.1"),
    ),
    Case(
        "greedy rollouts",
        "train mine.toml",
        "recipe 'mine': rollout.temperature must be above 0: greedy episodes are all alike",
        given=recipe("[rollout]\ntemperature = 0"),
    ),
    Case(
        "a learning rate of nan",
        "train mine.toml",
        "recipe: learn.learning_rate is nan; it must be finite",
        given=recipe("[learn]\nlearning_rate = nan"),
    ),
    Case(
        "a name that leads out of the folder",
        "train mine.toml",
        "recipe: name is '../x': it becomes the name of a folder: at most 100 characters, no /, and nothing unseen",
        given=recipe('name = "../x"'),
    ),
    Case(
        "a model that is not there",
        "train mine.toml",
        ("model '", "/nowhere': ", "/nowhere is no model's folder: it has no config.json"),
        given=recipe('[model]\npath = "nowhere"'),
    ),
    Case(
        "a split that is not there",
        "train mine.toml",
        "backoffice: no split 'moon'; have train, seeds, wordings, values, families",
        given=recipe('[evaluation]\nsplits = ["moon"]'),
    ),
    Case(
        "a sandbox of a recipe that is not there",
        "train mine.toml",
        "no sandbox 'jail'; have bwrap, docker, none",
        given=recipe('[rollout]\nsandbox = "jail"'),
    ),
    Case(
        "a setting without =",
        "train mine.toml --set learn.iterations",
        "--set learn.iterations: must be key=value",
        given=MINE,
    ),
    Case(
        "a setting of a key that is not there",
        "train mine.toml --set learn.iteration=5",
        "recipe: no key 'learn.iteration'; have cost_weight, critic_epochs, critic_learning_rate,",
        given=MINE,
    ),
    Case(
        "a setting of 40,000 brackets",
        "train mine.toml --set learn.iterations=" + "[" * 40_000,
        "--set learn.iterations: its value is too long, or nested too deeply:",
        given=MINE,
    ),
    Case(
        "a setting of 5,000 digits",
        "train mine.toml --set learn.iterations=" + "9" * 5000,
        "--set learn.iterations: its value is too long, or nested too deeply:",
        given=MINE,
    ),
    Case(
        "a setting of no section",
        "train mine.toml --set env.x=1",
        "recipe 'mine.toml': 'env' is no section",
        given=MINE,
    ),
    Case(
        "training over another program's model",
        "train mine.toml --out mine",
        "training run mine: has 'final', which no training has made and this one would remove; name another folder",
        given={**MINE, "mine/final/weights.bin": "years"},
    ),
    Case(
        "training into an evaluation",
        "train mine.toml --out run",
        "training run run: holds a run that is no training; name another folder",
        given={**MINE, "run": record_run},
    ),
    Case(
        "training into a folder that cannot be made",
        "train mine.toml --out /proc/nope",
        "training run /proc/nope: cannot be made: No such file or directory",
        given=MINE,
    ),
    Case(
        "training where a run is, without --resume",
        "train mine.toml --out run",
        "training run run: holds a run; continue it with --resume, or name another",
        given={**MINE, "run": record_training},
    ),
    Case(
        "a resumption of another recipe",
        "train mine.toml --out run --resume",
        "training run run: was started with another recipe: env, learn, name; only learn.iterations may grow, where",
        given={**MINE, "run": record_training},
    ),
    Case(
        "a resumption of a broken state",
        "train mine.toml --out run --resume",
        "training run run: its training.json cannot be read:",
        given={**MINE, "run": change(record_training, "training.json", b"{")},
    ),
    Case(
        "a resumption without checkpoints",
        "train mine.toml --out run --resume",
        "training run run: was started with another recipe: learn; only learn.iterations may grow, where",
        given={
            **MINE,
            "run": change(
                record_training,
                "training.json",
                b'{"iteration": 2, "trackers": {}, "recipe": {"env": "backoffice", "name": "mine"}}',
            ),
        },
    ),
    Case(
        "metrics that are not JSON",
        "compare one two",
        (
            "training run ",
            "/one: has no heldout.jsonl, the held-out success by task, which earlier versions of gymcp did not",
            "/one/final",
        ),
        given={"one": change(record_training, "metrics.jsonl", b"{}\n[[["), "two": record_training},
    ),
    Case(
        "metrics that are not there",
        "compare one two",
        (
            "training run ",
            "/one: has no heldout.jsonl, the held-out success by task, which earlier versions of gymcp did not",
            "/one/final",
        ),
        given={"one": change(record_training, "metrics.jsonl", None), "two": record_training},
    ),
    Case(
        "metrics of training runs by name",
        "compare one two --metric cost",
        "compare: --metric is for evaluations; training runs are compared in held-out success, and other columns are",
        given={"one": record_training, "two": record_training},
    ),
    Case(
        "credit of a training run whose state is broken",
        "credit run --preset matchtir",
        "training run run: its training.json cannot be read:",
        given={"run": change(record_training, "training.json", b"{")},
    ),
    Case(
        "replaced option of train",
        "train mine.toml --preset grpo",
        "--preset: has been replaced by: --set credit.preset=NAME, or gymcp credit RUN --preset NAME",
        given=MINE,
    ),
    Case(
        "a training that no disk can hold",
        "train mine.toml",
        (
            "training run runs/train-mine: its disk is too small: the run writes at least 38,400,000 GB (0 GB for"
            " checkpoints and model, 128,000,000,000,000 episodes of 300 bytes) of ",
            " GB that are free at ",
            "; free some, name a folder on another disk with --out, lower learn.iterations, rollout.groups or ",
        ),
        given=recipe("[learn]\niterations = 1_000_000_000_000"),
    ),
    Case(
        "a recipe that drafts without vLLM",
        "train mine.toml --check",
        "recipe 'mine': rollout.draft is for rollout.engine = 'vllm': the embedded engine samples every token itself",
        given=recipe('[rollout.draft]\nmethod = "ngram"'),
    ),
    Case(
        "a recipe with the default number of drafted tokens, and without a method",
        "train mine.toml --check",
        "recipe 'mine': rollout.draft has no method: write method = 'ngram', or method = 'draft_model' with the folder",
        given=recipe("[rollout.draft]\ntokens = 4"),
    ),
)
