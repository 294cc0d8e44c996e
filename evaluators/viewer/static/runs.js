// The list of runs: a table that sorts by every column, is filtered by words, and follows runs that grow.

import { ask, exported, hasPair, hasRun, runAddress } from "./ask.js";
import { asOf, brief, closing, count, el, replace, seconds, tableName } from "./dom.js";
import { money, netOfPrice, success, successFigure, tokens } from "./figures.js";
import { drawMatrix, matrixKey } from "./matrix.js";
import { follow, go, nextTheme, place, read } from "./state.js";
import { drawSuites } from "./suites.js";

const $ = (id) => document.getElementById(id);
const EVERY = 2000; // milliseconds between two questions for news

let list = { version: 0, folders: [], problems: [], runs: [], unread: 0 };
let chosen = []; // numbers of at most two runs, to be put side by side
let focus = 0; // place of the row, or of the link, that keys act on

function outcomesCell(run) {
  const others = Object.entries(run.outcomes).filter(([name]) => name !== "scored");
  if (!others.length) return el("span", { class: "soft" }, run.outcomes.scored ? "all scored" : "–");
  return others.map(([name, episodes], at) => [at ? ", " : "", el("span", { class: "warn nowrap" }, `${episodes.toLocaleString("en")} ${name}`)]);
}

function started(run) {
  if (!run.started) return "";
  const time = new Date(run.started);
  return Number.isNaN(time.getTime()) ? run.started : `${time.toISOString().slice(0, 10)} ${time.toISOString().slice(11, 16)}`;
}

const MEASURED = { model_latency: "decision", request_latency: "request", first_token_latency: "first token", tool_latency: "call" };

const latency = (part, key) => ({
  value: (run) => run[part]?.[key] ?? null,
  cell: (run) => (run[part] ? el("span", { class: "nowrap", title: `of ${count(run[part].count, MEASURED[part])} in ${count(run.timed_episodes, "episode")}` }, seconds(run[part][key])) : el("span", { class: "soft" }, "–")),
});

const COLUMNS = [
  { key: "model", name: "model", text: true, value: (run) => run.model || run.agent, cell: nameCell },
  { key: "folder", name: "folder", below: "folder", text: true, value: (run) => run.label, cell: (run) => el("span", { class: "mono soft" }, el("bdi", {}, brief(run.label, 120))) },
  { key: "agent", name: "agent", text: true, value: (run) => run.agent, cell: (run) => tableName(run.agent, 60) },
  { key: "suite", name: "suite", text: true, value: (run) => run.suite || run.env, cell: (run) => tableName(run.suite || run.env, 60, { title: run.env }) },
  { key: "success", name: "success", says: "share of scored episodes with a full score, with its 95 % interval", value: (run) => success(run).value, cell: successFigure },
  { key: "net", name: "net of price", says: "mean score less what questions or calls cost", measured: true, value: (run) => (netOfPrice(run) ? run.net_of_price : null), cell: (run) => (netOfPrice(run) ? el("span", { class: "nowrap" }, netOfPrice(run)) : el("span", { class: "soft" }, "–")) },
  { key: "episodes", name: "episodes", value: (run) => run.episodes, cell: (run) => [run.episodes.toLocaleString("en"), run.running && el("span", { class: "tag live", title: "a process works on this run" }, "running"), run.iterations !== null && el("span", { class: "fine below nowrap" }, count(run.iterations, "iteration"))] },
  { key: "outcomes", name: "outcomes", says: "episodes without a score, by outcome", value: (run) => run.episodes - (run.outcomes.scored ?? 0), cell: outcomesCell },
  { key: "started", name: "started", says: "UTC", value: (run) => run.started || null, cell: (run) => (started(run) || "–").split(" ").map((part, at) => [at ? " " : "", el("span", { class: "nowrap" }, part)]) },
  { key: "cost", name: "cost", says: "of models and tools, all attempts, in the currency of the price list", value: (run) => run.cost, cell: (run) => (run.cost ? money(run.cost) : el("span", { class: "soft" }, "–")) },
  { key: "tokens", name: "tokens", says: "read and written by models, all attempts", value: (run) => run.prompt_tokens + run.completion_tokens, cell: (run) => (run.prompt_tokens + run.completion_tokens ? el("span", { class: "nowrap", title: `${run.prompt_tokens.toLocaleString("en")} read, ${run.completion_tokens.toLocaleString("en")} written` }, tokens(run.prompt_tokens + run.completion_tokens)) : el("span", { class: "soft" }, "–")) },
  { key: "model50", name: "decision p50", says: "median of the agent's time for one decision", ...latency("model_latency", "p50_s") },
  { key: "model95", name: "decision p95", below: "p95", says: "95 % of decisions took at most this long", ...latency("model_latency", "p95_s") },
  { key: "request50", name: "request p50", says: "median time of one request to the model, without retries and waiting in the client", measured: true, ...latency("request_latency", "p50_s") },
  { key: "request95", name: "request p95", below: "p95", says: "95 % of requests to the model took at most this long", measured: true, ...latency("request_latency", "p95_s") },
  { key: "first50", name: "first token p50", says: "median time from a request to its first token, where it was measured", measured: true, ...latency("first_token_latency", "p50_s") },
  { key: "first95", name: "first token p95", below: "p95", says: "95 % of first tokens came within this time", measured: true, ...latency("first_token_latency", "p95_s") },
  { key: "speed", name: "tokens/s", says: "tokens that the model wrote per second of its requests", measured: true, value: (run) => run.tokens_per_s ?? null, cell: (run) => (run.tokens_per_s ? el("span", { title: `in ${count(run.timed_episodes, "episode")}` }, run.tokens_per_s.toFixed(run.tokens_per_s < 10 ? 1 : 0)) : el("span", { class: "soft" }, "–")) },
  { key: "tool50", name: "tool p50", says: "median time of one tool call", ...latency("tool_latency", "p50_s") },
  { key: "tool95", name: "tool p95", below: "p95", says: "95 % of tool calls took at most this long", ...latency("tool_latency", "p95_s") },
];
const FOLDER = COLUMNS.find((column) => column.key === "folder");

