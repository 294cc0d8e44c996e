"""`gymcp demo`, from any folder."""

from __future__ import annotations

from pathlib import Path

from cli_runner import gymcp

from gymcp.cli.machine.demo import RECIPE


def test_the_first_part_says_what_must_be_and_what_is(tmp_path: Path) -> None:
    done = gymcp("demo", "--only", "bfcl", "--limit", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "BFCL multi-turn" in done.stdout
    reports = [Path(line.split()[-1]) for line in done.stdout.splitlines() if line.endswith("report.html")]
    assert [report.parent.name for report in reports] == ["oracle", "mutated", "null", "random"]
    assert all((tmp_path / report).is_file() for report in reports)


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    done = gymcp("demo", "--only", "nothing", cwd=tmp_path)
    assert done.returncode == 2
    assert "nothing" in done.stderr


def test_the_recipe_of_the_demo_is_among_the_recipes() -> None:
    recipes = Path(__file__).parents[2] / "recipes"
    assert (recipes / "demo.toml").read_bytes() == RECIPE.read_bytes()
