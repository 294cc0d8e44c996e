"""Signals from records and models: the registry, its costs and errors, and the columns against hand computation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from chain import play, true_ratios
from strategies import FURTHER
from vectors import VECTORS, near

from gymcp.errors import ConfigError
from gymcp.trainers.credit.assign import advantages, assign_credit
from gymcp.trainers.credit.explanation import explain_preset
from gymcp.trainers.credit.presets import make_preset
from gymcp.trainers.credit.returns import gae
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.signals.critique import Critique, find_wrong_steps
from gymcp.trainers.credit.signals.gold_logprob import find_gold_answer, information_gain
from gymcp.trainers.credit.signals.observation_gain import (
    ObservationGain,
    information_gate,
    magnitude_ratio,
    mask_observation,
    turn_gain,
)
from gymcp.trainers.credit.signals.options import (
    OptionValueColumns,
    estimate_options,
    find_head_places,
    find_token_kinds,
)
from gymcp.trainers.credit.signals.progress import progress_loss, progress_reward
from gymcp.trainers.credit.signals.registry import (
    GOLD_CHECKS,
    SIGNALS,
    add_signals,
    check_gold,
    check_needs,
    count_passes,
    needs_gold,
)
from gymcp.trainers.credit.signals.signal import Continuation, HeadPlaces, SignalCost
from gymcp.trainers.credit.signals.smoothing import (
    ENTROPY_WEIGHT,
    EntropySmoothing,
    entropy_penalty,
    hinge_penalty,
    phase_weight,
)
from gymcp.trainers.credit.signals.token_backup import backup_tokens
from gymcp.trainers.credit.step_batch import StepBatch, batch_of, batch_of_columns
from gymcp.trainers.learner.turn_by_turn import next_factor
from gymcp.trainers.recipe.build_preset import build_preset
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.settings.arrays import Floats
from gymcp.types import Action, GoldTurn, Observation, Sampled, Step, Task, Tool, ToolCall, ToolResult, Trajectory

NAN = math.nan
PIECES = {
    20: "<swi",
    21: "tch>SWITCH</switch>",
    22: "<subgoal>find",
    23: " it</subgoal>",
    24: "<switch>KEEP</switch>",
    25: "go",
}
FIND, BUY = ToolCall(id="0", name="find", arguments={"q": 1}), ToolCall(id="1", name="buy", arguments={"n": 2})
SELL = ToolCall(id="2", name="sell", arguments={"n": 2})
TASKS = {"shop": Task(id="shop", prompts=("",), gold=(GoldTurn(calls=(FIND, BUY), final_text="done"),))}


def step(*calls: ToolCall, sampled: Sampled | None = None, turn: int = 0, valid: bool = True) -> Step:
    results = tuple(ToolResult(call_id=call.id, content="") for call in calls)
    action = Action(text="" if calls else "done", tool_calls=calls)
    seen = Observation(messages=(), tools=())
    return Step(
        turn=turn, observation=seen, action=action, results=results, sampled=sampled, valid=valid, state_key="s"
    )


def record(*steps: Step, trial: int = 0, score: float = 0.0, task: str = "shop") -> Trajectory:
    return Trajectory(id=str(trial), env="e", task=task, group=f"e/{task}", trial=trial, steps=steps, score=score)


def drawn(prompt: Sequence[int], ids: Sequence[int]) -> Sampled:
    return Sampled(prompt_ids=tuple(prompt), ids=tuple(ids), logprobs=(-1.0,) * len(ids), versions=())


class CountingModel:
    """A model whose log-probability of every token is minus a tenth of the mean of its context; it keeps what it was
    asked."""

    def __init__(self) -> None:
        self.asked: list[Continuation] = []

    def logprobs(self, continuations: Sequence[Continuation]) -> list[Floats]:
        self.asked += continuations
        return [np.full(len(each.ids), -0.1 * float(np.mean(each.context))) for each in continuations]

    def drawn_logprobs(self, batch: StepBatch) -> list[Floats]:
        found = [each.sampled for own in batch.sources for each in own.steps]
        return [np.full(len(each.ids), -0.1 * float(np.mean(each.prompt_ids))) for each in found if each is not None]

    def entropies(self, batch: StepBatch) -> Floats:
        return np.ones(int(batch.starts[-1]))

    def values(self, batch: StepBatch) -> Floats:
        return np.zeros(int(batch.starts[-1]))

    def head_values(self, name: str, places: HeadPlaces) -> Floats:
        """Those of `drawn_options`: 0, 1, 2 ... for its 13 tokens, and 100 more for the head of segments."""
        return np.arange(13.0) + (100 if name == "option_high" else 0)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        return [PIECES[token] for token in ids]

    def encode_answer(self, action: Action, tools: Sequence[Tool]) -> tuple[int, ...]:
        return (90, 91) if action.text else (92, 93, 94)

    def encode_text(self, text: str) -> tuple[int, ...]:
        return (70, 71)

    @property
    def markup_ids(self) -> frozenset[int]:
        return frozenset({1})


TWO_STEPS = record(
    step(FIND, sampled=drawn([2, 4], [6])), step(BUY, sampled=drawn([2, 4, 6, 1, 8, 8, 8, 1], [10, 10])), score=1.0
)


# --- The registry.


def test_every_signal_says_what_it_needs_and_what_it_costs() -> None:
    for name, signal in SIGNALS.items():
        assert signal.name == name
        assert signal.describes
        assert ("model" in signal.needs) == (signal.cost != SignalCost())


def test_costs_are_counted_by_steps_and_episodes() -> None:
    batch = batch_of([TWO_STEPS, replace(TWO_STEPS, id="1", trial=1)], TASKS)
    passes = {name: count_passes(make_preset(name), batch) for name in ("grpo", "empg", "igpo", "infopo", "capo")}
    assert passes == {"grpo": 0, "empg": 2, "igpo": 4, "infopo": 6, "capo": 0}


def test_the_declared_passes_over_steps_are_those_that_are_asked_for() -> None:
    batch = batch_of([TWO_STEPS], TASKS)
    for name, asked in (("igpo", 2), ("infopo", 1)):  # the last step has no observation
        model = CountingModel()
        add_signals(batch, make_preset(name), model)
        assert len(model.asked) == asked


def test_a_signal_is_explained_with_its_cost() -> None:
    assert any(line.endswith("the weights; forward passes: 1 a step") for line in explain_preset(make_preset("igpo")))


def test_an_unknown_signal_is_refused() -> None:
    preset = replace(make_preset("empg"), needs=frozenset({"entropy", "luck"}))
    with pytest.raises(ConfigError, match="mine: needs luck, and training can give critique, entropy, gold, "):
        check_needs("mine", preset)
    with pytest.raises(ConfigError, match="the preset needs the column luck"):
        assign_credit(batch_of_columns([[1.0]], ["g"], entropy=[[1.0]]), preset)


def test_a_preset_that_names_a_signal_needs_its_gold() -> None:
    assert needs_gold(replace(make_preset("grpo"), needs=frozenset({"gold_logprob"})))
    assert not needs_gold(make_preset("infopo"))


def test_the_gold_of_a_task_is_checked_before_it_is_played() -> None:
    two_turns = Task(id="shop", prompts=("", ""), gold=(GoldTurn(final_text="yes"), GoldTurn()))
    with pytest.raises(ConfigError, match="gold_logprob: task 'shop' has no gold for user turn 2"):
        check_gold(make_preset("igpo"), two_turns)
    with pytest.raises(ConfigError, match="critique: task 'shop' has no gold calls"):
        check_gold(make_preset("capo"), two_turns)
    check_gold(make_preset("infopo"), two_turns)
    for name in ("igpo", "capo"):
        check_gold(make_preset(name), TASKS["shop"])
    assert {name for name, signal in SIGNALS.items() if "gold" in signal.needs} == set(GOLD_CHECKS)


def test_a_signal_of_a_model_is_missing_without_one() -> None:
    with pytest.raises(ConfigError, match="the preset needs the column gold_logprob, which nothing has computed"):
        assign_credit(batch_of([TWO_STEPS], TASKS), make_preset("igpo"))


# --- EPO: entropy smoothing.


def test_epo_penalty_hinge_and_phases() -> None:
    vector = VECTORS["epo_penalty"]
    params = vector["params"]
    band = {"low": params["kappa_l"], "high": params["kappa_r"]}
    for row in vector["table"]:
        assert entropy_penalty(row["H"], row["avg"], alpha=params["alpha"], **band) == near(row["P"])
    for row in vector["hinge_alternative"]:
        assert hinge_penalty(row["H"], row["avg"], **band) == near(row["P_hinge"])
    for done, weight in vector["phase_weight_by_epoch_fraction"].items():
        assert phase_weight(float(done)) == near(weight)


def smoothed(rule: EntropySmoothing, entropy: list[list[float]], trackers: Trackers) -> tuple[list[float], Trackers]:
    batch = batch_of_columns([[0.0] * len(row) for row in entropy], ["g"] * len(entropy), entropy=entropy)
    shaped, after = rule(batch, trackers)
    return shaped.column(ENTROPY_WEIGHT).tolist(), after


def test_smoothing_is_the_gradient_of_the_penalised_entropy() -> None:
    """The history of index 0 is 1 nat, of index 1 it is 2 nats; index 2 has none."""
    rule = EntropySmoothing(low=0.8, high=1.2, weight=2.0)
    first, after = smoothed(rule, [[1.0, 3.0], [1.0, 1.0]], Trackers())
    assert first == [1.0] * 4
    assert after.turn_entropy == {"0": (2.0, 2), "1": (4.0, 2)}
    entropies = [0.5, 1.9, 5.0]
    second, later = smoothed(rule, [entropies], after)
    assert second == [3.0, 1.0, 1.0]
    assert smoothed(rule, [[1.5, 2.5]], after)[0] == [-1.0, -1.0]
    assert later.turn_entropy == {"0": (2.5, 3), "1": (5.9, 3), "2": (5.0, 1)}
    for entropy, mean, factor in ((0.5, 1.0, 3.0), (1.0, 1.0, 1.0), (1.5, 1.0, -1.0)):

        def kept(at: float, mean: float = mean) -> float:
            return at - rule.weight * hinge_penalty(at, mean, low=rule.low, high=rule.high)

        assert (kept(entropy + 1e-6) - kept(entropy - 1e-6)) / 2e-6 == pytest.approx(factor)


def test_the_published_penalty_leaves_the_plain_bonus_which_fades_with_the_run() -> None:
    rule, trackers = EntropySmoothing(hinge=False, iterations=4), Trackers()
    found = []
    for entropy in (1.0, 5.0, 0.1, 9.0, 9.0):
        (weight,), trackers = smoothed(rule, [[entropy]], trackers)
        found.append(weight)
    assert found == near(
        [VECTORS["epo_penalty"]["phase_weight_by_epoch_fraction"][str(at)] for at in (0, 0.25, 0.5, 0.75, 1.0)]
    )


# --- IGPO: the gold answer's log-probability.


def test_igpo_gain() -> None:
    vector = VECTORS["igpo_info_gain"]
    means = [float(np.mean(row)) for row in vector["inputs"]["gold_answer_token_logprobs"].values()]
    assert means == near(list(vector["mean_logprob"].values()))
    before, after = np.array(means[:-1]), np.array(means[1:])
    assert information_gain(before, after).tolist() == near(vector["log_prob_diff"])
    assert information_gain(before, after, "prob").tolist() == near(vector["prob_diff"])


def test_the_gold_answer_is_asked_for_before_every_step() -> None:
    model = CountingModel()
    batch = add_signals(batch_of([TWO_STEPS], TASKS), make_preset("igpo"), model)
    assert [(each.context, each.ids) for each in model.asked] == [
        ((2, 4), (90, 91)),
        ((2, 4, 6, 1, 8, 8, 8, 1), (90, 91)),
    ]
    assert batch.column("gold_logprob").tolist() == pytest.approx([-0.3, -0.475])
    assert batch.column("gold_logprob_after").tolist() == pytest.approx([-0.475, NAN], nan_ok=True)


def test_a_step_that_ends_a_user_turn_has_no_gain() -> None:
    gold = (GoldTurn(final_text="yes"), GoldTurn(calls=(FIND, BUY)))
    task = Task(id="shop", prompts=("", ""), gold=gold)
    steps = (step(sampled=drawn([2], [3])), step(FIND, turn=1, sampled=drawn([2, 3, 4], [5])))
    found = add_signals(batch_of([record(*steps)], {"shop": task}), make_preset("igpo"), CountingModel())
    assert np.isnan(found.column("gold_logprob_after")).all()
    assert find_gold_answer(task, 0, "shop") == Action(text="yes")
    assert find_gold_answer(task, 1, "shop") == Action(tool_calls=(BUY,))
    with pytest.raises(ConfigError, match="task 'shop' has no gold for user turn 3"):
        find_gold_answer(task, 2, "shop")


def test_igpo_normalises_gains_and_scores_together_and_sums_afterwards() -> None:
    """Values 1, -0.2 (gains) and 1 (score); 0.2 and 0: mean 0.4, population variance 0.256."""
    columns = {
        "gold_logprob": [[-2.0, -1.0, -1.2], [-2.0, -1.8]],
        "gold_logprob_after": [[-1.0, -1.2, NAN], [-1.8, NAN]],
    }
    found = advantages(make_preset("igpo"), [[0.0, 0.0, 1.0], [0.0, 0.0]], "gg", **columns)
    deviation = math.sqrt(0.256 + 1e-8)
    z = [[0.6 / deviation, -0.6 / deviation, 0.6 / deviation], [-0.2 / deviation, -0.4 / deviation]]
    assert found == [near([sum(row[t:]) for t in range(len(row))]) for row in z]
    halved = advantages(make_preset("igpo", gamma=0.5), [[0.0, 0.0, 1.0], [0.0, 0.0]], "gg", **columns)
    assert halved[0] == near([z[0][0] + 0.5 * z[0][1] + 0.25 * z[0][2], z[0][1] + 0.5 * z[0][2], z[0][2]])


def test_igpo_can_normalise_gains_and_scores_apart() -> None:
    """Gains 1, -0.2, 0.2: mean 1/3, population variance 0.248889. Scores 1 and 0: +-1."""
    columns = {
        "gold_logprob": [[-2.0, -1.0, -1.2], [-2.0, -1.8]],
        "gold_logprob_after": [[-1.0, -1.2, NAN], [-1.8, NAN]],
    }
    found = advantages(make_preset("igpo", joint=False), [[0.0, 0.0, 1.0], [0.0, 0.0]], "gg", **columns)
    gains = [(value - 1 / 3) / math.sqrt(0.56 / 2.25 + 1e-8) for value in (1.0, -0.2, 0.2)]
    score = 0.5 / math.sqrt(0.25 + 1e-8)
    assert found == [near([gains[0] + gains[1] + score, gains[1] + score, score]), near([gains[2] - score, -score])]


# --- InfoPO: the next action with and without the observation.


def test_infopo_gain_gate_and_ratio() -> None:
    vector = VECTORS["infopo"]
    gain = vector["gain"]
    found = turn_gain(np.array(gain["next_action_logp_with_obs"]), np.array(gain["next_action_logp_obs_masked"]))
    assert found == near(gain["turn_gain"])
    for row in vector["gate_table"]:
        assert information_gate(np.array([row["group_std"]])).tolist() == near([row["gate"]])
    for row in vector["magnitude_ratio_examples"]:
        ratio = magnitude_ratio(np.array([row["std_out"]]), np.array([row["std_int"]]))
        assert ratio.tolist() == near([row["ratio"]])


def test_an_observation_is_masked_between_two_actions_of_one_context() -> None:
    before, after = TWO_STEPS.steps[0].sampled, TWO_STEPS.steps[1].sampled
    assert before is not None
    assert after is not None
    assert mask_observation(before, after, (70, 71), frozenset({1})) == (2, 4, 6, 1, 70, 71, 71, 1)
    assert mask_observation(before, after, (70, 71), frozenset()) == (2, 4, 6, 70, 71, 71, 71, 71)
    assert mask_observation(before, replace(after, prompt_ids=(2, 5, 6, 7)), (70,), frozenset()) is None
    assert mask_observation(before, replace(after, prompt_ids=(2, 4, 6)), (70,), frozenset()) is None


def test_the_gain_belongs_to_the_action_that_led_to_the_observation() -> None:
    batch = add_signals(batch_of([TWO_STEPS]), make_preset("infopo"), CountingModel())
    true, masked = -0.1 * np.mean([2, 4, 6, 1, 8, 8, 8, 1]), -0.1 * np.mean([2, 4, 6, 1, 70, 71, 71, 1])
    assert batch.column("observation_gain").tolist() == pytest.approx([true - masked, NAN], nan_ok=True)


def test_information_counts_where_all_outcomes_are_equal() -> None:
    """Gains 0.3 and 0.1: +-1/sqrt 2; gate 1/2; ratio 1, so each counts 0.1 * 0.5 of that."""
    gains = [[0.3, NAN], [0.1, NAN]]
    alike = advantages(make_preset("infopo"), [[0.0, 0.0], [0.0, 0.0]], "gg", observation_gain=gains)
    share = 0.05 * 0.1 / (math.sqrt(0.02) + 1e-6)
    assert alike == [near([share, 0.0]), near([-share, 0.0])]
    apart = advantages(make_preset("infopo"), [[0.0, 1.0], [0.0, 0.0]], "gg", observation_gain=gains)
    plain = advantages(make_preset("grpo"), [[0.0, 1.0], [0.0, 0.0]], "gg")
    assert apart == [pytest.approx(row, abs=1e-6) for row in plain]


def test_an_observation_cannot_be_replaced_by_nothing() -> None:
    with pytest.raises(ConfigError, match="infopo: placeholder is empty"):
        make_preset("infopo", placeholder="")


def test_a_signal_without_tokens_says_so() -> None:
    bare = record(step(FIND), step(BUY))
    for signal in (SIGNALS["gold_logprob"], ObservationGain()):
        with pytest.raises(ConfigError, match=f"{signal.name}: a step of e/shop has no tokens"):
            signal.compute(batch_of([bare], TASKS), CountingModel())


# --- CAPO: a scripted critic.

MANY = [record(step(FIND), step(SELL), step(BUY), step(FIND), step(), trial=n) for n in range(400)]


def test_the_critic_knows_the_gold_calls() -> None:
    unusable = record(step(valid=False), step(FIND))
    assert find_wrong_steps(MANY[0], TASKS["shop"]).tolist() == [False, True, False, True, False]
    assert find_wrong_steps(unusable, TASKS["shop"]).tolist() == [True, False]


def test_the_critic_errs_at_its_rate_and_always_in_the_same_steps() -> None:
    truth = Critique().compute(batch_of(MANY, TASKS), None).steps["critique"]
    said = Critique(error_rate=0.2).compute(batch_of(MANY, TASKS), None).steps["critique"]
    assert abs(float((said != truth).mean()) - 0.2) < 4 * math.sqrt(0.2 * 0.8 / len(truth))
    shuffled = Critique(error_rate=0.2).compute(batch_of(MANY[200:], TASKS), None).steps["critique"]
    assert shuffled.tolist() == said[1000:].tolist()
    other = Critique(error_rate=0.2, seed=1).compute(batch_of(MANY, TASKS), None).steps["critique"]
    assert (other != said).any()


def test_capo_blames_the_wrong_steps_of_solved_episodes_too() -> None:
    """Rewards 2, 1 and 0, 0: mean 0.75, deviation sqrt(2.75 / 3)."""
    solved = record(step(FIND), step(SELL), score=1.0)
    failed = record(step(FIND), step(BUY), trial=1)
    credit = assign_credit(batch_of([solved, failed], TASKS), make_preset("capo"))
    deviation = math.sqrt(2.75 / 3) + 1e-6
    assert credit.advantage.tolist() == near([1.25 / deviation, 0.25 / deviation, -0.75 / deviation, -0.75 / deviation])


def test_capo_is_worth_as_much_as_its_critic() -> None:
    """Signal-to-noise ratio of the gradient over that of grpo, on a chain whose gradient is known exactly."""
    played = play(400, 8, seed=1)
    wrong, draw = played.actions != 0, np.random.default_rng(0).random(len(played.actions))
    presets, ratios = {"grpo": make_preset("grpo"), "capo": make_preset("capo")}, []
    for error_rate in (0.0, 0.2, 0.35, 0.5):
        said = np.where(draw < error_rate, ~wrong, wrong).astype(float)
        judged = replace(played, batch=played.batch.with_columns(critique=said))
        ratios.append(true_ratios(judged, presets)["capo"])
    assert ratios == pytest.approx([2.8, 2.2, 1.45, 0.56], abs=0.05)


def test_the_critic_needs_gold_calls_and_records() -> None:
    bare = Task(id="shop", prompts=("",))
    with pytest.raises(ConfigError, match="critique: task 'shop' has no gold calls"):
        assign_credit(batch_of(MANY[:2], {"shop": bare}), make_preset("capo"))
    with pytest.raises(ConfigError, match="critique: needs recorded trajectories"):
        assign_credit(batch_of_columns([[1.0]], ["g"]), make_preset("capo"))


# --- POAD: a backup within an action.


def test_poad_backs_values_up_without_discount_within_an_action() -> None:
    """Two actions of two tokens and of one; values .5, .6, .4; the reward is 1 at the end; gamma .9, lam .5.

    d: .6 - .5 = .1; .9 * .4 - .6 = -.24; 1 - .4 = .6. Backwards: .6; -.24 + .9 * .5 * .6 = .03; .1 + .5 * .03 = .115.
    """
    counts, starts = np.array([2, 1]), np.array([0, 2])
    found = backup_tokens(np.array([0.0, 1.0]), np.array([0.5, 0.6, 0.4]), counts, starts, gamma=0.9, lam=0.5)
    assert found.tolist() == near([0.115, 0.03, 0.6])


def test_a_backup_without_discount_is_gae_over_all_tokens() -> None:
    """The tokens of tool output are no tokens of an action, so a trajectory of two actions has the vector's four."""
    vector = VECTORS["gae_tokens_skip_obs"]
    inputs = vector["inputs"]
    drawn_tokens = np.array(inputs["mask"][0]) == 1
    values = np.array(inputs["values"][0])[drawn_tokens]
    one = backup_tokens(np.array([1.0]), values, np.array([4]), np.array([0, 1]), gamma=1.0, lam=inputs["lam"])
    two = backup_tokens(np.array([0.0, 1.0]), values, np.array([2, 2]), np.array([0, 2]), gamma=1.0, lam=inputs["lam"])
    reward = np.array([0.0, 0.0, 0.0, 1.0])
    assert one.tolist() == two.tolist()
    assert one.tolist() == near(gae(reward, values, np.array([0, 4]), gamma=1.0, lam=inputs["lam"]).tolist())
    every = backup_tokens(reward, values, np.array([1] * 4), np.array([0, 4]), gamma=inputs["gamma"], lam=inputs["lam"])
    assert every.tolist() == near(np.array(vector["adv_unwhitened"][0])[drawn_tokens].tolist())


