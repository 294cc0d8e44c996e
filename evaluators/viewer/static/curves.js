// Curves of a training run: one small picture per column of its metrics; a click leads to the episodes of an iteration.

import { ask } from "./ask.js";
import { brief, count, el, number, replace } from "./dom.js";
import { go } from "./state.js";

const WIDTH = 300;
const HEIGHT = 110;
const LEFT = 6;
const NS = "http://www.w3.org/2000/svg";

const drawn = new WeakMap(); // section -> its run, and its pictures by the name of the curve

/** The section with all curves; it fills itself. */
export function curves(run) {
  const section = el("section", { class: "curves", "aria-label": "Curves" }, el("p", { class: "soft" }, "reading the metrics …"));
  drawn.set(section, { run, shown: new Map() });
  fill(section);
  return section;
}

/** Asks again for the curves that are shown inside `where`; those that have not changed stay as they are. */
export function renewCurves(where) {
  const section = where.querySelector("section.curves");
  if (drawn.has(section)) fill(section);
}

async function fill(section) {
  const { run, shown } = drawn.get(section);
  try {
    draw(section, shown, await ask(`api/curves?run=${run}`));
  } catch (error) {
    if (!shown.size) replace(section, el("p", { class: "bad notice" }, error.message));
  }
}

function draw(section, shown, found) {
  const names = found.map(({ name }) => name).join("\n");
  const same = shown.size > 0 && names === [...shown.keys()].join("\n");
  const old = new Map(shown);
  shown.clear();
  for (const curve of found) shown.set(curve.name, renewed(curve, old.get(curve.name)));
  if (same) return;
  const active = document.activeElement;
  const says = `${count(found.length, "column")} of metrics.jsonl. A click on an iteration shows its episodes; arrow keys move along a curve, enter opens.${found.some((curve) => curve.band) ? " Held-out episodes are not kept: a click on their curve shows the practice of that iteration." : ""}`;
  replace(section, el("h2", {}, "Curves"), found.length ? [el("p", { class: "fine" }, says), el("div", { class: "multiples" }, [...shown.values()].map(({ figure }) => figure))] : el("p", { class: "soft" }, "no metrics are recorded yet"));
  if (section.contains(active)) active.focus({ preventScroll: true });
}

/** The picture of a curve in place of its old one, with the cursor where it stood; the old one if nothing has changed. */
function renewed(curve, old) {
  const said = JSON.stringify(curve);
  if (old?.said === said) return old;
  const cursor = old?.figure.querySelector("svg");
  const focused = cursor !== undefined && cursor === document.activeElement;
  const figure = picture(curve, focused ? Number(cursor.getAttribute("aria-valuenow")) : null);
  old?.figure.replaceWith(figure);
  if (focused) figure.querySelector("svg").focus({ preventScroll: true });
  return { said, figure };
}

/** One curve. `at`: the iteration that its cursor stands on; null for the last. */
function picture(curve, at = null) {
  const held = curve.band !== undefined;
  const name = held ? `held-out success: ${curve.name.split("/").slice(1, -1).join("/")}` : curve.name;
  const share = held || curve.name === "success" || curve.name.endsWith("/success");
  const says = (value) => (share ? `${(100 * value).toFixed(1)} %` : short(value));
  const [low, high] = share ? [0, 1] : range(curve.points.map(([, value]) => value));
  const first = curve.points[0][0];
  const last = curve.points.at(-1)[0];
  const x = (at) => LEFT + ((WIDTH - 2 * LEFT) * (at - first)) / Math.max(1, last - first);
  const y = (value) => 6 + (HEIGHT - 12) * (1 - (value - low) / (high - low));
  const bounds = new Map((curve.band ?? []).map(([at, from, to]) => [at, [from, to]]));
  const line = curve.points.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const cursor = svg("g", { class: "cursor" });
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "slider", tabindex: "0", "aria-label": `${name}, by iteration`, "aria-valuemin": first, "aria-valuemax": last },
    curve.band?.length > 1 && svg("polygon", { class: "band", points: [...curve.band.map(([at, , to]) => `${x(at).toFixed(1)},${y(to).toFixed(1)}`), ...[...curve.band].reverse().map(([at, from]) => `${x(at).toFixed(1)},${y(from).toFixed(1)}`)].join(" ") }),
    svg("polyline", { class: "line", points: line }),
    curve.points.length <= 40 && curve.points.map(([at, value]) => [bounds.has(at) && svg("line", { class: "bound", x1: x(at), x2: x(at), y1: y(bounds.get(at)[0]), y2: y(bounds.get(at)[1]) }), svg("circle", { cx: x(at), cy: y(value), r: 2.2 })]),
    cursor,
  );
  const value = el("span", { class: "value" });
  let place = curve.points.findIndex(([each]) => each === at);
  if (place < 0) place = curve.points.length - 1;
  const mark = (to, { here = true } = {}) => {
    place = Math.max(0, Math.min(curve.points.length - 1, to));
    const [at, of] = curve.points[place];
    const bound = bounds.get(at);
    const words = `${says(of)}${bound ? ` (${says(bound[0])} – ${says(bound[1])})` : ""}`;
    replace(value, el("b", {}, words), el("span", { class: "soft" }, ` iteration ${at}`));
    drawing.setAttribute("aria-valuenow", at);
    drawing.setAttribute("aria-valuetext", `iteration ${at}: ${words}`);
    cursor.replaceChildren(...(here ? [svg("line", { x1: x(at), x2: x(at), y1: 0, y2: HEIGHT }), svg("circle", { cx: x(at), cy: y(of), r: 3.5 })] : []));
  };
  const nearest = (event) => {
    const box = drawing.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    return curve.points.reduce((best, [each], index) => (Math.abs(x(each) - at) < Math.abs(x(curve.points[best][0]) - at) ? index : best), 0);
  };
  const open = () => go({ q: `iteration:${curve.points[place][0]}`, n: "", other: "", home: "" });
  const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity };
  drawing.addEventListener("pointermove", (event) => mark(nearest(event)));
  drawing.addEventListener("pointerleave", () => mark(curve.points.length - 1, { here: document.activeElement === drawing }));
  drawing.addEventListener("focus", () => mark(place));
  drawing.addEventListener("blur", () => mark(curve.points.length - 1, { here: false }));
  drawing.addEventListener("click", (event) => {
    mark(nearest(event));
    open();
  });
  drawing.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && steps[event.key] === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Enter") open();
    else mark(place + steps[event.key]);
  });
  mark(place, { here: false });
  return el("figure", { class: `curve${held ? " held" : ""}` }, el("figcaption", {}, el("bdi", { title: curve.name }, brief(name, 80)), value), drawing, el("p", { class: "fine ends" }, el("span", {}, first), el("span", {}, `${says(low)} – ${says(high)}`), el("span", {}, last)));
}

function range(values) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  return low === high ? [low - Math.max(1e-9, Math.abs(low) / 10), high + Math.max(1e-9, Math.abs(high) / 10)] : [low, high];
}

function short(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return Number.isInteger(value) ? value.toLocaleString("en") : number(value, size < 1 ? 4 : size < 100 ? 2 : 1);
}

function svg(tag, attributes, ...children) {
  const made = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.flat(Infinity).filter(Boolean));
  return made;
}
