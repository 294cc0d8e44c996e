"""Recipes, training runs and model folders that cannot be used."""

from __future__ import annotations

from case import Case
from things import BANK, BOOM, RECIPE, change, make_folder, record_run, record_training

MINE = {"mine.toml": RECIPE}


def recipe(more: str) -> dict[str, str]:
    return {"mine.toml": f'env = "backoffice"\n{more}\n'}


CASES: tuple[Case, ...] = (
    Case("train without a recipe", "train", ""),
    Case("a recipe that is not there", "train nowhere.toml", ""),
    Case("a recipe that is a folder", "train mine.toml", "", given={"mine.toml": make_folder}),
    Case("a recipe that is not TOML", "train mine.toml", "", given={"mine.toml": "env ="}),
    Case("a recipe that is no text", "train mine.toml", "", given={"mine.toml": b"\xff\xfe\x00"}),
    Case("a recipe without an environment", "train mine.toml", "", given={"mine.toml": "seed = 1\n"}),
    Case("a recipe for an environment that is not there", "train mine.toml", "", given={"mine.toml": 'env = "nope"\n'}),
    Case(
        "a recipe for a file that raises",
        "train mine.toml --check",
        "",
        given={"mine.toml": 'env = "boom.py"\n', "boom.py": BOOM},
    ),
    Case(
        "a recipe whose file lies elsewhere",
        "train deep/mine.toml",
        "",
        given={"deep/mine.toml": 'env = "bank.py"\n', "bank.py": BANK},
    ),
    Case("a section that is not there", "train mine.toml", "", given=recipe("[learning]\nrate = 1")),
    Case("a key that is not there", "train mine.toml --check", "", given=recipe("[learn]\niteration = 5")),
    Case("a text for a number", "train mine.toml", "", given=recipe('[learn]\niterations = "many"')),
    Case("a formula without a group", "train mine.toml --explain", "", given=recipe("[rollout]\nepisodes = 1")),
    Case("a formula with a discount above 1", "train mine.toml --explain", "", given=recipe("[credit]\ngamma = 2")),
    Case(
        "a formula without its divisor",
        "train mine.toml --explain",
        "",
        given=recipe('[loss]\naggregation = "seq-mean-token-sum-norm"'),
    ),
    Case("a formula with a dual clip of 1", "train mine.toml --explain", "", given=recipe("[loss]\ndual_clip = 1.0")),
    Case(
        "a formula that reads no score",
        "train mine.toml --explain",
        "",
        given=recipe('[credit]\npreset = "otc"\n[learn]\noverlong_tokens = 9\noverlong_buffer = 3'),
    ),
    Case("a preset of one's own", "train mine.toml", "", given=recipe('[credit]\npreset = "mine.py"')),
    Case("a cost of tools that no preset has", "train mine.toml", "", given=recipe("[credit]\ntool_cost = 0.1")),
    Case("a section for rewards", "train mine.toml", "", given=recipe("[reward]\ncost = 0.1")),
    Case("greedy rollouts", "train mine.toml", "", given=recipe("[rollout]\ntemperature = 0")),
    Case("a learning rate of nan", "train mine.toml", "", given=recipe("[learn]\nlearning_rate = nan")),
    Case("a name that leads out of the folder", "train mine.toml", "", given=recipe('name = "../x"')),
    Case("a model that is not there", "train mine.toml", "", given=recipe('[model]\npath = "nowhere"')),
    Case("a split that is not there", "train mine.toml", "", given=recipe('[evaluation]\nsplits = ["moon"]')),
    Case("a sandbox of a recipe that is not there", "train mine.toml", "", given=recipe('[rollout]\nsandbox = "jail"')),
    Case("a setting without =", "train mine.toml --set learn.iterations", "", given=MINE),
    Case("a setting of a key that is not there", "train mine.toml --set learn.iteration=5", "", given=MINE),
    Case("a setting of 40,000 brackets", "train mine.toml --set learn.iterations=" + "[" * 40_000, "", given=MINE),
    Case("a setting of 5,000 digits", "train mine.toml --set learn.iterations=" + "9" * 5000, "", given=MINE),
    Case("a setting of no section", "train mine.toml --set env.x=1", "", given=MINE),
    Case(
        "training over another program's model",
        "train mine.toml --out mine",
        "",
        given={**MINE, "mine/final/weights.bin": "years"},
    ),
    Case("training into an evaluation", "train mine.toml --out run", "", given={**MINE, "run": record_run}),
    Case("training into a folder that cannot be made", "train mine.toml --out /proc/nope", "", given=MINE),
    Case(
        "training where a run is, without --resume",
        "train mine.toml --out run",
        "",
        given={**MINE, "run": record_training},
    ),
    Case(
        "a resumption of another recipe",
        "train mine.toml --out run --resume",
        "",
        given={**MINE, "run": record_training},
    ),
    Case(
        "a resumption of a broken state",
        "train mine.toml --out run --resume",
        "",
        given={**MINE, "run": change(record_training, "training.json", b"{")},
    ),
    Case(
        "a resumption without checkpoints",
        "train mine.toml --out run --resume",
        "",
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
        "",
        given={"one": change(record_training, "metrics.jsonl", b"{}\n[[["), "two": record_training},
    ),
    Case(
        "metrics that are not there",
        "compare one two",
        "",
        given={"one": change(record_training, "metrics.jsonl", None), "two": record_training},
    ),
    Case(
        "metrics of training runs by name",
        "compare one two --metric cost",
        "",
        given={"one": record_training, "two": record_training},
    ),
    Case(
        "credit of a training run whose state is broken",
        "credit run --preset matchtir",
        "",
        given={"run": change(record_training, "training.json", b"{")},
    ),
    Case("replaced option of train", "train mine.toml --preset grpo", "", given=MINE),
    Case("serving a model that is not there", "serve nowhere", ""),
    Case("serving a folder without a model", "serve mine", "", given={"mine/x.txt": "x"}),
    Case("serving a file", "serve mine", "", given={"mine": "x"}),
    Case("serving a broken model", "serve mine", "", given={"mine/config.json": "{"}),
)
