// The page: its bar, its search, its keys, and what is shown beside the list.

import { ask, exported, listPage, prepareSearch } from "./ask.js";
import { comparePage } from "./compare.js";
import { asOf, brief, el, redraw, replace } from "./dom.js";
import { episodePage, focused, focusStep, moveStep, show } from "./episode.js";
import { successFigure } from "./figures.js";
import { enter, load, mark, move, select } from "./list.js";
import { help, overview, renewOverview } from "./overview.js";
import { follow, go, nextTheme, place, read } from "./state.js";
import { treePage } from "./tree.js";

const $ = (id) => document.getElementById(id);
const search = $("search");
const detail = $("detail");
let about = null;
let started = false;
let inside = false; // whether keys go to the steps of the episode instead of the list

const CHIPS = [
  ["all", "", "episodes"],
  ["solved", "is:solved", "solved"],
  ["failed", "is:failed", "failed"],
  ["unscored", "is:unscored", "unscored"],
];
const SORTS = [
  ["", "as recorded"],
  ["newest", "newest first"],
  ["score", "worst first"],
  ["best", "best first"],
  ["task", "by task"],
  ["steps", "most steps"],
  ["calls", "most calls"],
  ["tokens", "most tokens"],
  ["seconds", "slowest"],
];
const TRAINING_SORTS = [...SORTS, ["iteration", "last iteration first"]];
const SIDES = [
  ["", "where the scores differ"],
  ["all", "all tasks"],
];

// -------------------------------------------------------------------------------------------------------------- the bar

/** The way back to the list of runs, as it was left. */
function listAddress() {
  try {
    return `${listPage}${sessionStorage.getItem("gymcp-list") ?? ""}`;
  } catch {
    return listPage;
  }
}

/** The name of a run; those of its parts that all runs have, and the dots beside them, are marked: a phone leaves them out. */
function tabName(run) {
  const parts = brief(run.name, 60).split(" · ");
  const others = about.runs.filter((each) => each.name !== run.name).map((each) => brief(each.name, 60).split(" · "));
  const alike = parts.map((part) => others.length > 0 && others.every((other) => other.includes(part)));
  const first = alike.indexOf(false);
  return el("span", { class: "tabname" }, parts.map((part, at) => [at > 0 && el("span", { class: first >= 0 && first < at && !alike[at] ? "" : "common" }, " · "), el("span", { class: alike[at] ? "common" : "" }, part)]));
}

function drawBar() {
  if (about.listed) {
    $("home").setAttribute("href", listAddress());
    $("home").title = "all runs";
    replace($("home"), "← runs");
  }
  const tabs = about.runs.map((run, at) =>
    el("button", { type: "button", class: place.view === "" && Number(place.run) === at ? "current" : "", title: [run.config.policy, run.folder].filter(Boolean).join(" · "), on: { click: () => go({ run: at, view: "", n: "", other: "", sort: "" }) } }, about.runs.length > 1 && el("span", { class: "letter" }, "AB"[at]), tabName(run)),
  );
  if (about.runs.length > 1) tabs.push(el("button", { type: "button", class: place.view === "pairs" ? "current" : "", on: { click: () => go({ view: "pairs", n: "", other: "", sort: "" }) } }, "side by side"));
  replace($("runs"), tabs);
  const run = about.runs[Number(place.run)] ?? about.runs[0];
  const scored = `${(run.episodes - run.unscored).toLocaleString("en")}/${run.episodes.toLocaleString("en")}`;
  replace($("headline"), place.view === "pairs" ? "" : [successFigure(run), !run.held_out && !run.bounds && ` solved · ${scored} scored`, about.made && el("span", { class: "soft" }, ` · ${asOf(about.made)}`)]);
  drawProblems([...about.problems, ...about.runs.flatMap((each) => each.problems)]);
  document.title = `${brief(run.name, 60)} · gymcp view`;
}

let said = "";

/** Shows the problems; the same ones are not read out again. */
function drawProblems(problems) {
  if (problems.join("\n") === said) return;
  said = problems.join("\n");
  replace($("problems"), problems.map((problem) => el("p", {}, problem)));
}

function drawFilters() {
  drawChips();
  drawSelects();
}

/** The facts of the run that is shown, and the counts of its episodes: an export may hold a part of the run. */
function counted() {
  const run = about.runs[Number(place.run)] ?? about.runs[0];
  return { run, held: run.held ?? run, sides: place.view === "pairs" };
}