def test_an_action_has_the_same_return_however_many_tokens_it_takes() -> None:
    """With lam 1, what a first token gets is the discounted return less its value."""
    for counts in ([1, 1], [5, 1], [2, 7]):
        values = np.full(sum(counts), 0.25)
        rewards, starts = np.array([0.0, 1.0]), np.array([0, 2])
        found = backup_tokens(rewards, values, np.array(counts), starts, gamma=0.5, lam=1.0)
        assert found[0] == pytest.approx(0.5 - 0.25)


def test_episodes_and_steps_without_tokens_do_not_mix() -> None:
    """The first episode ends in a step without tokens, whose reward no token can get."""
    values, counts, starts = np.array([0.5, 0.1, 0.2]), np.array([1, 0, 2]), np.array([0, 2, 3])
    found = backup_tokens(np.array([0.25, 1.0, 0.5]), values, counts, starts, gamma=1.0, lam=1.0)
    assert found.tolist() == near([-0.25, 0.4, 0.3])


def test_poad_gives_every_token_its_own_advantage() -> None:
    batch = batch_of_columns([[0.0, 1.0], [0.0]], "gg").with_tokens(
        np.array([2, 1, 3]), token_value=np.array([0.5, 0.6, 0.4, 0.1, 0.2, 0.3])
    )
    preset = make_preset("poad", gamma=0.9, lam=0.5)
    credit = assign_credit(batch.with_columns(token_value=np.array([0.5, 0.4, 0.1])), preset)
    raw = np.array([0.115, 0.03, 0.6, 0.1 + 0.5 * (0.1 + 0.5 * -0.3), 0.1 + 0.5 * -0.3, -0.3])
    whitened = (raw - raw.mean()) / np.sqrt(raw.var(ddof=1) + 1e-8)
    (term,) = credit.terms
    assert term.token_advantage is not None
    assert term.token_advantage.tolist() == near(whitened.tolist())
    assert [own.tolist() for own in term.split_tokens(credit.batch)] == [
        near(list(own)) for own in np.split(whitened, [2, 3])
    ]
    assert term.advantage.tolist() == near([whitened[:2].mean(), whitened[2], whitened[3:].mean()])
    kept = credit.batch.keep(np.array([False, True]))
    assert kept.token_columns["token_value"].tolist() == [0.1, 0.2, 0.3]


