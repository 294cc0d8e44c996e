// Tasks x runs: a grid whose cells say how many trials of a task succeeded. Only the rows in sight exist.

import { ask, runAddress } from "./ask.js";
import { brief, count, cutInside, el, replace } from "./dom.js";
import { go, place } from "./state.js";

const ROW = 34; // pixels, as in style.css
const TASK_ENDING = 12; // characters of a name that stay in sight
const HEAD_ENDING = 5;
const ORDERS = [
  ["", "by task"],
  ["hard", "least solved first"],
  ["differ", "where runs differ most"],
];

let known = null; // what the server sent
let at = { row: 0, column: 0 };
let shown = { tasks: [], runs: [], cells: new Map() };
let order = "";
let remember = () => {};
let newest = 0; // number of the newest drawing: one that waited longer for the server draws nothing

/** Draws the grid into `where`, of these runs, in this order. */
export async function drawMatrix(where, asked) {
  remember = asked.remember;
  const number = ++newest;
  if (!known || known.version !== asked.version) {
    try {
      const found = await ask("api/matrix");
      if (number !== newest) return;
      known = found;
    } catch (error) {
      if (number !== newest) return;
      replace(where, el("p", { class: "bad notice" }, error.message));
      return;
    }
    if (place.view !== "tasks") return;
  }
  shown = choose(asked.runs);
  let grid = document.getElementById("grid");
  if (!grid) {
    const filter = el("input", { id: "taskfilter", type: "search", placeholder: "tasks", "aria-label": "Filter tasks by words", autocomplete: "off", spellcheck: "false", value: place.task });
    filter.addEventListener("input", () => go({ task: filter.value.trim() }, { quietly: true }));
    const sort = el("select", { "aria-label": "order of tasks", on: { change: () => { order = sort.value; at.row = 0; drawMatrix(where, asked); } } }, ORDERS.map(([value, says]) => el("option", { value, selected: value === order }, says)));
    grid = el("div", { id: "grid", role: "grid", tabindex: "0", "aria-label": "Tasks by runs: successes of scored trials" }, el("div", { id: "heads", role: "row", "aria-rowindex": "1" }), el("div", { id: "cells", role: "rowgroup" }));
    grid.addEventListener("scroll", schedule, { passive: true });
    grid.addEventListener("click", (event) => {
      const cell = event.target.closest("[data-row]");
      if (!cell) return;
      at = { row: Number(cell.dataset.row), column: Number(cell.dataset.column) };
      open();
    });
    new ResizeObserver(schedule).observe(grid);
    replace(where, el("div", { id: "gridtools" }, filter, sort), grid);
  }
  drawHeads(grid);
  drawRows();
  replace(document.getElementById("found"), `${count(shown.tasks.length, "task")} · ${count(shown.runs.length, "run")}`);
}

function choose(runs) {
  const byNumber = new Map(known.runs.map((run) => [run.number, run.cells]));
  const columns = runs.filter((run) => byNumber.has(run.number));
  const cells = new Map(columns.map((run) => [run.number, new Map(byNumber.get(run.number).map(([task, ...cell]) => [task, cell]))]));
  const asked = place.task.toLowerCase().split(/\s+/).filter(Boolean);
  const several = new Set(known.tasks.map((task) => task.env)).size > 1;
  const tasks = known.tasks
    .map((task, number) => ({ ...task, number, several }))
    .filter((task) => columns.some((run) => cells.get(run.number).has(task.number)) && asked.every((word) => `${task.env} ${task.task}`.toLowerCase().includes(word)));
  if (order) {
    const shares = (task) => columns.map((run) => cells.get(run.number).get(task.number)).filter((cell) => cell && cell[1]).map((cell) => cell[0] / cell[1]);
    const key = (task) => {
      const found = shares(task);
      if (!found.length) return Infinity;
      if (order === "differ") return Math.min(...found) - Math.max(...found);
      return found.reduce((sum, each) => sum + each, 0) / found.length;
    };
    const keys = new Map(tasks.map((task) => [task.number, key(task)]));
    tasks.sort((a, b) => keys.get(a.number) - keys.get(b.number) || a.number - b.number);
  }
  return { tasks, runs: columns, cells };
}

function drawHeads(grid) {
  grid.setAttribute("aria-rowcount", shown.tasks.length + 1);
  grid.setAttribute("aria-colcount", shown.runs.length + 1);
  grid.style.setProperty("--columns", shown.runs.length);
  document.getElementById("cells").style.setProperty("height", `${shown.tasks.length * ROW}px`);
  replace(
    document.getElementById("heads"),
    el("div", { class: "corner", role: "columnheader" }, "task"),
    shown.runs.map((run) =>
      el("a", { class: "head", role: "columnheader", tabindex: "-1", href: runAddress(run.number), title: `${[run.model, run.agent, run.suite].filter(Boolean).join(" · ")}\n${run.label}`, on: { click: remember } }, cutInside(brief(run.model || run.agent || run.label, 40), HEAD_ENDING), el("span", { class: "fine" }, cutInside(brief(run.model ? run.agent : run.label, 40), HEAD_ENDING)), run.upper_bound && el("span", { class: "fine", title: run.upper_bound }, "upper bound")),
    ),
  );
}

