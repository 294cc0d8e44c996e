"""Seconds of the viewer's pages, from the request or the choice to what can be seen: measured inside the page."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from playwright.sync_api import Page

PAINT = """
() => new Promise(done => {
  const look = () => document.querySelector('.row')
    ? requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())))
    : setTimeout(look, 1);
  look();
})
"""
SEARCH = """
query => new Promise(done => {
  const search = document.getElementById('search'), found = document.getElementById('found');
  found.dataset.for = '\\u0000';
  search.value = query;
  const began = performance.now();
  search.dispatchEvent(new Event('input'));
  const look = () => found.dataset.for === query
    ? requestAnimationFrame(() => done(performance.now() - began))
    : setTimeout(look, 1);
  look();
})
"""
ORDER = """
order => new Promise(done => {
  const select = document.querySelector('#selects select[aria-label="order"]');
  const found = document.getElementById('found');
  found.dataset.for = '\\u0000';
  select.value = order;
  const began = performance.now();
  select.dispatchEvent(new Event('change'));
  const look = () => found.dataset.for === ''
    ? requestAnimationFrame(() => done(performance.now() - began))
    : setTimeout(look, 1);
  look();
})
"""
LISTED = """
() => new Promise(done => {
  const look = () => document.querySelector('.runtable tbody tr')
    ? requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())))
    : setTimeout(look, 1);
  look();
})
"""
SORT = """
order => new Promise(done => {
  const select = document.getElementById('order'), found = document.getElementById('found');
  select.value = order;
  const began = performance.now();
  select.dispatchEvent(new Event('change'));
  const look = () => found.dataset.sort === order
    ? requestAnimationFrame(() => done(performance.now() - began))
    : setTimeout(look, 1);
  look();
})
"""
TABLE = """
([key, rows]) => new Promise(done => {
  const began = performance.now();
  document.body.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
  const look = () => document.querySelector(rows)
    ? requestAnimationFrame(() => done(performance.now() - began))
    : setTimeout(look, 1);
  look();
})
"""
SHOWN = """
() => new Promise(done => {
  const look = () => document.readyState === 'complete'
    ? requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())))
    : setTimeout(look, 1);
  look();
})
"""


def time_values(page: Page, script: str, values: Iterable[str], rounds: int) -> dict[str, float]:
    """Each value of a search field or of a choice -> median seconds until its rows are seen."""
    found = {}
    for value in values:
        times = []
        for _ in range(rounds):
            times.append(float(page.evaluate(script, value)) / 1000)
            page.evaluate(script, "")  # the same value again would change nothing
        found[value] = statistics.median(times)
    return found