def test_rules_of_a_recipe_reach_single_tokens() -> None:
    """A factor on negative advantages is of each token; the charge of a step is taken off each of its tokens."""
    batch = batch_of_columns([[0.0, 1.0]], "g", token_value=[[0.5, 0.5]], cost_calls=[[1.0, 0.0]]).with_tokens(
        np.array([2, 1]), token_value=np.array([0.5, 0.75, 0.5])
    )
    table: dict[str, Any] = {"env": "backoffice", "credit": {"preset": "poad", "gamma": 1.0, "lam": 0.0}}
    found = {}
    for name, rules in (
        ("plain", {}),
        ("scaled", {"learn": {"negative_scale": 0.5}}),
        ("charged", {"reward": {"calls": 0.5}}),
    ):
        (term,) = assign_credit(batch, build_preset(make_recipe({**table, **rules}))).terms
        assert term.token_advantage is not None
        found[name] = term.token_advantage
    plain = found["plain"]
    assert plain[1] < 0 < plain[2]
    assert found["scaled"].tolist() == near([own if own > 0 else 0.5 * own for own in plain.tolist()])
    assert found["charged"].tolist() == near([plain[0] - 0.5, plain[1] - 0.5, plain[2]])


# --- SPA-RL: a progress head.


def test_spa_reward_and_loss_of_its_head() -> None:
    vector = VECTORS["spa_reward"]
    inputs = vector["inputs"]
    shares = np.array(inputs["c_hat"])
    found = progress_reward(shares, np.array(inputs["grounding"], float), alpha=inputs["alpha"], beta=inputs["beta"])
    assert found.tolist() == near(vector["turn_reward"])
    assert progress_loss(shares, np.array([inputs["R"]]), np.array([0, 3])) == near(vector["estimator_loss"])


