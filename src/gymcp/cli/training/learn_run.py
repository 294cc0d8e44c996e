"""``gymcp learn``: a head that values the steps of a search, trained on a recorded run."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from gymcp.cli.output import console, print_json
from gymcp.errors import ConfigError
from gymcp.store import open_run
from gymcp.trainers.run.values.step_values import (
    StepValues,
    StepValueSettings,
    find_recorded_policy,
    fit_step_values,
    save_step_values,
)

HEAD_FOLDER = "head"
"""Folder of the head within its run, if no other is named."""


def run(folder: Path, policy: str | None, out: Path | None, *, seed: int, as_json: bool) -> None:
    """Train a head on the run's scored episodes and their branches, write it, and print how well it fits.

    `policy`: the model whose hidden states it reads; None: the one that the run's record names.
    """
    disable_progress_bar()
    chosen = policy or _find_policy(folder)
    target = out or folder / HEAD_FOLDER
    if out is None and target.is_symlink():
        raise ConfigError(
            f"learn: {target} is a link, which is not followed: files behind it would be overwritten; remove it, or"
            " name another folder: --out FOLDER"
        )
    values = fit_step_values(folder, chosen, StepValueSettings(seed=seed))
    try:
        save_step_values(values, target)
    except OSError as error:
        raise ConfigError(f"--out {target}: the head cannot be written: {error.strerror or error}") from error
    if as_json:
        explained = None if math.isnan(values.explained) else values.explained
        print_json({"run": str(folder), "policy": chosen, "head": str(target), "tasks": len(values.tasks),
                    "explained": explained})  # fmt: skip
    else:
        _print(values, target, chosen)
    if values.explained <= 0:
        print(
            "gymcp: learn: on held-out tasks the head is no better than a constant, so do not use it; record more"
            " tasks, or trees (gymcp eval --branch)",
            file=sys.stderr,
        )


def _print(values: StepValues, target: Path, policy: str) -> None:
    fit = (
        "no task was held out, or all of their steps are worth the same, so how well it fits is not known"
        if math.isnan(values.explained)
        else f"it explains {values.explained:.0%} of the differences between steps of held-out tasks"
    )
    count = len(values.tasks)
    env = min(values.tasks).partition("/")[0]
    for line in (
        f"head {target}: trained on {count} task{'s' * (count > 1)} of {env}; {fit}",
        f"use it: gymcp eval {env} --policy {policy} --search beam,value=q,head={target}",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _find_policy(folder: Path) -> str:
    open_run(folder)
    policy = find_recorded_policy(folder)
    if policy is None:
        raise ConfigError(
            f"learn: the record of run {folder} names no model that is on this machine; name one that has its"
            " tokenizer: --policy tiny | smollm2 | local:PATH"
        )
    return policy
