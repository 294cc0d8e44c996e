// The list of episodes: only the rows in sight exist, and only their pages are fetched.

import { ask } from "./ask.js";
import { arrange, badge, count, el, replace, seconds } from "./dom.js";
import { go, place } from "./state.js";

const ROW = 52; // pixels, as in style.css
const PAGE = 200;
const REREAD_MS = 1000; // until a search is repeated that has not seen all transcripts yet

const list = document.getElementById("list");
const rows = document.getElementById("rows");
const found = document.getElementById("found");

let pages = new Map();
let total = 0;
let selected = 0;
let abort = new AbortController();
let opening = 0;
let rereading = 0;
let drawn = new Map(); // place in the list -> its row, and the element that shows it
let starting = false; // the list is being loaded to be shown from its beginning

const asked = () => {
  const sides = place.view === "pairs";
  const said = new URLSearchParams({ q: place.q });
  if (!sides) said.set("run", place.run);
  if (place.sort) said.set("sort", place.sort);
  return `api/${sides ? "pairs" : "episodes"}?${said}`;
};

/** Starts over with what the place asks for; `stay`: the rows in sight and the selected one stay. */
export async function load({ stay = false } = {}) {
  clearTimeout(rereading);
  abort.abort();
  abort = new AbortController();
  const stays = stay && !starting; // a list that is about to start over goes on to do so
  starting = !stays;
  const kept = stays ? rowAt(selected)?.n : undefined;
  const mine = (pages = new Map());
  const began = performance.now();
  try {
    const first = await fetchPage(0);
    if (stays) await fetchPage(pageAt(Math.min(list.scrollTop / ROW, first.total - 1)));
    if (mine !== pages) return;
    starting = false;
    total = first.total;
    if (!stays) selected = Math.max(0, first.rows.findIndex((row) => String(row.n) === place.n));
    rows.style.setProperty("height", `${total * ROW}px`);
    if (!stays) list.scrollTop = Math.max(0, (selected - 4) * ROW);
    else followRow(kept);
    const partly = place.q && first.searchable < first.indexed;
    replace(
      found,
      count(total, place.view === "pairs" ? "pair" : "episode"),
      el("span", { class: "soft" }, ` · ${Math.round(performance.now() - began)} ms`),
      partly && el("span", { class: "warn" }, ` · transcripts of ${first.searchable.toLocaleString("en")} of ${first.indexed.toLocaleString("en")} so far`),
    );
    found.dataset.for = place.q;
    draw();
    if (partly) rereading = setTimeout(() => load({ stay: true }), REREAD_MS);
  } catch (error) {
    if (error.name === "AbortError") return;
    starting = false;
    total = 0;
    rows.style.setProperty("height", "0px");
    replace(rows);
    replace(found, el("span", { class: "bad" }, error.message));
  }
}

const pageAt = (at) => Math.max(0, Math.floor(at / PAGE));

/** Selects the row of that episode wherever it has moved to, and scrolls with it; other rows may have come before it. */
function followRow(n) {
  for (const [number, page] of pages) {
    const at = page.rows?.findIndex((row) => row.n === n) ?? -1;
    if (at < 0) continue;
    const now = number * PAGE + at;
    if (list.scrollTop > 0) list.scrollTop += (now - selected) * ROW;
    selected = now;
    return;
  }
  selected = Math.min(selected, Math.max(0, total - 1));
}

function fetchPage(number) {
  if (!pages.has(number)) {
    pages.set(
      number,
      ask(`${asked()}&offset=${number * PAGE}`, { signal: abort.signal }).then((page) => {
        pages.set(number, page);
        return page;
      }),
    );
  }
  return Promise.resolve(pages.get(number));
}

function rowAt(at) {
  const page = pages.get(Math.floor(at / PAGE));
  return page && page.rows ? page.rows[at % PAGE] : null;
}