def test_spa_rewards_steps_that_the_environment_took() -> None:
    batch = batch_of_columns(
        [[0.0, 0.0, 1.0]], "g", progress=[[0.1, 0.5, 0.3]], value=[[0.0] * 3], errors=[[0.0, 1.0, 0.0]]
    )
    credit = assign_credit(batch, make_preset("spa", lam=0.0))
    assert credit.batch.column("progress_reward").tolist() == near(VECTORS["spa_reward"]["turn_reward"])


# --- HiPER: options.


def test_hae_at_both_levels() -> None:
    vector = VECTORS["hae"]
    inputs = vector["inputs"]
    rewards = np.array(inputs["rewards"])
    low, high = np.array(inputs["v_low"]), np.array(inputs["v_high_at_boundary"])
    found = estimate_options(
        rewards,
        OptionValueColumns(low=low, high=high, end=np.zeros(5)),
        np.array(inputs["switch"], bool),
        np.array([0, 5]),
        gamma=inputs["gamma"],
        lam=inputs["lam_turn"],
        lam_high=inputs["lam_seg"],
    )
    assert found.low.tolist() == near(vector["A_low_per_turn"])
    assert found.low_returns.tolist() == near(vector["ret_low"])
    assert found.high.tolist() == near(vector["A_high_per_turn"])
    assert np.nan_to_num(found.high_returns).tolist() == near(vector["ret_high"])
    # .1 + .9 * .55, and .9 of that; then the score, discounted
    assert found.end.tolist() == near([0.5355, 0.595, 0.81, 0.9, 1.0])