function drawChips() {
  const { held, sides } = counted();
  replace(
    $("chips"),
    CHIPS.map(([name, query, key]) => {
      const on = query ? place.q.includes(query) : !CHIPS.some(([, each]) => each && place.q.includes(each));
      return el("button", { type: "button", class: `chip${on ? " on" : ""}`, "aria-pressed": String(on), on: { click: () => filter(CHIPS.map(([, each]) => each), query) } }, name, !sides && el("span", { class: "soft" }, ` ${held[key].toLocaleString("en")}`));
    }),
  );
}

function drawSelects() {
  const { run, held, sides } = counted();
  const outcomes = Object.entries(held.outcomes);
  const tags = Object.entries(held.tags);
  replace(
    $("selects"),
    outcomes.length > 1 && choice("outcome", [["", "any outcome"], ...outcomes.map(([name, episodes]) => [`outcome:${name}`, `${name} (${episodes})`])]),
    tags.length > 0 && choice("tag", [["", "any tag"], ...tags.map(([tag, episodes]) => [`tag:"${tag}"`, `${brief(tag, 60)} (${episodes})`])]),
    order(sides ? SIDES : run.training ? TRAINING_SORTS : SORTS),
    !sides && el("button", { type: "button", class: "chip whole", on: { click: () => go({ home: "1", n: "", other: "" }) } }, run.training ? "curves" : "the run"),
  );
}

function choice(name, options) {
  const queries = options.map(([query]) => query).filter(Boolean);
  const made = el("select", { "aria-label": name, on: { change: () => filter(queries, made.value) } }, options.map(([query, says]) => el("option", { value: query, selected: query !== "" && place.q.includes(query) }, says)));
  return made;
}

function order(options) {
  const made = el("select", { "aria-label": "order", on: { change: () => go({ sort: made.value }) } }, options.map(([value, says]) => el("option", { value, selected: value === place.sort }, says)));
  return made;
}

/** Takes those words out of the query and puts one in. */
function filter(out, put) {
  let query = place.q;
  for (const word of out) if (word) query = query.replace(word, "");
  go({ q: `${query.trim()} ${put}`.trim() });
}

// ------------------------------------------------------------------------------------------------------------ following

document.addEventListener("noted", () => load({ stay: true }));

follow((before) => {
  // also before it is known what the page is about: the search field is there from the start
  if (started && ["run", "view", "q", "sort"].some((key) => before[key] !== place[key])) load();
  if (!about) return;
  if (["run", "view"].some((key) => before[key] !== place[key])) drawBar();
  if (search.value.trim() !== place.q) search.value = place.q; // a space at its end stays: another word may follow
  if (["run", "view", "q"].some((key) => before[key] !== place[key])) drawFilters();
  if (["run", "view", "n", "other", "home", "tree"].some((key) => before[key] !== place[key])) drawDetail();
  mark();
});

function drawDetail() {
  document.body.classList.toggle("reading", place.n !== "" || place.home !== "");
  if (place.n === "") {
    inside = false;
    replace(detail, place.view === "pairs" ? el("p", { class: "soft notice" }, "Choose a task on the left: its episodes of both runs are put side by side, from the step where they part.") : overview(about, Number(place.run)));
  } else if (place.other !== "") show(comparePage(about));
  else if (place.tree !== "") show(treePage);
  else show(episodePage);
}

const EVERY = 2000; // milliseconds between two questions for news, while the page is visible
let late = false; // the selects are older than the rest: one of them may be open
let silent = false; // the viewer did not answer
let waiting = 0;

/** Asks whether the runs have changed, and shows what is new; an episode that is open stays as it is. */
async function news() {
  try {
    const found = await ask(`api/about?version=${about.version}`);
    const searchable = found.searchable !== about.searchable;
    about = { ...about, ...found };
    if (found.runs || silent) drawNews();
    else if (searchable && place.q) load({ stay: true }); // more transcripts of episodes that are in the list already
    if (late && !$("selects").contains(document.activeElement)) {
      late = false;
      drawSelects();
    }
    silent = false;
  } catch (error) {
    if (!silent) drawProblems([error.message]);
    silent = true;
  }
  wait();
}

function drawNews() {
  redraw($("runs"), drawBar);
  redraw($("chips"), drawChips);
  late = true;
  load({ stay: true });
  if (place.n === "" && place.view !== "pairs") renewOverview(detail, about, Number(place.run));
}

