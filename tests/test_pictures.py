"""The pictures of the pages: each is there, of a sane size, in light and dark, and taken for the shot of its name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image
from screenshots import MANIFEST, PICTURES, ROOT, SCHEMES, SHOTS, Shot, file_name, list_stale, make_manifest

MAX_BYTES = 120_000
MAX_WIDTH = 1_400
PHONE_PX = 358
"""Width of a page's text on a phone of 390 px."""
MIN_TEXT_PX = 12
DRAWINGS = sorted((ROOT / "docs").rglob("*.svg"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_NAMED = re.compile(r"!\[[^\]]*\]\((?!http)([^)\s]+)\)|\b(?:src|srcset)=\"(?!http)([^\"\s]+)\"")


def list_named_pictures(page: Path) -> list[Path]:
    """Files that a page shows as pictures."""
    return [page.parent / (image or source) for image, source in _NAMED.findall(page.read_text(encoding="utf-8"))]


def test_every_picture_that_a_page_names_is_there() -> None:
    named = {page: list_named_pictures(page) for page in PAGES}
    assert sum(map(len, named.values())) >= 2 * len(SHOTS)
    missing = [(str(page.relative_to(ROOT)), str(path)) for page in PAGES for path in named[page] if not path.is_file()]
    assert missing == []


def test_every_picture_is_named_by_a_page() -> None:
    named = {path.resolve() for page in PAGES for path in list_named_pictures(page)}
    assert [path.name for path in sorted(PICTURES.glob("*.webp")) if path.resolve() not in named] == []


def test_the_pictures_are_those_of_the_shots_as_they_are_now() -> None:
    """After a change of a shot: make pictures."""
    assert {name: taken["shot"] for name, taken in json.loads(MANIFEST.read_text()).items()} == {
        file_name(shot, scheme): shot.digest for shot in SHOTS for scheme in SCHEMES
    }
    assert {path.name for path in PICTURES.glob("*.webp")} == set(json.loads(MANIFEST.read_text()))


def test_pictures_that_may_be_older_than_their_page_are_named() -> None:
    """`make pictures-check` prints them as warnings."""
    taken = make_manifest(SHOTS)
    assert list_stale(taken) == []
    taken["report-dark.webp"]["look"] = "another"
    del taken["viewer-runs-light.webp"]
    assert list_stale(taken) == ["report-dark.webp", "viewer-runs-light.webp"]
    assert (
        len({entry["look"] for entry in make_manifest(SHOTS).values()}) == 4
    )  # reports' and the viewer's, of episodes and of a training


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


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.stem)
def test_a_drawing_is_read_in_light_and_dark_and_on_a_phone(path: Path) -> None:
    """The picture brings its own background: the site can be dark on a light system, which a picture does not see."""
    text = path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    name = "{http://www.w3.org/2000/svg}"
    title = root.find(f"{name}title")
    assert root.get("role") == "img"
    assert title is not None
    assert (title.get("id"), bool(title.text)) == (root.get("aria-labelledby"), True)
    width = float(root.attrib["viewBox"].split()[2])
    sizes = [float(size) for size in re.findall(r"font-size(?:=\"|: ?)([0-9.]+)", text)]
    assert min(sizes) * min(1, PHONE_PX / width) >= MIN_TEXT_PX
    light, dark = (dict(re.findall(r"(--[a-z]+): (#[0-9a-f]{6})", part)) for part in text.split("@media")[:2])
    assert light.keys() == dark.keys()
    assert "(prefers-color-scheme: dark)" in text
    for colours in (light, dark):
        for ink in colours.keys() - {"--paper", "--box", "--edge"}:
            for ground in ("--paper", "--box"):
                assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, by WCAG 2."""

    def luminance(colour: str) -> float:
        parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_drawing_and_every_concept_page_is_shown() -> None:
    """The map of the architecture is drawn in characters."""
    named = {page.name: [path.resolve() for path in list_named_pictures(page)] for page in PAGES}
    assert {path for path in DRAWINGS if not any(path in each for each in named.values())} == set()
    concepts = (
        (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("- Concepts:")[2].partition("- Reference:")[0]
    )
    pages = set(re.findall(r"- (\S+\.md)", concepts)) - {"architecture.md"}
    assert len(pages) >= 5
    assert {page for page in pages if not any(path in DRAWINGS for path in named[page])} == set()