def test_hae_gives_each_kind_of_token_its_level() -> None:
    """The vector's first token of a step is its subgoal, the others its action."""
    vector = VECTORS["hae"]
    inputs = vector["inputs"]
    low, high = np.array(inputs["v_low"]), np.array(inputs["v_high_at_boundary"])
    batch = batch_of_columns(
        [inputs["rewards"]], "g", option_values=[inputs["switch"]], option_low=[low.tolist()],
        option_high=[high.tolist()], option_end=[[0.0] * 5],
    ).with_tokens(np.array([3] * 5), option_kind=np.array([1.0, 0.0, 0.0] * 5))  # fmt: skip
    preset = make_preset("hiper", gamma=inputs["gamma"], lam=inputs["lam_turn"], lam_high=inputs["lam_seg"])
    (term,) = assign_credit(batch, preset).terms
    assert term.token_advantage is not None
    assert term.token_advantage.reshape(5, 3).tolist() == [near(row) for row in vector["adv_tokens"]]


def test_segments_of_different_episodes_do_not_mix() -> None:
    """Alone and beside another episode, the same."""
    values = OptionValueColumns(low=np.array([0.3, 0.4]), high=np.array([0.2, 0.1]), end=np.zeros(2))
    twice = OptionValueColumns(low=np.tile(values.low, 2), high=np.tile(values.high, 2), end=np.zeros(4))
    rewards, begins = np.array([0.5, 1.0]), np.array([True, False])
    rule = {"gamma": 0.9, "lam": 0.5, "lam_high": 0.5}
    alone = estimate_options(rewards, values, begins, np.array([0, 2]), **rule)
    both = estimate_options(np.tile(rewards, 2), twice, np.tile(begins, 2), np.array([0, 2, 4]), **rule)
    for name in ("low", "high", "end"):
        assert getattr(both, name).tolist() == [*getattr(alone, name).tolist()] * 2


