// An episode: what came of it, then its steps one under the other.

import { ask } from "./ask.js";
import { badge, brief, count, el, number, replace, seconds, signed } from "./dom.js";
import { notes } from "./notes.js";
import { go, place } from "./state.js";
import { call, card, text, tokens } from "./steps.js";
import { name } from "./tree.js";

const detail = document.getElementById("detail");
let abort = new AbortController();

/** Fetches and shows what the place names. */
export async function show(make) {
  abort.abort();
  abort = new AbortController();
  const mine = abort;
  try {
    const made = await make(mine.signal);
    if (mine.signal.aborted) return;
    replace(detail, made);
    detail.scrollTop = 0;
  } catch (error) {
    if (error.name !== "AbortError") replace(detail, el("p", { class: "bad notice" }, error.message));
  }
}

export async function episodePage(signal) {
  const episode = await ask(`api/episodes/${place.n}`, { signal });
  return [heading(episode), notes(episode.n), facts(episode), strip(episode), timeline(episode), sideAnswers(episode)];
}

export function heading(episode) {
  const used = episode.usage;
  const facts = [
    ["steps", episode.length],
    ["tool calls", used.tool_calls + (used.tool_errors ? `, ${used.tool_errors} failed` : "")],
    used.completion_tokens && ["tokens", `${used.prompt_tokens.toLocaleString("en")} read, ${used.completion_tokens.toLocaleString("en")} written`],
    used.cost && ["cost", number(used.cost, 4)],
    ["seed", episode.seed],
    ...Object.entries(episode.components).map(([name, value]) => [brief(name, 120), number(value)]),
  ].filter(Boolean);
  return el(
    "section",
    { class: "heading" },
    el("h1", {}, el("bdi", {}, brief(episode.task)), " ", el("small", {}, `trial ${episode.trial}`)),
    el("p", { class: "verdict" }, badge(episode.score, episode.outcome), el("span", { class: `tag ${episode.score === null ? "warn" : ""}` }, episode.outcome), episode.branch !== "" ? el("span", { class: "tag", title: "tool calls, tokens and cost are those of its own steps" }, `${name(episode)}, shares ${count(episode.shared, "step")}`) : episode.parent && el("span", { class: "tag" }, "forked"), episode.leaves > 1 && el("button", { type: "button", class: "chip totree", title: "the tree of this task (b)", on: { click: () => go({ tree: "1", other: "" }) } }, `tree of ${episode.leaves} leaves`)),
    text(episode.reason, { from: { n: episode.n, at: 0, part: "reason", item: 0 }, mono: false }),
    el("dl", { class: "figures" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    split(used),
    group(episode),
  );
}

/** Gold calls, target and tools of the task; asked for when one of them is unfolded. */
function facts(episode) {
  let answer = null;
  const fold = (name, fill) => {
    const made = el("details", { class: "facts" }, el("summary", {}, name));
    made.addEventListener("toggle", async () => {
      if (made.childElementCount > 1) return;
      const body = el("div", {}, el("span", { class: "soft" }, "…"));
      made.append(body);
      try {
        answer ??= ask(`api/episodes/${episode.n}/task`);
        replace(body, fill(await answer));
      } catch (error) {
        answer = null;
        replace(body, el("p", { class: "bad" }, error.message));
      }
    });
    return made;
  };
  return el("section", { class: "taskfacts", "aria-label": "Task" }, fold("gold calls and target", gold), fold("tools on offer", tools));
}

function gold(task) {
  if (task.unknown) return el("p", { class: "soft" }, task.unknown);
  return [
    task.gold.length === 0 && el("p", { class: "soft" }, "this task has no gold calls"),
    task.gold.map((turn, at) =>
      el(
        "div",
        { class: "goldturn" },
        task.gold.length > 1 && el("span", { class: "tag" }, `turn ${at + 1}`),
        turn.calls.map((each) => el("div", { class: "exchange" }, call(each))),
        turn.text !== "" && text(turn.text, { mono: false }),
      ),
    ),
    el("h3", {}, "target"),
    task.target === null ? el("p", { class: "soft" }, "this task has no target apart from its gold calls") : text(task.target),
  ];
}

function tools(task) {
  const empty = task.tools.every((list) => !list.count);
  if (empty) return el("p", { class: "soft" }, "no tool was on offer");
  return task.tools.map((list) => [
    task.tools.length > 1 && el("h3", {}, `from step ${list.at}`),
    el("p", { class: "fine" }, count(list.count, "tool"), list.count > list.tools.length && `, the first ${list.tools.length}`),
    list.tools.map((tool) => {
      const made = el("details", { class: "tooldef" }, el("summary", {}, el("b", {}, el("bdi", {}, brief(tool.name))), el("span", { class: "fine" }, " ", brief(typeof tool.description === "string" ? tool.description : tool.description.text, 120))));
      made.addEventListener("toggle", () => {
        if (made.childElementCount === 1) made.append(text(tool.description, { mono: false }), tool.schema === "" ? el("p", { class: "soft" }, "no schema") : text(tool.schema));
      });
      return made;
    }),
  ]);
}

const PARTS = [
  ["reset", "reset_s"],
  ["agent", "agent_s"],
  ["tools", "tool_s"],
  ["user", "user_s"],
  ["grading", "grading_s"],
  ["harness", "harness_s"],
];

function split(used) {
  const all = PARTS.reduce((sum, [, key]) => sum + used[key], 0);
  if (!all) return null;
  return el(
    "div",
    { class: "split" },
    el("div", { class: "splitbar", role: "img", "aria-label": "where the time went" }, PARTS.map(([name, key]) => el("i", { class: name, style: { width: `${((100 * used[key]) / all).toFixed(2)}%` } }))),
    el("p", { class: "fine" }, `${seconds(used.wall_s)} in all: `, PARTS.filter(([, key]) => used[key] > 0).map(([name, key]) => el("span", { class: "key" }, el("i", { class: name }), `${name} ${seconds(used[key])}`))),
  );
}

function group(episode) {
  if (episode.siblings.length < 2 || episode.branch !== "") return null;
  return el(
    "p",
    { class: "group" },
    el("span", { class: "soft" }, `group of ${episode.siblings.length}: `),
    episode.siblings.map((sibling) =>
      el(
        "button",
        { type: "button", class: `trial ${sibling.n === episode.n ? "self" : ""} ${kind(sibling.score)}`, title: `trial ${sibling.trial}, ${sibling.score === null ? "no score" : `score ${number(sibling.score)}`}`, on: { click: () => go({ n: sibling.n, other: "" }) } },
        sibling.trial,
      ),
    ),
  );
}

function kind(score) {
  return score === null ? "none" : score >= 1 ? "good" : score > 0 ? "part" : "bad";
}

/** Advantages along the steps: where in the episode the credit lies. */
function strip(episode) {
  const given = episode.credits[0];
  if (!given) return null;
  const most = Math.max(1e-9, ...given.advantages.map((value) => Math.abs(value)));
  const options = Object.entries(given.options).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
  return el(
    "section",
    { class: "strip" },
    el("p", { class: "fine" }, "advantage of each step by ", el("b", {}, given.preset), options.length ? ` (${options.join(", ")})` : "", episode.credits.length > 1 && ` · also kept: ${episode.credits.slice(1).map((each) => each.preset).join(", ")}`),
    el(
      "div",
      { class: "bars" },
      given.advantages.map((value, at) =>
        el(
          "button",
          {
            type: "button",
            title: `step ${at}: advantage ${signed(value)}, return ${number(given.returns[at], 3)}, reward ${number(given.rewards[at], 3)}`,
            on: { click: () => focusStep(at) },
          },
          el("i", { class: value > 0 ? "up" : value < 0 ? "down" : "flat", style: { height: `${(50 * Math.abs(value)) / most}%` } }),
        ),
      ),
    ),
  );
}

function timeline(episode) {
  const longest = Math.max(0, ...episode.steps.map((step) => step.agent_s + step.tool_s));
  return el(
    "section",
    { class: "timeline" },
    episode.steps.map((step, at) => card(episode, step, episode.steps[at - 1], longest)),
    episode.length > episode.steps.length && el("p", { class: "soft notice" }, `the first ${episode.steps.length} of ${count(episode.length, "step")}`),
    !episode.length && el("p", { class: "soft notice" }, "this episode has no step"),
  );
}

/** Answers of the model that are no step: the agent's own, such as a delegation, and side calls, such as a title. */
function sideAnswers(episode) {
  const { agent, side, shown } = episode.side_answers;
  if (!shown.length) return null;
  return el(
    "details",
    { class: "facts sideanswers" },
    el("summary", {}, `${count(agent + side, "answer")} of the model beside the steps: ${agent} of the agent, ${count(side, "side call")}`),
    shown.map((answer) =>
      el(
        "section",
        { class: "sideanswer" },
        el("p", {}, el("span", { class: "tag" }, answer.kind), el("span", { class: "fine" }, ` context ${answer.context}, before step ${answer.step}`)),
        answer.asked !== "" && text(answer.asked, { mono: false }),
        answer.text !== "" && text(answer.text, { mono: false }),
        answer.calls.map((made) => el("div", { class: "exchange" }, call(made))),
        tokens(answer.tokens),
      ),
    ),
    agent + side > shown.length && el("p", { class: "soft" }, `and ${agent + side - shown.length} more`),
  );
}

/** The step that keys act on. */
export function focused() {
  return detail.querySelector(".step.focused");
}

export function focusStep(at) {
  const steps = [...detail.querySelectorAll(".step")];
  if (!steps.length) return;
  const next = steps[Math.max(0, Math.min(steps.length - 1, at))];
  for (const step of steps) step.classList.toggle("focused", step === next);
  next.scrollIntoView({ block: "nearest" });
  if (next.getBoundingClientRect().top < detail.getBoundingClientRect().top + 8 || next.offsetHeight > detail.clientHeight) next.scrollIntoView({ block: "start" });
}

export function moveStep(by) {
  const steps = [...detail.querySelectorAll(".step")];
  const now = steps.indexOf(focused());
  focusStep(now < 0 ? (by > 0 ? 0 : steps.length - 1) : now + by);
}
