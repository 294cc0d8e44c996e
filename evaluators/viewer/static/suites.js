// Suites x models: a table whose cells hold the runs of a model on a suite, each a link to its run.

import { ask, hasRun, runAddress } from "./ask.js";
import { brief, count, el, replace, seconds } from "./dom.js";
import { money, netOfPrice, successFigure, tokens } from "./figures.js";
import { place } from "./state.js";

let known = null; // what the server sent
let newest = 0; // number of the newest drawing: one that waited longer for the server draws nothing

/** Draws the table of these runs into `where`. `asked.reached`: told the place of the link that has the focus. */
export async function drawSuites(where, asked) {
  const number = ++newest;
  if (!known || known.version !== asked.version) {
    try {
      const found = await ask("api/suites");
      if (number !== newest || place.view !== "suites") return;
      known = found;
    } catch (error) {
      if (number === newest) replace(where, el("p", { class: "bad notice" }, error.message));
      return;
    }
  }
  const { suites, models, shown } = choose(asked.runs);
  const active = document.activeElement?.closest?.("a[data-number]")?.dataset.number;
  replace(where, shown ? table(suites, models, asked) : el("p", { class: "empty soft" }, known.suites.length ? "no run matches the filter" : "no run has episodes of a suite; training runs are in the list of runs"));
  if (active !== undefined) where.querySelector(`a[data-number="${active}"]`)?.focus({ preventScroll: true });
  replace(document.getElementById("found"), `${count(suites.length, "suite")} · ${count(models.length, "model")} · ${count(shown, "run")}`);
}

/** The suites and the models that any of these runs has, and the number of those runs. */
function choose(runs) {
  const byNumber = new Map(runs.map((run) => [run.number, run]));
  const suites = known.suites
    .map(({ name, runs: cells }) => ({ name, cells: cells.filter(([, number]) => byNumber.has(number)).map(([model, number]) => ({ model, run: byNumber.get(number) })) }))
    .filter(({ cells }) => cells.length);
  const used = new Set(suites.flatMap(({ cells }) => cells.map(({ model }) => model)));
  const models = known.models.map((name, at) => ({ name, at })).filter(({ at }) => used.has(at));
  return { suites, models, shown: suites.reduce((sum, { cells }) => sum + cells.length, 0) };
}

function table(suites, models, asked) {
  let links = 0;
  const row = ({ name, cells }) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, el("bdi", {}, brief(name, 80))),
      models.map((model) => {
        const found = cells.filter((cell) => cell.model === model.at).map(({ run }) => run);
        return el("td", { "data-label": brief(model.name, 60) }, found.map((run) => entry(run, found.length > 1, { ...asked, place: hasRun(run.number) ? links++ : -1 })));
      }),
    );
  return [
    el(
      "table",
      { class: "suitetable" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "suite"), models.map((model) => el("th", { scope: "col" }, el("bdi", {}, brief(model.name, 60)))))),
      el("tbody", {}, suites.map(row)),
    ),
    el("p", { class: "empty soft" }, "Success is the share of scored episodes with a full score, with its 95 % interval; cost and tokens are those of all attempts. Latencies are p50 / p95: of a request to the model, or of the agent's decision if requests were not measured; of its first token; and of a tool call. A figure leads to its run. Training runs are in the list of runs."),
  ];
}

/** A run in its cell. `named`: say which run it is, because others are in the same cell. */
function entry(run, named, { remember, reached, place: at }) {
  const spent = [run.cost && `cost ${money(run.cost)}`, run.prompt_tokens + run.completion_tokens && `${tokens(run.prompt_tokens + run.completion_tokens)} tokens`];
  const lost = !run.bounds && run.scored < run.episodes;
  const figure = successFigure(run);
  const net = netOfPrice(run);
  const words = [net && `net of price ${net}`, named && `${run.agent} · ${brief(run.label, 60)}`, lost && run.coverage, spent.filter(Boolean).join(" · "), latencies(run), run.problem];
  return el(
    "div",
    { class: "entry" },
    at < 0 ? figure : el("a", { href: runAddress(run.number), title: run.label, "data-number": run.number, on: { click: remember, focus: () => reached(at) } }, figure),
    words.filter(Boolean).map((each) => el("span", { class: "fine below" }, el("bdi", {}, each))),
  );
}

/** "request 0.31 s / 0.82 s · first token 42 ms / 90 ms · call 3.1 ms / 12 ms": p50 and p95 of what was measured. */
function latencies(run) {
  const model = run.request_latency ? [run.request_latency, "request"] : [run.model_latency, "decision"];
  const parts = [model, [run.first_token_latency, "first token"], [run.tool_latency, "call"]];
  return parts.filter(([found]) => found).map(([found, name]) => `${name} ${seconds(found.p50_s)} / ${seconds(found.p95_s)}`).join(" · ");
}
