// What the run is, while no episode is open; and the keys.

import { curves, renewCurves } from "./curves.js";
import { brief, closing, el, redraw, replace } from "./dom.js";
import { successFigure } from "./figures.js";
import { go } from "./state.js";

export function overview(about, number) {
  const run = about.runs[number];
  const config = Object.entries({ ...run.config, git: run.git, started: run.created }).filter(([, value]) => value !== null && value !== "");
  return [
    el("section", { class: "heading" }, el("h1", {}, brief(run.name)), el("p", { class: "soft mono" }, run.folder)),
    run.training && curves(number),
    run.training && el("h2", {}, "Practice"),
    el("section", { class: "totals" }, totals(run)),
    el("p", { class: "soft" }, "Choose an episode on the left, or press ", el("kbd", {}, "j"), ". ", el("kbd", {}, "?"), " shows all keys."),
    el("section", { class: "tagged" }, tagged(run)),
    config.length > 0 && el("section", {}, el("h2", {}, "Where it came from"), el("dl", { class: "config" }, config.map(([name, value]) => [el("dt", {}, brief(name)), el("dd", { class: "mono" }, typeof value === "string" ? value : JSON.stringify(value))]))),
  ];
}

/** Brings an overview that is shown up to date, in place: nothing that is read, focused or scrolled moves. */
export function renewOverview(where, about, number) {
  const run = about.runs[number];
  if (!run) return;
  for (const [part, draw] of [["totals", totals], ["tagged", tagged]]) {
    const shown = where.querySelector(`.${part}`);
    if (shown) redraw(shown, () => replace(shown, draw(run)));
  }
  renewCurves(where);
}

function totals(run) {
  const scored = run.episodes - run.unscored;
  const either = "solved, if those without a score had failed .. succeeded";
  const says = run.bounds ? either : run.training ? "solved in practice, of those scored" : "solved, of those scored";
  return [
    el("div", { class: "total" }, successFigure({ ...run, held_out: null }), el("span", {}, says)),
    total(`${scored.toLocaleString("en")}/${run.episodes.toLocaleString("en")}`, "scored"),
    run.unscored > 0 && !run.bounds && total(`${((100 * run.solved) / run.episodes).toFixed(1)} .. ${((100 * (run.solved + run.unscored)) / run.episodes).toFixed(1)} %`, either),
    ...Object.entries(run.outcomes).filter(([name]) => name !== "scored").map(([name, episodes]) => total(episodes.toLocaleString("en"), name, `outcome:${name}`)),
  ];
}

function tagged(run) {
  const tags = Object.entries(run.tags);
  return tags.length > 0 && [el("h2", {}, "Tags"), el("p", { class: "tags" }, tags.map(([tag, episodes]) => el("button", { type: "button", class: "chip", on: { click: () => go({ q: `tag:"${tag}"`, n: "" }) } }, brief(tag, 60), el("span", { class: "soft" }, ` ${episodes}`))))];
}

function total(value, name, query = null) {
  return el(query ? "button" : "div", { class: "total", ...(query ? { type: "button", on: { click: () => go({ q: query }) } } : {}) }, el("b", {}, value), el("span", {}, name));
}

const KEYS = [
  ["j  k", "next, previous: episode, or step inside one"],
  ["enter", "into the episode"],
  ["esc", "back to the list; once more: out of the episode, then of the search"],
  ["/", "search"],
  ["n  p", "next, previous episode from inside one"],
  ["x", "unfold what the step changed and its tokens"],
  ["a", "the step's anchor: the same state in other episodes"],
  ["b", "the tree of an episode with branches"],
  ["c", "the other run's episode of this task, side by side"],
  ["e", "your note on the episode; ctrl+enter saves it"],
  ["r", "texts as they were written, or as markdown"],
  ["g  G", "first, last"],
  ["t", "light, dark"],
  ["?", "this"],
];
const WORDS = [
  ["refund", "in task, reason, tags, tools, or a word of the transcript that begins so"],
  ["\"not found\"", "these words in this order"],
  ["-timeout", "without"],
  ["is:failed", "solved, failed, partial, unscored, replaced"],
  ["tag:base  tool:ls  outcome:env_infra", "of one kind"],
  ["task:miss_*", "* stands for anything"],
  ["label:odd  note:why  verdict:fail  is:noted", "labels, notes and verdicts of people"],
  ["steps>10  score<0.5  errors>0", "also calls, tokens, seconds, cost, trial, branches"],
  ["iteration:5  version<3", "of a training run: episodes of an iteration, or of a version of the weights"],
];

export function help() {
  const rows = (pairs) => el("dl", {}, pairs.map(([key, says]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, says)]));
  return [el("h2", {}, "Keys"), rows(KEYS), el("h2", {}, "Search"), rows(WORDS), closing()];
}
