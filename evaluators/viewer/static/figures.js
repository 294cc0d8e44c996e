// Figures of a run as the list and the table of suites show them: success with its interval, cost, tokens.

import { el } from "./dom.js";

const share = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)}`);

/** The success of a run: of its episodes, or of the last evaluation of a training run. */
export function success(run) {
  if (run.held_out) return heldOut(run.held_out);
  if (!run.scored) return { value: null, note: "", why: "no episode has a score" };
  if (run.bounds) return { value: run.solved / run.scored, bounds: run.bounds, note: run.coverage, why: "too few episodes have a score for a headline figure: success over all of them is between these two" };
  return { value: run.solved / run.scored, low: run.low, high: run.high, note: run.iterations === null ? "" : "practice", why: `${run.solved} of ${run.scored} scored episodes` };
}

function heldOut(last) {
  const note = `held-out, iteration ${last.iteration}`, why = `last evaluation on held-out tasks (${last.split}), after iteration ${last.iteration}`;
  if (last.bounds) return { value: last.success, bounds: last.bounds, note: `${note}, ${last.coverage}`, why: `${why}: too few tasks have a score for a headline figure: success over all of them is between these two` };
  return { value: last.success, low: last.low, high: last.high, note, why };
}

/** The success as a figure with its interval and a drawing of it; two bounds if too few episodes have a score. */
export function successFigure(run) {
  const found = success(run);
  if (found.value === null) return el("span", { class: "soft", title: found.why }, "–");
  const known = typeof found.low === "number" && typeof found.high === "number";
  return el(
    "span",
    { class: "rate", title: `${found.why}${known ? `; 95 % interval ${share(found.low)} to ${share(found.high)} %` : ""}` },
    el("b", {}, found.bounds ? `${found.bounds.map(share).join(" .. ")} %` : `${share(found.value)} %`),
    known && el("span", { class: "fine" }, ` ${share(found.low)} – ${share(found.high)}`),
    known && el("span", { class: "whisker", "aria-hidden": "true" }, el("i", { style: { left: `${100 * found.low}%`, width: `${100 * (found.high - found.low)}%` } }), el("u", { style: { left: `${100 * found.value}%` } })),
    found.note && el("span", { class: "fine below" }, found.note),
    run.upper_bound && el("span", { class: "fine below", title: run.upper_bound }, "upper bound"),
  );
}

/** "95.0 %": the mean score less what questions or calls cost; empty without such prices, or if too few episodes have a score. */
export function netOfPrice(run) {
  return typeof run.net_of_price === "number" && !run.bounds ? `${share(run.net_of_price)} %` : "";
}

/** "0.0312", "12.40". */
export function money(cost) {
  return cost.toFixed(cost < 1 ? 4 : 2);
}

/** "9,120", "56 k", "1.2 M". */
export function tokens(value) {
  return value >= 1e6 ? `${(value / 1e6).toFixed(1)} M` : value >= 1e4 ? `${Math.round(value / 1e3)} k` : value.toLocaleString("en");
}
