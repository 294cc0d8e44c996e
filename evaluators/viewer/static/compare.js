// Two episodes of a task side by side, beginning at the first step where they part. Steps of the same user turn stand
// beside each other, however many steps each took before.

import { ask } from "./ask.js";
import { brief, count, el } from "./dom.js";
import { heading } from "./episode.js";
import { place } from "./state.js";
import { card } from "./steps.js";
import { name } from "./tree.js";

export function comparePage(about) {
  return async (signal) => {
    const both = await ask(`api/episodes/${place.n}/beside/${place.other}`, { signal });
    const { a, b, parted } = both;
    const alike = parted ? parted.at : Math.max(a.length, b.length);
    const longest = Math.max(0, ...[...a.steps, ...b.steps].map((step) => step.agent_s + step.tool_s));
    const names = [a, b].map((side, at) => el("div", { class: `side ${"ab"[at]}` }, el("span", { class: "letter" }, "AB"[at]), a.run === b.run ? name(side) : brief(about.runs[side.run].name, 60)));
    const cell = (letter, side, at, turn, above) => {
      if (at !== null) return el("div", { class: "beside", "data-side": letter }, card(side, side.steps[at], side.steps[at - 1], longest));
      const over = !side.steps.some((step) => step.turn > turn);
      const said = above === null; // the row above says it already
      return el("div", { class: "ended soft" }, said ? "" : over ? `${letter} has ended` : `${letter} has no more steps in this turn`);
    };
    const before = (at) => (both.rows[at - 1]?.[0] === both.rows[at][0] ? both.rows[at - 1] : null); // the row above, of the same turn
    const turns = new Set(both.rows.map(([turn]) => turn));
    const rows = both.rows.flatMap(([turn, one, other], at) => [
      turns.size > 1 && before(at) === null && el("h2", { class: "turn" }, `user turn ${turn + 1}`),
      el("div", { class: `two${at === 0 ? " parting" : ""}` }, cell("A", a, one, turn, before(at)?.[1]), cell("B", b, other, turn, before(at)?.[2])),
    ]);
    return [
      el("div", { class: "two names" }, names),
      el("div", { class: "two" }, [a, b].map((side, at) => el("div", { class: "beside", "data-side": "AB"[at] }, heading(side)))),
      el(
        "p",
        { class: `parted notice ${parted ? "" : "good"}` },
        parted ? [alike ? `Alike for ${count(alike, "step")}; ` : "From the start: ", el("b", {}, `in step ${parted.at} ${parted.why}.`)] : "The two are the same in every step.",
      ),
      alike > 0 &&
        a.steps.length > 0 &&
        el("details", { class: "alike" }, el("summary", {}, parted ? `the ${count(Math.min(alike, a.steps.length), "step")} that are alike` : "the steps of both"), el("div", {}, a.steps.slice(0, alike).map((step, at) => card(a, step, a.steps[at - 1], longest)))),
      el("section", { class: "timeline" }, rows),
    ];
  };
}
