// The tree of a task: steps are nodes with the mean score of the leaves below them, edges have the names of the actions.
// Below it the leaves, with what each has changed in the world since it branched off. Two of them can be put side by side.

import { ask } from "./ask.js";
import { badge, brief, count, el, number, replace, seen, signed } from "./dom.js";
import { go, place } from "./state.js";
import { card, changes } from "./steps.js";

const START = 56; // pixels before the first step
const STEP = 136; // of a step
const ROW = 62; // of a leaf
const PILL = 22; // from the end of a step to the middle of its value
const UNDER = 11; // from the middle of a value to its lower edge

export async function treePage(signal) {
  const tree = await ask(`api/episodes/${place.n}/tree`, { signal });
  const picked = [];
  const chosen = { at: Math.max(0, tree.presets.indexOf(place.credit)), name: "", redraws: [], step: null };
  chosen.name = tree.presets[chosen.at];
  const choose = (at) => {
    Object.assign(chosen, { at, name: tree.presets[at] });
    go({ credit: chosen.name }, { quietly: true });
    for (const draw of chosen.redraws) draw();
    chosen.step?.();
  };
  const panel = el("section", { class: "treestep", "aria-live": "polite" }, el("p", { class: "soft" }, "Choose a step to see what it did, or two leaves to put them side by side."));
  const pick = (leaf) => {
    const at = picked.indexOf(leaf.n);
    if (at >= 0) picked.splice(at, 1);
    else picked.push(leaf.n);
    if (picked.length === 2) {
      const [n, other] = [...picked].sort((a, b) => a - b);
      go({ n, other, tree: "" });
      return;
    }
    for (const each of document.querySelectorAll("[data-leaf]")) each.setAttribute("aria-pressed", String(picked.includes(Number(each.dataset.leaf))));
  };
  return [heading(tree, chosen, choose), el("div", { class: "tree", tabindex: "0", role: "region", "aria-label": "Tree" }, drawing(tree, panel, pick, chosen)), panel, leaves(tree, pick)];
}

/** The preset whose advantages are shown; a choice if several are stored. */
function presets(tree, chosen, choose) {
  if (tree.presets.length === 1) return brief(chosen.name);
  const made = el("select", { "aria-label": "preset", on: { change: () => choose(Number(made.value)) } }, tree.presets.map((preset, at) => el("option", { value: at, selected: at === chosen.at }, brief(preset, 60))));
  return [made, tree.total_presets > tree.presets.length && ` the first ${tree.presets.length} of ${tree.total_presets}`];
}

