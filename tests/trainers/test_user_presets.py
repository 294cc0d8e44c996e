"""Presets of the user: files, modules, packages, and everything that is refused before the first rollout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from strategies import NEEDED

from gymcp.envs import load_env, load_spec
from gymcp.errors import ConfigError
from gymcp.store import open_run
from gymcp.trainers.credit.assign import advantages
from gymcp.trainers.credit.explanation import explain_preset
from gymcp.trainers.credit.preset_functions import find_user_preset
from gymcp.trainers.credit.presets import PRESETS, make_preset
from gymcp.trainers.credit.tree.presets import TREE_PRESETS, make_tree_preset
from gymcp.trainers.recipe.build_preset import build_preset
from gymcp.trainers.recipe.load import load_recipe, make_recipe, restore_recipe
from gymcp.trainers.recipe.paths import with_absolute_paths
from gymcp.trainers.recipe.preset_check import try_own_preset, try_preset
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.provenance import check_code_unchanged, record_training_start

SOURCE = '''
from gymcp.trainers import AdvantageTerm, LossTerm, Preset, make_preset
from gymcp.trainers.settings.loss import Loss


def of(*terms, **fields):
    return Preset(loss_terms=(LossTerm(advantage_terms=terms),), **fields)


def double(batch, trackers):
    """Column ``double``: twice the reward."""
    return batch.with_columns(double=2 * batch.column("reward")), trackers


def plain(*, scale: float = 1.0, signal: str = "reward"):
    return of(AdvantageTerm(signal=signal, weight=scale))


def twice():
    return of(AdvantageTerm(signal="double"), shapers=(double,))


def required(gamma, **more):
    return plain(scale=gamma)


def grpo():
    return plain()


def boom():
    return {}["missing"]


def nothing():
    return None


async def later():
    return plain()


def empty():
    return Preset(loss_terms=())


def lost():
    return of(AdvantageTerm(signal="rewrad"))


def keyed():
    return of(AdvantageTerm(signal="reward", key=("room",)))


def needy():
    return of(AdvantageTerm(signal="reward"), needs=frozenset({"logits"}))


def progressive():
    return of(AdvantageTerm(signal="progress"), needs=frozenset({"progress"}))


def token():
    return of(AdvantageTerm(signal="token_value"), needs=frozenset({"token_value"}))


def critical():
    return of(AdvantageTerm(signal="reward"), needs=frozenset({"value"}))


def misread(batch, trackers):
    return batch.with_columns(failed=batch.column("faild")), trackers


def of_shaper(*shapers, signal="reward", **fields):
    return of(AdvantageTerm(signal=signal), shapers=shapers, **fields)


def misreading():
    return of_shaper(misread)


def misreading_filter():
    return of_shaper(filters=(lambda batch: batch.column("faild") > 0,))


def misreading_transform():
    read = lambda batch, advantage: advantage + batch.column("faild")
    nothing = lambda batch: batch.totals(batch.column("reward")) > 9
    return Preset(
        loss_terms=(LossTerm(advantage_terms=(AdvantageTerm(signal="reward"),), transforms=(read,)),),
        filters=(nothing,),
    )


def picky():
    def weigh(batch, trackers):
        return batch.with_columns(weighed=[record.components["weight"] for record in batch.sources]), trackers

    return of_shaper(weigh, signal="weighed")


def weigh_components():
    return make_preset("gdpo", components=("weight", "size"))


def golden():
    return make_preset("matchtir")


def void():
    return of(AdvantageTerm(signal="reward"), loss=Loss(kind="gspo", aggregation="seq-mean-token-sum"))


NUMBER = 3
'''
REWARDS, GROUPS = [[1.0], [0.0]], ["g", "g"]
LINES = {line.split("(")[0][4:]: number for number, line in enumerate(SOURCE.splitlines(), 1) if line[:4] == "def "}
"""Function -> its line in the file."""
NO_COLUMN = (
    "credit: no column 'faild' in the batch; have calls, cost, cost_asking, cost_bytes, cost_calls, cost_money,"
    " cost_risk, cost_seconds, errors, reward, tokens, valid"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_preset_in_a_file_takes_its_own_options(file: Path) -> None:
    assert advantages(make_preset(f"{file}:plain"), REWARDS, GROUPS) == [[0.5], [-0.5]]
    assert advantages(make_preset(f"{file}:plain", scale=3.0), REWARDS, GROUPS) == [[1.5], [-1.5]]
    assert advantages(make_preset(f"{file}:required", gamma=2.0, other=1), REWARDS, GROUPS) == [[1.0], [-1.0]]


def test_a_shaper_of_the_user_is_explained(file: Path) -> None:
    made = make_preset(f"{file}:twice")
    assert advantages(made, REWARDS, GROUPS) == [[1.0], [-1.0]]
    assert "made from the record: double(): Column double: twice the reward" in explain_preset(made)


def test_a_package_brings_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gymcp_test_presets.py").write_text(SOURCE)
    about = tmp_path / "gymcp_test_presets-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: gymcp-test-presets\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[gymcp.presets]\nmine = gymcp_test_presets:plain\ngrpo = gymcp_test_presets:boom\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert advantages(make_preset("mine", scale=2.0), REWARDS, GROUPS) == [[1.0], [-1.0]]
    assert advantages(make_preset("gymcp_test_presets:plain"), REWARDS, GROUPS) == [[0.5], [-0.5]]
    assert make_preset("grpo").advantage_terms[0].scale is not None, "a name of gymcp's own stays gymcp's"
    with pytest.raises(ConfigError, match=r"no preset 'mien'; have .*, ppo, .*, mine, or FILE\.py:NAME of your own"):
        make_preset("mien")


def refusal(make: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        make()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("boom", {}, "mine.py:32: KeyError: 'missing'"),
        ("nothing", {}, "gave None, not a gymcp.trainers.Preset: def NAME(*, OPTION=VALUE) -> Preset"),
        ("later", {}, "is async; make it a plain function: def NAME(*, OPTION=VALUE) -> Preset"),
        ("NUMBER", {}, "is an int, not a function: def NAME(*, OPTION=VALUE) -> Preset"),
        ("gone", {}, "defines no 'gone'; have of, double, plain, twice, required, grpo, boom, nothing, later"),
        ("grpo", {}, "gymcp has a preset 'grpo'; give the function another name"),
        ("plain", {"omega": 1}, "no option 'omega'; have scale, signal"),
        ("plain", {"scale": "much"}, "scale is 'much'; it must be a number"),
        ("required", {}, "needs the option 'gamma'"),
    ],
)
def test_something_that_makes_no_preset_is_one_line(
    name: str, options: dict[str, object], says: str, file: Path
) -> None:
    text = refusal(lambda: make_preset(f"{file}:{name}", **options))
    assert text.startswith(f"preset '{file}:{name}': ")
    assert says in text


def test_a_file_that_raises_or_is_not_there_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("\nraise RuntimeError('boom')\n")
    bad = f"{tmp_path}/bad.py"
    assert refusal(lambda: make_preset(f"{bad}:x")) == f"preset file '{bad}': bad.py:2: RuntimeError: boom"
    assert refusal(lambda: make_preset("gone.py:x")) == "preset 'gone.py:x': no file 'gone.py'"
    assert refusal(lambda: make_preset("gone.py")) == "preset 'gone.py': name the preset in the file: gone.py:NAME"


def try_preset_of_recipe(preset: str) -> None:
    recipe = make_recipe({"env": "backoffice", "credit": {"preset": preset}})
    try_own_preset(recipe, build_preset(recipe))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("empty", "has no advantage term, so nothing would be learnt"),
        (
            "lost",
            "reads a column 'rewrad'; have calls, cost, cost_asking, cost_bytes, cost_calls, cost_money, cost_risk,"
            " cost_seconds, errors, reward, tokens, valid",
        ),
        ("keyed", "compares by a key 'room'; have group, state, trajectory, turn"),
        (
            "needy",
            "needs logits, and training can give critique, entropy, gold, gold_logprob, logprob,"
            " observation_gain, option_values, progress, token_entropy, token_value, value only",
        ),
        ("progressive", "needs progress, whose head is fitted beside a critic, so it needs value, too"),
        ("token", "needs token_value, whose critic is fitted to a loss term with a backup"),
        ("critical", "needs value, whose critic is fitted to a term with returns='gae', and it has none"),
        ("void", "its loss.aggregation would change nothing, because of loss.kind = 'gspo'"),
        ("misreading", f"mine.py:{LINES['misread'] + 1}: {NO_COLUMN}"),
        ("misreading_filter", f"mine.py:{LINES['misreading_filter'] + 1}: {NO_COLUMN}"),
        ("misreading_transform", f"mine.py:{LINES['misreading_transform'] + 1}: {NO_COLUMN}"),
    ],
)
def test_a_preset_that_could_not_train_is_refused_before_the_first_rollout(name: str, says: str, file: Path) -> None:
    text = refusal(lambda: try_preset_of_recipe(f"{file}:{name}"))
    assert text == f"preset 'mine.py:{name}': {says}"


def test_an_error_that_the_made_up_episodes_may_have_caused_is_one_warning(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    try_preset_of_recipe(f"{file}:picky")
    (warning,) = caplog.messages
    where = f"mine.py:{LINES['picky'] + 2}: KeyError: 'weight'; if recorded episodes give this error, too, training"
    assert warning.startswith(f"preset 'mine.py:picky': could not be tried on two made-up episodes: {where}")
    assert "\n" not in warning


def test_a_preset_is_tried_once_between_its_recipe_and_the_training(tmp_path: Path) -> None:
    tries, file = tmp_path / "tries", tmp_path / "noted.py"
    note = f"    with open({str(tries)!r}, 'a') as file:\n        file.write('tried\\n')\n"
    file.write_text(
        SOURCE.replace("    return batch.with_columns(double", f"{note}    return batch.with_columns(double")
    )
    preset = make_preset(f"{file}:twice")
    try_preset("preset", preset)
    calls_of_a_try = tries.read_text()
    assert calls_of_a_try
    tries.unlink()
    recipe = make_recipe({"env": "backoffice", "credit": {"preset": f"{file}:twice"}, "model": {"path": "/no/model"}})
    env = load_env(load_spec("backoffice"))
    assert "/no/model" in refusal(lambda: train(recipe, env, tmp_path / "run", resume=False))
    assert tries.read_text() == calls_of_a_try


def test_a_recipe_whose_preset_cannot_be_tried_is_refused_before_its_folder_is_made(file: Path, tmp_path: Path) -> None:
    recipe = replace(make_recipe({"env": "backoffice"}), credit={"preset": f"{file}:misreading"})
    env = load_env(load_spec("backoffice"))
    assert "no column 'faild'" in refusal(lambda: train(recipe, env, tmp_path / "run", resume=False))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["weigh_components", "golden", "twice"])
def test_gold_and_components_are_filled_in(name: str, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    try_preset_of_recipe(f"{file}:{name}")
    assert caplog.messages == []


@pytest.mark.parametrize("name", [*PRESETS, *TREE_PRESETS])
def test_every_preset_of_gymcp_can_be_tried(name: str, caplog: pytest.LogCaptureFixture) -> None:
    make, options = (make_tree_preset, {}) if name in TREE_PRESETS else (make_preset, NEEDED.get(name, {}))
    try_preset(name, make(name, **options), trees=name in TREE_PRESETS)
    assert caplog.messages == []


def test_the_file_is_found_from_the_folder_of_the_recipe(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = file.with_name("mine.toml")
    recipe.write_text('env = "backoffice"\n[credit]\npreset = "mine.py:plain"\nscale = 3.0\n')
    loaded = load_recipe(recipe)
    assert loaded.preset_name == f"{file}:plain"
    assert build_preset(loaded).advantage_terms[0].weight == 3.0
    monkeypatch.chdir(file.parent)
    typed = load_recipe(recipe, (("credit.preset", "mine.py:required"), ("credit.gamma", 1.0)))
    assert typed.preset_name == f"{file}:required"
    assert with_absolute_paths(loaded) == loaded


def test_a_recorded_recipe_is_read_without_its_preset_file() -> None:
    credit = {"preset": "/nowhere/mine.py:plain"}
    assert restore_recipe({"env": "backoffice", "credit": credit}).credit == credit


def test_a_run_whose_preset_file_has_changed_is_not_resumed(file: Path, tmp_path: Path) -> None:
    recipe = make_recipe({"env": "backoffice", "credit": {"preset": f"{file}:plain"}})
    preset, folder = find_user_preset(recipe.preset_name, PRESETS), tmp_path / "run"
    folder.mkdir()
    record_training_start(folder, recipe, load_env(load_spec("backoffice")), None, preset)
    check_code_unchanged(folder, recipe, None, preset)
    config = open_run(folder).config
    assert (config["preset_source"], config["preset_digest"]) == (f"{file}:plain", preset.digest)
    file.write_text(f"{SOURCE}\n")
    says = r"the file of preset 'mine.py:plain' has changed since the run began; put it back as it was, or train in"
    with pytest.raises(ConfigError, match=says):
        check_code_unchanged(folder, recipe, None, find_user_preset(recipe.preset_name, PRESETS))