/** The columns of the table, each with those below it in one cell. Without those that only some runs have recorded, if none of them is here. */
function columnsOf(runs) {
  const groups = [];
  for (const column of COLUMNS.filter((each) => !each.measured || runs.some((run) => each.value(run) !== null))) {
    if (column.below) groups.at(-1).push(column);
    else groups.push([column]);
  }
  return groups;
}

function belowCell(column, run) {
  return column.value(run) !== null && el("span", { class: "fine below", "data-label": column.below }, column.cell(run));
}

function nameCell(run) {
  if (!hasRun(run.number)) return el("span", { class: "runname" }, tableName(run.model || run.agent || run.label, 80));
  return el("a", { class: "runname", href: runAddress(run.number), tabindex: "-1", on: { click: remember } }, tableName(run.model || run.agent || run.label, 80));
}

/** Keeps the place in the list for the way back from a run. */
function remember() {
  try {
    sessionStorage.setItem("gymcp-list", location.hash);
  } catch {
    // a browser that stores nothing goes back to the beginning of the list
  }
}

// ------------------------------------------------------------------------------------------------------- filter and order

function words(run) {
  return [run.model, run.policy, run.agent, run.env, run.suite, run.label, run.started, run.problem, ...Object.keys(run.outcomes ?? {}), run.running ? "running" : "", run.problem ? "broken" : "", run.iterations !== null && run.iterations !== undefined ? "training" : ""].join("\n").toLowerCase();
}

/** The runs that hold every word of the query, and none that it excludes; in the order that was asked for. */
export function shownRuns() {
  const asked = place.q.toLowerCase().split(/\s+/).filter(Boolean);
  const found = list.runs.filter((run) => {
    const has = words(run);
    return asked.every((word) => (word.startsWith("-") && word.length > 1 ? !has.includes(word.slice(1)) : has.includes(word)));
  });
  const down = place.sort.startsWith("-");
  const column = COLUMNS.find((each) => each.key === place.sort.replace(/^-/, ""));
  if (!column) return found;
  const keyed = found.map((run) => ({ run, key: run.readable ? column.value(run) : null }));
  const empty = (key) => key === null || key === undefined || key === "";
  keyed.sort((a, b) => {
    if (a.run.readable !== b.run.readable) return a.run.readable ? -1 : 1;
    if (empty(a.key) || empty(b.key)) return Number(empty(a.key)) - Number(empty(b.key)) || a.run.number - b.run.number;
    const order = column.text ? String(a.key).localeCompare(String(b.key), "en", { numeric: true }) : a.key < b.key ? -1 : a.key > b.key ? 1 : 0;
    return (down ? -order : order) || a.run.number - b.run.number;
  });
  return keyed.map(({ run }) => run);
}

function sortBy(column) {
  const first = column.text ? column.key : `-${column.key}`;
  const second = column.text ? `-${column.key}` : column.key;
  go({ sort: place.sort === first ? second : first }, { quietly: true });
}

// --------------------------------------------------------------------------------------------------------------- the table

