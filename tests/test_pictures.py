"""The pictures of the pages: each is there, of a sane size, in light and dark, and taken for the shot of its name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from PIL import Image
from screenshots import MANIFEST, PICTURES, ROOT, SCHEMES, SHOTS, Shot, file_name

MAX_BYTES = 120_000
MAX_WIDTH = 1_400
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_NAMED = re.compile(r"!\[[^\]]*\]\((?!http)([^)\s]+)\)|\b(?:src|srcset)=\"(?!http)([^\"\s]+)\"")


def named_pictures(page: Path) -> list[Path]:
    """Files that a page shows as pictures."""
    return [page.parent / (image or source) for image, source in _NAMED.findall(page.read_text(encoding="utf-8"))]


def test_every_picture_that_a_page_names_is_there() -> None:
    named = {page: named_pictures(page) for page in PAGES}
    assert sum(map(len, named.values())) >= 2 * len(SHOTS)
    missing = [(str(page.relative_to(ROOT)), str(path)) for page in PAGES for path in named[page] if not path.is_file()]
    assert missing == []


def test_every_picture_is_named_by_a_page() -> None:
    named = {path.resolve() for page in PAGES for path in named_pictures(page)}
    assert [path.name for path in sorted(PICTURES.glob("*.webp")) if path.resolve() not in named] == []


def test_the_pictures_are_those_of_the_shots_as_they_are_now() -> None:
    """After a change of a shot: make pictures."""
    assert json.loads(MANIFEST.read_text()) == {
        file_name(shot, scheme): shot.digest for shot in SHOTS for scheme in SCHEMES
    }
    assert {path.name for path in PICTURES.glob("*.webp")} == set(json.loads(MANIFEST.read_text()))


@pytest.mark.parametrize("shot", SHOTS, ids=lambda shot: shot.name)
def test_a_picture_is_small_and_has_the_size_of_its_shot(shot: Shot) -> None:

    for scheme in SCHEMES:
        path = PICTURES / file_name(shot, scheme)
        with Image.open(path) as picture:
            assert picture.format == "WEBP"
            assert picture.size == (shot.width, shot.height)
            shades = picture.convert("L").histogram()
        assert sum(count > 0 for count in shades) > 50  # something is on it
        assert path.stat().st_size <= MAX_BYTES
        assert shot.width <= MAX_WIDTH


@pytest.mark.parametrize("shot", SHOTS, ids=lambda shot: shot.name)
def test_the_dark_picture_is_darker(shot: Shot) -> None:

    means = []
    for scheme in SCHEMES:
        with Image.open(PICTURES / file_name(shot, scheme)) as picture:
            histogram = picture.convert("L").histogram()
        means.append(sum(value * count for value, count in enumerate(histogram)) / sum(histogram))
    light, dark = means
    assert dark < 100 < light
