"""``gymcp train --check`` and ``--explain``: everything before training, and nothing of it."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import typer
from transformers.utils.logging import disable_progress_bar

from gymcp.agents.programs.settings import ProgramSettings
from gymcp.agents.runner.concurrency import ConcurrencyChoice
from gymcp.cli.output import console, in_one_line, print_json
from gymcp.cli.training.train_run import folder_of
from gymcp.envs.environment_sources import load_named
from gymcp.envs.spec import LoadedEnv
from gymcp.store.run_folder import refuse_run_in_use
from gymcp.trainers.credit.explanation import explain_preset
from gymcp.trainers.credit.presets import Preset
from gymcp.trainers.recipe.agent import RolloutAgent, choose_demonstrator, load_rollout_agent
from gymcp.trainers.recipe.build_preset import build_preset
from gymcp.trainers.recipe.environment import wrap_environment
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.concurrency import choose_rollout_concurrency
from gymcp.trainers.rollouts.curricula.explanation import explain_experience
from gymcp.trainers.run.checkpoints import find_saved_state
from gymcp.trainers.run.forecasts.disk import DiskForecast, forecast_disk
from gymcp.trainers.run.forecasts.duration import Duration, forecast_duration
from gymcp.trainers.run.forecasts.model_speed import ModelSpeed, UpdateSpeed, time_model
from gymcp.trainers.run.forecasts.rehearsal import Rehearsal, TokenCounts, count_tokens, model_for_check, rehearse
from gymcp.trainers.run.forecasts.size import (
    EpisodeCounts,
    MemoryForecast,
    count_episodes,
    count_updates,
    count_warm_updates,
    forecast_memory,
    read_shape,
)
from gymcp.trainers.run.preconditions import check_run
from gymcp.trainers.run.provenance import check_tasks_unchanged
from gymcp.types import Json

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check."""

    check: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingForecast:
    """A training run that could start, measured by its recipe and one episode."""

    recipe: Recipe
    preset: Preset
    env: LoadedEnv
    agent: RolloutAgent | None
    """None: react."""
    concurrency: ConcurrencyChoice
    folder: Path
    played: Rehearsal
    tokens: TokenCounts
    episodes: EpisodeCounts
    memory: MemoryForecast
    disk: DiskForecast
    available: int
    """Bytes of memory of the machine, or of its GPU."""
    speed: ModelSpeed | str
    """Speed of the model, or why it is not known."""

    @property
    def duration(self) -> Duration | None:
        """Time of the run; None if the model's speed is not known."""
        if isinstance(self.speed, str):
            return None
        return forecast_duration(self.recipe, self.episodes, self.tokens, self.played.seconds, self.speed)