function drawTable() {
  const runs = shownRuns();
  focus = Math.max(0, Math.min(focus, runs.length - 1));
  const active = document.activeElement?.closest?.("tr")?.dataset.number;
  const header = document.activeElement?.closest?.("th button")?.dataset.key;
  const columns = columnsOf(list.runs);
  const down = place.sort.startsWith("-");
  const isSorted = (column) => place.sort.replace(/^-/, "") === column.key;
  const head = (column) =>
    el(
      "button",
      { type: "button", title: column.says ?? null, "data-key": column.key, "aria-label": column.below ? column.name : null, on: { click: () => sortBy(column) } },
      column.below ?? column.name,
      el("span", { class: "mark", "aria-hidden": "true" }, isSorted(column) ? (down ? " ↓" : " ↑") : ""),
    );
  const heads = columns.map((group) => el("th", { scope: "col", class: group[0].text ? "" : "figure", "aria-sort": group.some(isSorted) ? (down ? "descending" : "ascending") : null }, group.map(head)));
  replace(
    $("table"),
    el(
      "table",
      { class: "runtable" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, el("span", { class: "aside" }, "side by side")), heads)),
      el("tbody", {}, runs.map((run, at) => row(run, at, columns))),
    ),
    !runs.length && el("p", { class: "empty soft" }, list.runs.length ? "no run matches the filter" : "no run was found"),
  );
  if (active !== undefined) $("table").querySelector(`tr[data-number="${active}"]`)?.focus({ preventScroll: true });
  if (header !== undefined) $("table").querySelector(`th button[data-key="${header}"]`)?.focus({ preventScroll: true });
}

function row(run, at, columns) {
  const open = (event) => {
    if (event.target.closest("a, input, button, label") || String(getSelection()) || !hasRun(run.number)) return;
    remember();
    if (event.ctrlKey || event.metaKey) window.open(runAddress(run.number));
    else location.assign(runAddress(run.number));
  };
  const box = run.readable && hasRun(run.number) && el("input", { type: "checkbox", checked: chosen.includes(run.number), "aria-label": `put ${run.model || run.agent || run.label} side by side`, on: { change: () => choose(run.number) } });
  const attributes = { "data-number": run.number, tabindex: at === focus ? "0" : "-1", class: run.problem ? "broken" : "", on: { click: open, focus: () => { focus = at; } } };
  const rest = (words, kind) => el("td", { colspan: columns.length - 1, class: kind }, words);
  if (run.unread) return el("tr", attributes, el("td"), el("td", { "data-label": "model" }, FOLDER.cell(run)), rest("reading …", "soft"));
  if (!run.readable) return el("tr", attributes, el("td"), el("td", { "data-label": "model" }, nameCell(run), (run.model || run.agent) && belowCell(FOLDER, run)), rest(run.problem, "bad problem"));
  return el(
    "tr",
    attributes,
    el("td", {}, box),
    columns.map(([column, ...others], place) => el("td", { class: column.text ? "" : "figure", "data-label": column.name }, column.cell(run), others.map((other) => belowCell(other, run)), place === 0 && run.problem && el("span", { class: "warn below fine" }, run.problem))),
  );
}

function choose(number) {
  chosen = chosen.includes(number) ? chosen.filter((each) => each !== number) : [...chosen, number].slice(-2);
  drawTools();
  drawTable();
}

function besides() {
  if (chosen.length !== 2 || !hasPair(...chosen)) return;
  remember();
  location.assign(`${runAddress(...chosen)}#view=pairs`);
}

// ------------------------------------------------------------------------------------------------------------ the rest of it

function drawBar() {
  const tab = (view, name) => el("button", { type: "button", class: place.view === view ? "current" : "", "aria-current": place.view === view ? "page" : null, on: { click: () => go({ view }) } }, name);
  replace($("runs"), tab("", "runs"), tab("suites", "suites × models"), tab("tasks", "tasks × runs"));
  replace($("headline"), list.unread ? `reading ${count(list.unread, "run")} …` : [count(list.runs.length, "run"), list.made && el("span", { class: "soft" }, ` · ${asOf(list.made)}`)]);
  replace($("problems"), list.problems.map((problem) => el("p", {}, problem)));
}

function drawTools() {
  const tools = $("tools");
  if (!tools.firstChild) {
    const search = el("input", { id: "search", type: "search", placeholder: "filter runs   /", "aria-label": "Filter runs by words: model, agent, suite, folder, outcome", autocomplete: "off", spellcheck: "false", value: place.q });
    search.addEventListener("input", () => go({ q: search.value.trim() }, { quietly: true }));
    const order = el("select", { id: "order", "aria-label": "order", on: { change: () => go({ sort: order.value }, { quietly: true }) } });
    replace(order, el("option", { value: "" }, "by folder"), COLUMNS.map((column) => [el("option", { value: column.key }, `${column.name} ↑`), el("option", { value: `-${column.key}` }, `${column.name} ↓`)]));
    tools.append(search, order, el("span", { id: "found", role: "status" }), el("button", { id: "besides", type: "button", on: { click: besides } }, "side by side"));
  }
  if ($("search") !== document.activeElement || !place.q) $("search").value = place.q;
  $("order").value = place.sort;
  $("besides").hidden = place.view !== "" || chosen.length === 0;
  $("besides").disabled = chosen.length !== 2 || !hasPair(...chosen);
  replace($("besides"), chosen.length !== 2 ? "choose one more" : hasPair(...chosen) ? "side by side" : "this pair is not in the export");
}