function draw() {
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
  const last = Math.min(total, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 4);
  const mine = pages;
  const shown = new Map();
  for (let at = first; at < last; at++) {
    const row = rowAt(at);
    if (row) shown.set(at, drawn.get(at)?.row === row ? drawn.get(at) : { row, element: make(row, at) });
    else fetchPage(Math.floor(at / PAGE)).then(() => mine === pages && schedule(), () => {});
  }
  drawn = shown;
  for (const [at, { row, element }] of shown) {
    element.classList.toggle("selected", at === selected);
    element.classList.toggle("current", String(row.n) === place.n);
    element.setAttribute("aria-selected", String(at === selected));
  }
  arrange(rows, total ? [...shown.values()].map(({ element }) => element) : [el("p", { class: "empty soft" }, nothing())]);
  if (selected >= first && selected < last) list.setAttribute("aria-activedescendant", `row-${selected}`);
  else list.removeAttribute("aria-activedescendant");
}

/** Words for an empty list. Iteration 0 of a curve is an evaluation, and its episodes are in no store. */
function nothing() {
  if (!/(^|\s)iteration[:=]0(\s|$)/.test(place.q)) return "nothing matches";
  return "Iteration 0 is the policy before practice, so it has no episodes of practice. It was evaluated on held-out tasks: their episodes are not kept, only whether each task was solved, in heldout.jsonl.";
}

function make(row, at) {
  const pair = row.other !== undefined;
  return el(
    "a",
    {
      class: "row",
      id: `row-${at}`,
      role: "option",
      tabindex: "-1", // the list is one stop of the tab key: its keys move between rows, most of which do not exist
      href: `#n=${row.n}`,
      style: { top: `${at * ROW}px` },
      on: {
        click(event) {
          event.preventDefault();
          selected = at;
          open(row);
        },
      },
    },
    el("span", { class: "name" }, el("bdi", {}, row.task)),
    badge(row.score, row.outcome),
    pair && badge(row.other.score, row.other.outcome),
    el(
      "span",
      { class: "about" },
      row.version !== null && el("span", {}, `iteration ${row.version + 1}`),
      row.trial > 0 && el("span", {}, `trial ${row.trial}`),
      row.attempt > 0 && el("span", {}, `attempt ${row.attempt}`),
      row.outcome !== "scored" && el("span", { class: row.score === null ? "warn" : "" }, row.outcome),
      row.branches > 0 && el("span", {}, count(row.branches, "branch", "branches")),
      pair ? el("span", {}, `${row.steps} and ${row.other.steps} steps`) : el("span", {}, count(row.steps, "step")),
      !pair && el("span", {}, seconds(row.seconds)),
      row.errors > 0 && el("span", { class: "bad" }, count(row.errors, "error")),
      row.verdicts.map((verdict) => el("span", { class: `tag ${verdict === "pass" ? "good" : "bad"}` }, verdict)),
      row.labels.map((label) => el("span", { class: "tag label" }, el("bdi", {}, label))),
      row.noted === 1 && el("span", { class: "tag label", title: "has a note or a verdict of a person" }, "✎"),
      row.reason !== "" && el("bdi", { class: "why" }, row.reason),
    ),
  );
}

let scheduled = false;
function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    draw();
  });
}

list.addEventListener("scroll", schedule, { passive: true });
new ResizeObserver(schedule).observe(list);

function open(row) {
  clearTimeout(opening);
  go({ n: row.n, other: row.other ? row.other.n : "", tree: "" });
}

/** Selects the row `by` rows further and shows it, once it has stood for a moment. */
export async function move(by) {
  if (!total) return;
  await select(Math.min(total - 1, Math.max(0, selected + by)));
}

export async function select(at) {
  const mine = pages;
  selected = at < 0 ? total - 1 : Math.min(at, total - 1);
  const top = selected * ROW;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
  await fetchPage(Math.floor(selected / PAGE));
  if (mine !== pages) return;
  draw();
  clearTimeout(opening);
  const row = rowAt(selected);
  opening = setTimeout(() => go({ n: row.n, other: row.other ? row.other.n : "", tree: "" }, { quietly: true }), 60);
}

/** Opens the selected row now. */
export function enter() {
  const row = rowAt(selected);
  if (row) open(row);
  return Boolean(row);
}

/** Marks the row that is open. */
export function mark() {
  schedule();
}