def run(
    recipe: Recipe,
    out: Path | None,
    *,
    resume: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """Print what was checked, or with `explain` what would be trained and how much. Exit code 1 if a check fails."""
    forecast = forecast_training(recipe, out, resume=resume, timed=explain)
    findings = check_forecast(forecast)
    passed = all(finding.passed for finding in findings)
    lines = explain_forecast(forecast) if explain else []
    if as_json:
        print_json(_to_json(forecast, findings, lines, passed=passed))
    else:
        for finding in findings if not explain else [finding for finding in findings if not finding.passed]:
            console.print("pass" if finding.passed else "FAIL", style="green" if finding.passed else "red", end="")
            text = f"  {finding.check:<8} {in_one_line(finding.detail)}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        for line in lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not passed:
        raise typer.Exit(1)


def explain_forecast(forecast: TrainingForecast) -> list[str]:
    """Lines on the preset, on the choice of tasks and earlier episodes, and on the size of the run."""
    return [
        *explain_preset(forecast.preset),
        *explain_experience(forecast.recipe, forecast.env),
        *describe_size(forecast),
    ]


def forecast_training(recipe: Recipe, out: Path | None, *, resume: bool, timed: bool = False) -> TrainingForecast:
    """The run that `gymcp train` would start; with `timed`, some seconds of the model's work are timed.

    Raises as training would, before it does anything.
    """
    disable_progress_bar()
    preset = build_preset(recipe)
    env = wrap_environment(recipe, load_named(recipe.env))
    folder = folder_of(recipe, out)
    refuse_run_in_use(folder)
    if find_saved_state(folder, recipe, resume=resume) is not None:
        check_tasks_unchanged(folder, recipe, env)
    check_run(recipe, preset, env, None, folder)
    agent = load_rollout_agent(recipe)
    concurrency = choose_rollout_concurrency(recipe, env, agent)
    played = asyncio.run(rehearse(recipe, env))
    speed: ModelSpeed | str = "it was not timed"
    with tempfile.TemporaryDirectory(prefix="gymcp-train-check-") as scratch:
        model = model_for_check(recipe, played, Path(scratch) / "model")
        tokens = count_tokens(recipe, played, model)
        shape = read_shape(recipe, model)
        if timed:
            speed = asyncio.run(time_model(recipe, played, tokens, shape, model, together=concurrency.episodes))
    on_gpu = torch.cuda.is_available()
    return TrainingForecast(
        recipe=recipe,
        preset=preset,
        env=env,
        agent=agent,
        concurrency=concurrency,
        folder=folder,
        played=played,
        tokens=tokens,
        episodes=count_episodes(recipe, env),
        memory=forecast_memory(recipe, preset, shape, on_gpu=on_gpu),
        disk=forecast_disk(recipe, preset, shape, folder),
        available=torch.cuda.mem_get_info()[1] if on_gpu else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        speed=speed,
    )


def check_forecast(forecast: TrainingForecast) -> list[Finding]:
    """The checks that end with a finding; whatever is wrong before them is an error of `forecast_training`."""
    recipe, first = forecast.recipe, forecast.played.first
    recipe_words = (
        f"'{recipe.name}': preset {recipe.preset_name}, {recipe.learn.iterations} iterations, into {forecast.folder}"
    )
    env_words = (
        f"{forecast.env.spec.name}: {len(forecast.env.suite.tasks)} tasks in its suite,"
        f" sandbox {recipe.rollout.sandbox}"
    )
    agent = forecast.played.agent
    odd = ", though gold should score 1" if agent == "oracle" and first.score != 1.0 else ""
    episode = (
        f"{agent} scored {first.score:g} on '{first.task}' in {len(first.steps)} steps, {forecast.played.seconds:.2f} s"
    )
    return [
        Finding(check="recipe", passed=True, detail=recipe_words),
        Finding(check="env", passed=True, detail=env_words),
        *(
            [Finding(check="agent", passed=True, detail=_describe_agent(forecast.agent))]
            if forecast.agent is not None
            else []
        ),
        Finding(check="episode", passed=True, detail=episode + odd),
        _check_tokens(forecast),
        _check_memory(forecast),
        _describe_disk(forecast),
    ]


def _describe_agent(agent: RolloutAgent) -> str:
    if not isinstance(agent, ProgramSettings):
        return f"{agent.name} plays over the model"
    confined = "without a sandbox" if agent.sandbox == "none" else f"in {agent.sandbox}"
    processes = "one process for an episode" if agent.turns == "stdin" else "a process for each message of the user"
    mounts_text = f"; it may read {', '.join(map(str, agent.mounts))}" if agent.mounts else ""
    return f"{agent.name} plays over the model {confined}, {processes}{mounts_text}"


def _check_tokens(forecast: TrainingForecast) -> Finding:
    tokens, most = forecast.tokens, forecast.recipe.rollout.max_tokens
    about = "" if tokens.exact else "about "
    detail = (
        f"that episode takes {about}{tokens.longest:,} of {tokens.context:,} tokens, its first prompt"
        f" {tokens.first_prompt:,}"
    )
    if tokens.first_prompt >= tokens.context:
        return Finding(check="tokens", passed=False, detail=f"{detail}: no space for an answer; raise model.context")
    if tokens.longest > tokens.context:
        detail += "; longer episodes than model.context are cut off: raise it"
    elif tokens.longest + most > tokens.context:
        detail += f"; its last answer may not reach rollout.max_tokens, {most}"
    return Finding(check="tokens", passed=True, detail=detail)


def _check_memory(forecast: TrainingForecast) -> Finding:
    memory, available = forecast.memory, forecast.available
    detail = (
        f"about {memory.all / GB:.2g} GB of {available / GB:.3g} GB: weights and optimiser {memory.weights / GB:.2g},"
        f" a micro-batch {memory.activations / GB:.2g}, reference {memory.reference / GB:.2g},"
        f" {forecast.recipe.rollout.slots} slots {memory.cache / GB:.2g}"
    )
    if memory.weights > available:
        return Finding(check="memory", passed=False, detail=f"{detail}; set model.lora_rank, or take a smaller model")
    if memory.all > available:
        detail += "; it may not fit: lower learn.micro_batch_tokens, rollout.slots or model.context"
    return Finding(check="memory", passed=True, detail=detail)


def _describe_disk(forecast: TrainingForecast) -> Finding:
    """An estimate by the episode that was played; a disk that cannot hold the least is an error before it."""
    size = forecast.tokens.record
    detail = f"about {forecast.disk.describe(size)}"
    if forecast.disk.count_bytes(size) > forecast.disk.free:
        detail += "; it may not fit: free some, or lower learn.iterations, rollout.groups or rollout.episodes"
    return Finding(check="disk", passed=True, detail=detail)


def describe_size(forecast: TrainingForecast) -> list[str]:
    """Lines on what the run will take: episodes, tokens, updates, memory, and time by what was measured."""
    recipe, episodes, tokens = forecast.recipe, forecast.episodes, forecast.tokens
    rollout = recipe.rollout
    about = "" if tokens.exact else "about "
    warm_epochs = recipe.warm_start.epochs if recipe.warm_start.tasks else 0
    by = f" of {choose_demonstrator(recipe)}" if episodes.demonstrations else ""
    return [
        f"episodes: {episodes.demonstrations:,}{by} for the warm start; {episodes.rollouts:,} to learn from"
        f" ({recipe.learn.iterations} iterations x {rollout.groups} tasks x {rollout.episodes}); {episodes.heldout:,}"
        f" held-out in {episodes.evaluations} evaluations",
        f"tokens: an episode like the one that was tried has {about}{tokens.longest:,}, of which {tokens.drawn:,} are"
        f" drawn; all episodes to learn from {about}{tokens.longest * episodes.rollouts:,}, of which"
        f" {tokens.drawn * episodes.rollouts:,} are drawn",
        f"updates: {count_updates(recipe):,} at most, after {warm_epochs} epochs of warm start",
        f"memory: {_check_memory(forecast).detail}",
        f"disk: {_describe_disk(forecast).detail}",
        f"concurrency: {forecast.concurrency.describe('rollout.concurrency')}",
        *_describe_time(forecast),
    ]


def _describe_time(forecast: TrainingForecast) -> list[str]:
    """Lines on the time of the run: the sum first, then each part with the measurement that it is estimated from."""
    episodes, speed, duration = forecast.episodes, forecast.speed, forecast.duration
    environment = (
        f"{_format_time(episodes.all * forecast.played.seconds)} for the environment: {episodes.all:,} episodes, one"
        f" after the other, each as long as that of {forecast.played.agent}, which took {forecast.played.seconds:.2g} s"
    )
    if isinstance(speed, str) or duration is None:
        return [f"time: {environment}; the time of the model comes on top and is not estimated: {speed}"]
    drawn = forecast.tokens.drawn * (episodes.rollouts + episodes.heldout)
    warm = count_warm_updates(forecast.recipe, episodes)
    return [
        f"time: about {_format_time(duration.all)}, an estimate: counts of the recipe times what was measured just now"
        " on this machine, one part after the other:",
        f"  {environment}",
        f"  {_format_time(duration.drawing)} for drawing: {drawn:,} tokens at {speed.tokens_per_second:,.0f} a second"
        f" in {speed.together} episodes at a time, which the model with its first weights drew",
        f"  {_format_time(duration.warm_start)} for the warm start: {warm:,} updates of"
        f" {_describe_update(speed.warm_update)}",
        f"  {_format_time(duration.updates)} for updates after it: {count_updates(forecast.recipe):,} of"
        f" {_describe_update(speed.update)}",
        "  not in it: passes of the model that credit or a reference takes, refilled batches, checkpoints, the start",
    ]


def _describe_update(speed: UpdateSpeed) -> str:
    size = "" if speed.timed == speed.wanted else f", by those of {speed.timed}"
    return f"{speed.wanted} episodes in {speed.seconds:.2g} s{size}"


def _format_time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _to_json(
    forecast: TrainingForecast, findings: Sequence[Finding], lines: Sequence[str], *, passed: bool
) -> dict[str, Json]:
    return {
        "recipe": forecast.recipe.name,
        "env": forecast.recipe.env,
        "run": str(forecast.folder),
        "passed": passed,
        "checks": {finding.check: {"passed": finding.passed, "detail": finding.detail} for finding in findings},
        "episodes": asdict(forecast.episodes),
        "tokens": asdict(forecast.tokens),
        "updates": count_updates(forecast.recipe),
        "memory_bytes": {**asdict(forecast.memory), "available": forecast.available},
        "disk_bytes": {"about": forecast.disk.count_bytes(forecast.tokens.record), "free": forecast.disk.free},
        "episode_s": forecast.played.seconds,
        **(
            {"run_s": {**asdict(forecast.duration), "all": forecast.duration.all}}
            if forecast.duration is not None
            else {}
        ),
        **({"explanation": list(lines)} if lines else {}),
    }
