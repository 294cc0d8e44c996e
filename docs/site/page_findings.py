"""Defects of an open page: serious and critical findings of axe-core, and parts that are wider than the window."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from playwright.sync_api import Page

GRAVE = ("serious", "critical")
_AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
_TOO_WIDE = """() => {
  const root = document.documentElement;
  if (root.scrollWidth <= root.clientWidth) return [];
  const scrolls = each => each && each !== root && each !== document.body
    && (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(each).overflowX) || scrolls(each.parentElement));
  return [...document.body.querySelectorAll("*")]
    .filter(each => each.checkVisibility() && !scrolls(each.parentElement))
    .filter(each => each.getBoundingClientRect().right > root.clientWidth + 1)
    .map(each => `${each.tagName.toLowerCase()}.${each.className}: ${each.textContent.trim().slice(0, 60)}`)
    .concat([`the page: ${root.scrollWidth} of ${root.clientWidth} px`]);
}"""
"""Elements that make the page scroll sideways, the outermost first."""


def grave_findings(page: Page) -> list[str]:
    """Serious and critical findings of axe-core, each with the first elements that it names."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(_AXE)
    found: dict[str, Any] = page.evaluate("axe.run(document, { resultTypes: ['violations'], preload: false })")
    assert len(found["passes"]) > 5, "axe-core has looked at the page"
    return [
        f"{each['id']}: {each['help']}: {[(node['target'], node['failureSummary']) for node in each['nodes'][:4]]}"
        for each in found["violations"]
        if each["impact"] in GRAVE
    ]


def overflow(page: Page) -> list[str]:
    """Elements that make the page scroll sideways; empty if it does not."""
    found: list[str] = page.evaluate(_TOO_WIDE)
    return found