def test_tokens_are_of_the_switch_of_the_subgoal_or_of_the_action() -> None:
    begins = [PIECES[token] for token in (20, 21, 22, 23, 25, 25)]
    assert find_token_kinds(begins).tolist() == [2, 2, 1, 1, 0, 0]
    assert find_token_kinds([PIECES[24], "go"]).tolist() == [2, 0]
    assert find_token_kinds(["go"]).tolist() == [0]
    places = find_head_places(np.array([2.0, 2, 1, 1, 0, 0, 2, 1]), np.array([6, 2]))
    assert {name: at.tolist() for name, at in places.items()} == {
        "option_low": [4, 6], "option_high": [0, 6], "option_end": [0, 6],
    }  # fmt: skip


def test_a_step_begins_a_segment_if_it_says_so_and_the_first_one_always_does() -> None:
    ids = ((20, 21, 22, 23, 25), (24, 25), (20, 21, 22, 23, 25), (25,))
    drawn_options = record(*(step(sampled=drawn([2], own)) for own in ids[:3]))
    other = record(step(sampled=drawn([2], ids[3])), trial=1)
    batch = add_signals(batch_of([drawn_options, other]), make_preset("hiper"), CountingModel())
    assert batch.column("option_values").tolist() == [1, 0, 1, 1]
    assert batch.column("option_low").tolist() == [4, 6, 11, 12]
    assert batch.column("option_high").tolist() == [100, 105, 107, 112]
    assert batch.token_columns["option_kind"].tolist() == [2, 2, 1, 1, 0, 2, 0, 2, 2, 1, 1, 0, 0]


