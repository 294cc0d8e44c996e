"""The page on trees: the tables that it follows by hand are what the functions give."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from page_blocks import DOCS
from records import episode, step
from typer.testing import CliRunner

from gymcp.cli.app import app
from gymcp.store import BranchRecord, TrajectoryStore
from gymcp.trainers import (
    StepTree,
    advantages,
    assign_credit,
    find_step_pairs,
    make_tree,
    make_tree_batch,
    make_tree_preset,
    preference_loss,
    sum_logprobs,
)
from gymcp.trainers.credit.tree.shapers import compare_with_subtrees
from gymcp.trainers.credit.tree.step_tree import average_leaves, count_leaves, measure_values

PAGE = DOCS / "tree-credit.md"


def read_table(first_column: str) -> dict[str, list[float]]:
    """Numbers of the page's table that begins with this column, by column; an empty cell is NaN."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first_column} | "))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    rows = cells[2 : next((n for n, row in enumerate(cells) if len(row) != len(cells[0])), len(cells))]
    columns = zip(cells[0], *rows, strict=True)
    return {name: [float(Fraction(cell)) if cell else math.nan for cell in column] for name, *column in columns}


def read_tree() -> StepTree:
    table = read_table("step")
    scores = [None if math.isnan(score) else score for score in table["score"]]
    return make_tree([int(step) for step in table["after"]], scores)


def test_the_values_of_the_table() -> None:
    table, tree = read_table("step"), read_tree()
    assert count_leaves(tree).tolist() == [*table["leaves"], 6.0]
    assert measure_values(tree).tolist() == pytest.approx([*table["V"], 1 / 3])


@pytest.mark.parametrize(
    ("column", "name", "options"),
    [
        ("`treeps`", "treeps", {}),
        ("siblings", "treeps", {"centre": "siblings"}),
        ("`treepo`, plain", "treepo", {"whiten": False}),
        ("by leaves", "treepo", {"whiten": False, "weight": "leaves"}),
        ("whitened", "treepo", {}),
        ("`arpo`", "arpo", {}),
    ],
)
def test_the_advantages_of_the_table(column: str, name: str, options: dict[str, object]) -> None:
    found = assign_credit(make_tree_batch(read_tree()), make_tree_preset(name, **options)).advantage
    assert found.tolist() == pytest.approx(read_table("step")[column], abs=3e-6)


PATHS = {"a": (0, 1), "a1": (0, 2), "b": (3, 4, 5), "b1": (3, 4, 6), "b2": (3, 4, 7), "c": (8,)}
"""The steps of each episode of the page's tree, which is of three trials; a digit names a branch."""
SHARED = {"a1": 1, "b1": 2, "b2": 2}


def write_run(folder: Path) -> None:
    """The page's tree, as `gymcp eval --branch` records it."""
    scores = read_table("step")["score"]
    records = {
        name: replace(
            episode("task", trial=ord(name[0]) - ord("a")),
            id=name,
            parent=name[0] if name in SHARED else None,
            steps=(*map(step, path[:-1]), replace(step(path[-1]), reward=scores[path[-1]])),
            score=scores[path[-1]],
        )
        for name, path in PATHS.items()
    }
    with TrajectoryStore.open(folder, write=True) as store:
        for root in "abc":
            branches = [
                BranchRecord(trajectory=records[name], branch=f"{shared}.{name[1]}", shared=shared)
                for name, shared in SHARED.items()
                if name[0] == root
            ]
            store.append(records[root], {}, branches=branches)


@pytest.mark.parametrize(("column", "preset"), [("`treepo`, plain", "treepo"), ("`arpo`", "arpo")])
def test_the_credit_of_a_recorded_tree_is_that_of_the_table(column: str, preset: str, tmp_path: Path) -> None:
    write_run(tmp_path)
    options = ["--set", "whiten=false"] if preset == "treepo" else []
    said = CliRunner().invoke(app, ["credit", str(tmp_path), "--preset", preset, *options, "--json"])
    assert said.exit_code == 0, said.output
    given = json.loads(said.stdout)["advantages"]
    assert {each["id"]: each["branch"] for each in given if each["branch"]} == {"a1": "1.1", "b1": "2.1", "b2": "2.2"}
    found = {each["id"]: each["steps"] for each in given}
    expected = read_table("step")[column]
    own = {name: path[SHARED.get(name, 0) :] for name, path in PATHS.items()}
    assert found == {name: pytest.approx([expected[at] for at in path], abs=3e-6) for name, path in own.items()}


def test_the_whitening_of_the_table() -> None:
    """As the page has it: leaves count as often as their paths have tokens."""
    tree, tokens = read_tree(), np.array([2, 2, 3, 3, 3, 1])
    of_leaves = compare_with_subtrees(tree, "average")
    rows = np.repeat(of_leaves[tree.is_leaf], tokens)
    assert (len(rows), rows.mean(), rows.var(ddof=1)) == pytest.approx((14, 0, 0.241453), abs=1e-6)
    assert average_leaves(tree, of_leaves / rows.std(ddof=1)).tolist() == pytest.approx(
        read_table("step")["whitened"], abs=1e-6
    )


def test_the_pairs_of_the_page() -> None:
    pairs = find_step_pairs(read_tree(), rule="value")
    assert list(zip(pairs.chosen.tolist(), pairs.rejected.tolist(), strict=True)) == [(0, 8), (1, 2), (5, 6)]
    assert pairs.margin.tolist() == [0.5, 1.0, 1.0]


def test_the_episodes_with_a_replaced_action() -> None:
    table = {name: [column[:3], column[3:]] for name, column in read_table("episode").items()}
    rewards, mismatch = table["reward"], table["replaced"]
    preset = make_tree_preset("ui_s1")
    found = advantages(preset, rewards, ["task", "task"], mismatch=mismatch)
    assert found == table["advantage"]
    alone = advantages(make_tree_preset("ui_s1", step_weight=0.0), rewards, ["task", "task"], mismatch=mismatch)
    assert alone == table["episode part"]
    steps = np.array(found) - np.array(alone)
    assert steps.tolist() == table["step part"]
    means = np.array(table["return"]).mean(axis=0)
    assert (np.array(table["return"]) - means).tolist() == table["step part"]


def test_the_loss_on_a_pair_of_steps() -> None:
    mask = torch.tensor([[0.0, 1.0, 1.0]])  # the first token stands before the step

    def total(*logprobs: float) -> torch.Tensor:
        return sum_logprobs(torch.tensor([[-9.0, *logprobs]], dtype=torch.float64), mask)

    loss = preference_loss(
        total(-0.4, -0.6),
        total(-1.5, -0.5),
        reference_chosen=total(-0.7, -0.5),
        reference_rejected=total(-0.9, -0.6),
        beta=0.1,
    )
    assert f"= {loss.item():.6f}." in PAGE.read_text(encoding="utf-8")