function drawRows() {
  const grid = document.getElementById("grid");
  const rows = document.getElementById("cells");
  if (!grid) return;
  at = { row: Math.max(0, Math.min(at.row, shown.tasks.length - 1)), column: Math.max(0, Math.min(at.column, shown.runs.length - 1)) };
  const first = Math.max(0, Math.floor(grid.scrollTop / ROW) - 4);
  const last = Math.min(shown.tasks.length, Math.ceil((grid.scrollTop + grid.clientHeight) / ROW) + 4);
  const made = [];
  for (let row = first; row < last; row++) {
    const task = shown.tasks[row];
    made.push(
      el(
        "div",
        { class: "gridrow", role: "row", "aria-rowindex": row + 2, style: { top: `${row * ROW}px` } },
        el("div", { class: "task", role: "rowheader", title: `${task.env}: ${task.task}` }, task.several && el("span", { class: "soft" }, brief(task.env, 30), " · "), cutInside(brief(task.task, 120), TASK_ENDING)),
        shown.runs.map((run, column) => cell(shown.cells.get(run.number).get(task.number), row, column)),
      ),
    );
  }
  replace(rows, shown.tasks.length ? made : el("p", { class: "empty soft" }, known.tasks.length ? "no task matches" : "no episode has been read yet"));
  grid.setAttribute("aria-activedescendant", `cell-${at.row}-${at.column}`);
}

function cell(found, row, column) {
  const current = row === at.row && column === at.column;
  const attributes = { id: `cell-${row}-${column}`, role: "gridcell", "data-row": row, "data-column": column };
  if (!found) return el("div", { ...attributes, class: `cell${current ? " at" : ""}` }, el("span", { class: "aside" }, "not played"));
  const [solved, scored, episodes] = found;
  const kind = !scored ? "none" : solved === scored ? "good" : solved ? "part" : "bad";
  const says = scored ? `${solved} of ${scored} scored trials solved` : "no trial has a score";
  return el("div", { ...attributes, class: `cell ${kind}${current ? " at" : ""}`, title: episodes > scored ? `${says}; ${episodes - scored} without a score` : says }, scored ? `${solved}/${scored}` : "lost", episodes > scored && scored ? el("span", { class: "fine" }, ` −${episodes - scored}`) : null);
}

let scheduled = false;
function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    drawRows();
  });
}

const LONGEST = 300; // characters of a task's name that the server sends

/** The query for this task's episodes: exact, or a pattern for a name that a query cannot hold. */
export function taskQuery(task) {
  const whole = task.length < LONGEST && !/["\ud800-\udfff]/u.test(task);
  return whole ? `task="${task}"` : `task:"${task.replace(/["\ud800-\udfff]/gu, "*").replaceAll("[", "?")}*"`;
}

function open() {
  const run = shown.runs[at.column];
  const task = shown.tasks[at.row];
  if (!run || !task || !shown.cells.get(run.number).has(task.number)) {
    drawRows();
    return;
  }
  remember();
  location.assign(`${runAddress(run.number)}#${new URLSearchParams({ q: taskQuery(task.task) })}`);
}

/** Acts on a key in the grid; false if it has no meaning there. */
export function matrixKey(event) {
  const grid = document.getElementById("grid");
  if (!grid) return false;
  const page = Math.max(1, Math.floor(grid.clientHeight / ROW) - 2);
  const moves = { ArrowDown: [1, 0], j: [1, 0], ArrowUp: [-1, 0], k: [-1, 0], ArrowRight: [0, 1], l: [0, 1], ArrowLeft: [0, -1], h: [0, -1], PageDown: [page, 0], PageUp: [-page, 0], Home: [0, -1e9], End: [0, 1e9], g: [-1e9, 0], G: [1e9, 0] };
  if (event.key === "Enter" || event.key === "o") {
    event.preventDefault();
    open();
    return true;
  }
  if (!moves[event.key]) return false;
  event.preventDefault();
  grid.focus({ preventScroll: true });
  at = { row: Math.max(0, Math.min(shown.tasks.length - 1, at.row + moves[event.key][0])), column: Math.max(0, Math.min(shown.runs.length - 1, at.column + moves[event.key][1])) };
  const top = at.row * ROW;
  const room = grid.clientHeight - document.getElementById("heads").offsetHeight;
  if (top < grid.scrollTop) grid.scrollTop = top;
  else if (top + ROW > grid.scrollTop + room) grid.scrollTop = top + ROW - room;
  drawRows();
  document.getElementById(`cell-${at.row}-${at.column}`)?.scrollIntoView({ block: "nearest", inline: "nearest" });
  return true;
}