# --- SeeUPO: turn by turn.


def test_seeupo_divides_by_the_deviation_of_the_batch_and_bounds() -> None:
    vector = VECTORS["seeupo_ratio"]["batch_norm_adv"]
    found = advantages(make_preset("seeupo"), [[float(score)] for score in vector["rewards"]], vector["group"])
    assert [row[0] for row in found] == near(vector["adv"])
    rare = advantages(make_preset("seeupo"), [[0.0]] * 31 + [[1.0]], ["a"] * 32)
    assert rare[-1] == [3.0]


def test_seeupo_multiplies_by_the_clipped_ratios_of_later_turns() -> None:
    vector = VECTORS["seeupo_ratio"]
    inputs = vector["inputs"]
    before, after, mask = (np.array(inputs[name]) for name in ("p_before", "p_after", "mask"))
    changes = [np.log(b / a)[m > 0] for a, b, m in zip(before, after, mask, strict=True)]
    first = [next_factor(1.0, change, inputs["clip"]) for change in changes]
    assert first == near(vector["ratio_after_turn_T"])
    second = [next_factor(factor, change, inputs["clip"]) for factor, change in zip(first, changes, strict=True)]
    assert second == near(vector["ratio_after_turn_T_minus_1_same_data"])


def test_a_schedule_needs_a_number_of_updates_that_is_known() -> None:
    table = {"env": "backoffice", "credit": {"preset": "seeupo"}, "learn": {"schedule": "cosine"}}
    with pytest.raises(ConfigError, match=r"learn\.schedule is 'cosine', and preset 'seeupo' takes one update"):
        make_recipe(table)
    assert make_recipe({**table, "learn": {}}).preset_name == "seeupo"