function wait() {
  clearTimeout(waiting);
  if (!exported && !document.hidden) waiting = setTimeout(news, EVERY);
}
document.addEventListener("visibilitychange", () => about && wait());

// ----------------------------------------------------------------------------------------------------------------- keys

let typing = 0;
search.addEventListener("focus", () => prepareSearch(), { once: true });
search.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => go({ q: search.value.trim() }, { quietly: true }), 50);
});
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter" || event.key === "ArrowDown") {
    event.preventDefault();
    clearTimeout(typing);
    go({ q: search.value.trim() }, { quietly: true });
    $("list").focus();
  }
});

function back() {
  if ($("keys").open) $("keys").close();
  else if (document.activeElement === search) search.blur();
  else if (inside) {
    inside = false;
    focused()?.classList.remove("focused");
    $("list").focus();
  } else if (place.tree !== "") go({ tree: "" });
  else if (place.n !== "") go({ n: "", other: "" });
  else if (place.home !== "") go({ home: "" });
  else if (place.q !== "") go({ q: "" });
  else if (about?.listed) location.assign(listAddress());
}

async function beside() {
  if (place.other !== "") return go({ other: "" });
  if (place.n === "") return undefined;
  const episode = await ask(`api/episodes/${place.n}`);
  if (episode.counterpart !== null) go({ other: episode.counterpart, ...(episode.run === 1 ? { n: episode.counterpart, other: episode.n } : {}) });
  return undefined;
}

/** Between an episode and its tree. */
function toTree() {
  if (place.tree !== "") go({ tree: "" });
  else detail.querySelector(".totree")?.click();
}

function unfold() {
  const step = focused();
  const folded = step ? [...step.querySelectorAll("details")] : [];
  const open = folded.some((each) => !each.open);
  for (const each of folded) each.open = open;
}

const ACTIONS = {
  j: () => (inside ? moveStep(1) : move(1)),
  k: () => (inside ? moveStep(-1) : move(-1)),
  ArrowDown: () => (inside ? moveStep(1) : move(1)),
  ArrowUp: () => (inside ? moveStep(-1) : move(-1)),
  g: () => (inside ? focusStep(0) : select(0)),
  G: () => (inside ? focusStep(Infinity) : select(-1)),
  n: () => move(1),
  p: () => move(-1),
  Enter: () => {
    if (inside || !enter()) return;
    inside = true;
    detail.focus();
  },
  o: () => ACTIONS.Enter(),
  "/": () => search.select(),
  e: () => detail.querySelector(".noting textarea")?.focus(),
  x: unfold,
  a: () => focused()?.querySelector("button.anchor")?.click(),
  b: toTree,
  c: beside,
  r: () => {
    const pressed = [...detail.querySelectorAll(".asis")];
    const written = pressed.some((each) => each.getAttribute("aria-pressed") === "false");
    for (const each of pressed) if ((each.getAttribute("aria-pressed") === "false") === written) each.click();
  },
  t: nextTheme,
  "?": () => ($("keys").open ? $("keys").close() : $("keys").showModal()),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    event.preventDefault();
    back();
    return;
  }
  if (event.target.matches("input, select, textarea")) return;
  if ($("keys").open && event.key !== "?") return;
  if (event.key === "Enter" && event.target.matches("button, a:not(.row), summary")) return;
  const act = ACTIONS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
detail.addEventListener("click", (event) => {
  const step = event.target.closest(".step");
  if (!step) return;
  inside = true;
  for (const each of detail.querySelectorAll(".step.focused")) each.classList.remove("focused");
  step.classList.add("focused");
});
$("list").addEventListener("focusin", () => {
  inside = false;
});

$("theme").addEventListener("click", nextTheme);
$("help").addEventListener("click", () => ACTIONS["?"]());
$("home").addEventListener("click", (event) => {
  if (about?.listed) return;
  event.preventDefault();
  go({ n: "", other: "", q: "", sort: "", home: "" });
});
replace($("keys"), help());

// ---------------------------------------------------------------------------------------------------------------- start

async function start() {
  read();
  started = true;
  search.value = place.q;
  load(); // beside what the page is about, not after it
  try {
    about = await ask("api/about");
  } catch (error) {
    replace(detail, el("p", { class: "bad notice" }, error.message));
    return;
  }
  drawBar();
  drawFilters();
  drawDetail();
  wait();
}
start();