let drawn = "";
async function draw() {
  const began = performance.now();
  drawBar();
  drawTools();
  for (const view of ["tasks", "suites"]) document.body.classList.toggle(view, place.view === view);
  const asked = { runs: shownRuns(), version: list.version, remember, reached: (at) => { focus = at; } };
  if (place.view === "tasks") await drawMatrix($("table"), asked);
  else if (place.view === "suites") await drawSuites($("table"), asked);
  else drawTable();
  if (drawn !== place.view) $("table").scrollTo(0, 0);
  drawn = place.view;
  if (place.view === "") replace($("found"), count(shownRuns().length, "run"), el("span", { class: "soft" }, ` · ${Math.round(performance.now() - began)} ms`));
  $("found").dataset.for = place.q;
  $("found").dataset.sort = place.sort;
}

function move(to) {
  const rows = [...$("table").querySelectorAll(place.view === "suites" ? "tbody a" : "tbody tr")];
  if (!rows.length) return;
  const next = rows[Math.max(0, Math.min(rows.length - 1, to))];
  if (place.view === "") rows.forEach((each) => each.setAttribute("tabindex", each === next ? "0" : "-1"));
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

/** Goes `by` rows further, or links in the table of suites; there, first to the first. */
function step(by) {
  const at = place.view === "suites" && !document.activeElement.matches(".entry a") ? -by : focus;
  move(at + by);
}

const KEYS = [
  ["j  k  ↓  ↑", "next, previous run; in tasks × runs, arrows move by cells"],
  ["enter", "open the run, or the task's episodes in the run"],
  ["/", "filter by words; -word leaves out"],
  ["m", "runs, or tasks × runs"],
  ["s", "runs, or suites × models"],
  ["x", "choose the run for side by side; two of them, then c"],
  ["g  G", "first, last"],
  ["t", "light, dark"],
  ["?", "this"],
];
const ACTIONS = {
  j: () => step(1),
  k: () => step(-1),
  ArrowDown: () => step(1),
  ArrowUp: () => step(-1),
  g: () => move(0),
  G: () => move(Infinity),
  Enter: () => $("table").querySelector("tbody tr[tabindex='0'] a")?.click(),
  o: () => ACTIONS.Enter(),
  x: () => {
    const run = shownRuns()[focus];
    if (place.view === "" && run?.readable) choose(run.number);
  },
  c: besides,
  m: () => go({ view: place.view === "tasks" ? "" : "tasks" }),
  s: () => go({ view: place.view === "suites" ? "" : "suites" }),
  "/": () => $("search").select(),
  t: nextTheme,
  "?": () => ($("keys").open ? $("keys").close() : $("keys").showModal()),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    event.preventDefault();
    if ($("keys").open) $("keys").close();
    else if (event.target.matches("input")) event.target.blur();
    else if (place.q || place.task) go({ q: "", task: "" });
    return;
  }
  if (event.target.matches("input[type='search']")) {
    if (event.key !== "Enter" && event.key !== "ArrowDown") return;
    event.preventDefault();
    if (place.view === "tasks") document.getElementById("grid")?.focus();
    else move(0);
    return;
  }
  if (event.target.matches("select") || ($("keys").open && event.key !== "?")) return;
  if ((event.key === "Enter" || event.key === " ") && event.target.matches("button, a, input")) return;
  if (place.view === "tasks" && matrixKey(event)) return;
  const act = ACTIONS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

follow(draw);
$("theme").addEventListener("click", nextTheme);
$("help").addEventListener("click", () => ACTIONS["?"]());
$("home").addEventListener("click", (event) => {
  event.preventDefault();
  go({ q: "", sort: "", view: "", task: "" });
});
replace($("keys"), el("h2", {}, "Keys"), el("dl", {}, KEYS.map(([key, says]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, says)])), closing());

// ----------------------------------------------------------------------------------------------------------------- following

async function news() {
  try {
    const found = await ask(`api/runs?version=${list.version}`);
    if (found.runs) {
      list = found;
      await draw();
    }
  } catch (error) {
    replace($("problems"), el("p", {}, error.message));
  }
  if (!exported) setTimeout(news, document.hidden ? 5 * EVERY : list.unread ? 250 : EVERY);
}

read();
news();