# --- Scale.


@pytest.mark.parametrize("name", ["epo", "igpo", "infopo", "capo", "poad", "spa", "hiper", "seeupo", "spo"])
def test_every_step_of_a_large_batch_has_a_finite_advantage(name: str) -> None:
    steps, episodes = 100_000, 5_000  # benchmarks/training.py times 1,000,000
    starts = np.arange(0, steps + 1, steps // episodes)
    draw, zeros = np.random.default_rng(0), np.zeros(steps)
    trajectory = np.repeat(np.arange(episodes), steps // episodes)
    columns = {"reward": zeros, "valid": zeros + 1, "calls": zeros, "errors": zeros, "tokens": zeros + 1}
    columns |= {signal: draw.random(steps) for signal in (*SIGNALS, *FURTHER)}
    keys = {"group": trajectory // 8, "trajectory": trajectory, "turn": np.arange(steps) - starts[trajectory]}
    columns["reward"][starts[1:] - 1] = draw.integers(0, 2, episodes)
    batch = StepBatch(starts=starts, columns=columns, keys=keys, tasks=tuple(map(str, range(episodes))))
    credit = assign_credit(batch, make_preset(name))
    assert len(credit.advantage) == steps
    assert np.isfinite(credit.advantage).all()
    assert credit.advantage.any()