function heading(tree, chosen, choose) {
  const facts = [
    ["leaves", tree.total],
    ["of them solved", `${tree.solved} of ${tree.scored} scored`],
    ["steps played", `${tree.steps}, on paths of ${tree.path_steps}`],
    tree.presets.length > 0 && ["advantages by", presets(tree, chosen, choose)],
  ].filter(Boolean);
  return el(
    "section",
    { class: "heading" },
    el("h1", {}, el("bdi", {}, brief(tree.task)), " ", el("small", {}, `trial ${tree.trial}, tree of ${count(tree.total, "leaf", "leaves")}`)),
    el("dl", { class: "figures" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    el("p", { class: "fine" }, "Each step shows the mean score of the leaves below it", tree.presets.length ? ", and its advantage" : "", "; Δ: it changed the world. The success of a run counts the first episode alone, which is the first row. ", el("button", { type: "button", class: "chip", on: { click: () => go({ tree: "" }) } }, "its steps")),
    tree.total > tree.leaves.length && el("p", { class: "notice" }, `the first ${tree.leaves.length} of ${tree.total} leaves are drawn; values count all`),
  );
}

/** Height of the middle of a row's edges. */
const middle = (row) => row * ROW + ROW / 2 + 4;

function drawing(tree, panel, pick, chosen) {
  const width = START + STEP * Math.max(0, ...tree.leaves.map((leaf) => leaf.shared + leaf.nodes.length)) + 150;
  const whole = tree.leaves[0]?.nodes.length ? mean(tree) : null;
  return el(
    "div",
    { class: "treebox", style: { width: `${width}px`, height: `${tree.leaves.length * ROW}px` } },
    el("span", { class: `pill start ${kind(whole)}`, style: { left: "0px", top: `${middle(0)}px` }, title: "mean score of all leaves" }, number(whole)),
    tree.leaves.map((leaf, row) => [
      leaf.parent !== null && el("i", { class: "elbow", "aria-hidden": "true", style: elbow(leaf, row) }),
      leaf.nodes.map((node) => nodeButton(leaf, node, row, panel, chosen)),
      el(
        "button",
        { type: "button", class: `leaf${leaf.n === Number(place.n) ? " self" : ""}`, "aria-pressed": "false", "data-leaf": leaf.n, title: `${name(leaf)}, ${leaf.outcome}: ${leaf.reason}`, style: { left: `${START + STEP * (leaf.shared + leaf.nodes.length) + 8}px`, top: `${middle(row)}px` }, on: { click: () => pick(leaf) } },
        badge(leaf.score, leaf.outcome),
        el("span", { class: "fine" }, leaf.problem ? "cannot be read" : leaf.stopped ? `${leaf.branch || "first"}, stopped` : leaf.branch || "first"),
      ),
    ]),
  );
}

/** The line from the step that a leaf goes on from down to its own row. */
function elbow(leaf, row) {
  const left = leaf.shared ? START + STEP * leaf.shared - PILL : 22;
  const end = START + STEP * leaf.shared;
  return { left: `${left}px`, top: `${middle(leaf.parent) + UNDER}px`, width: `${end - left}px`, height: `${middle(row) - middle(leaf.parent) - UNDER}px` };
}

function nodeButton(leaf, node, row, panel, chosen) {
  const names = node.names.join(", ") || "message";
  const under = el("span", { class: "fine under" });
  const made = el(
    "button",
    {
      type: "button",
      class: `node${node.error ? " failed" : ""}`,
      style: { left: `${START + STEP * node.at}px`, top: `${row * ROW}px` },
      on: { click: () => showStep(made, leaf, node, panel, chosen) },
    },
    el("span", { class: "act" }, el("bdi", {}, brief(names, 60))),
    el("i", { class: "edge", "aria-hidden": "true" }),
    el("span", { class: `pill ${kind(node.value)}` }, number(node.value)),
    under,
  );
  const draw = () => {
    const advantage = node.advantages[chosen.at] ?? null;
    const given = advantage === null ? "" : `, advantage ${signed(advantage)}`;
    made.title = seen(`step ${node.at} of ${name(leaf)}: ${names}; mean score ${number(node.value)} of ${count(node.leaves, "leaf", "leaves")}${given}`);
    replace(under, node.changed && el("b", { class: "delta" }, "Δ"), advantage !== null && el("span", { class: advantage > 0 ? "good" : advantage < 0 ? "bad" : "" }, signed(advantage)), node.error && el("span", { class: "bad" }, "error"));
  };
  draw();
  chosen.redraws.push(draw);
  return made;
}

let wanted = 0;

async function showStep(button, leaf, node, panel, chosen) {
  chosen.step = () => showStep(button, leaf, node, panel, chosen);
  for (const each of button.parentElement.querySelectorAll(".node.current")) each.classList.remove("current");
  button.classList.add("current");
  const mine = (wanted += 1);
  try {
    const found = await ask(`api/episodes/${leaf.n}`);
    if (mine !== wanted) return;
    const episode = { ...found, credits: found.credits.filter(({ preset }) => preset === chosen.name) };
    const step = episode.steps[node.at];
    replace(panel, el("h2", {}, `Step ${node.at} of ${name(leaf)}`), card(episode, step, episode.steps[node.at - 1], step.agent_s + step.tool_s));
  } catch (error) {
    replace(panel, el("p", { class: "bad" }, error.message));
  }
}

function leaves(tree, pick) {
  return el(
    "section",
    { class: "leaves" },
    el("h2", {}, "Leaves, and what each changed in the world"),
    tree.leaves.map((leaf) =>
      el(
        "article",
        { class: "leafrow" },
        el(
          "header",
          {},
          el("button", { type: "button", class: "chip", "aria-pressed": "false", "data-leaf": leaf.n, title: "choose two to put them side by side", on: { click: () => pick(leaf) } }, "side by side"),
          badge(leaf.score, leaf.outcome),
          el("a", { href: `#n=${leaf.n}`, on: { click(event) { event.preventDefault(); go({ n: leaf.n, other: "", tree: "" }); } } }, name(leaf)),
          el("span", { class: "fine" }, leaf.parent === null ? count(leaf.length, "step") : `shares ${count(leaf.shared, "step")} with ${name(tree.leaves[leaf.parent])}, then ${leaf.length - leaf.shared} of its own`, leaf.stopped && "; stopped by the search: its score counts in no value"),
          el("span", { class: "fine why" }, el("bdi", {}, leaf.reason)),
        ),
        leaf.problem && el("p", { class: "bad" }, leaf.problem),
        worldOf(leaf),
      ),
    ),
  );
}

function worldOf(leaf) {
  if (leaf.changes === null) return el("p", { class: "fine" }, leaf.length > leaf.shared ? "its servers tell no state" : "no step of its own");
  if (!leaf.changes.unknown && !leaf.changes.count) return el("p", { class: "fine" }, leaf.parent === null ? "left the world as it was" : "left the world as it was where it branched off");
  return changes(leaf.changes);
}

function mean(tree) {
  const scored = tree.leaves.filter((leaf) => !leaf.stopped).map((leaf) => leaf.score).filter((score) => score !== null);
  return tree.leaves.length === tree.total && scored.length ? scored.reduce((sum, score) => sum + score, 0) / scored.length : null;
}

/** "first episode" or "branch 2.1". */
export function name(leaf) {
  return leaf.branch === "" ? "first episode" : `branch ${brief(leaf.branch, 40)}`;
}

function kind(value) {
  return value === null ? "none" : value >= 1 ? "good" : value > 0 ? "part" : "bad";
}
