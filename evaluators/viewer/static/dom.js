// Elements from records. Text becomes text nodes, never markup; what cannot be seen is spelt out.

/* Control characters act on terminals, bidirectional ones make text read as something else than it is, zero-width and
   tag characters hide text from people that a model reads, and a lone surrogate is no character. The same list as in
   src/gymcp/visible_text.py, which a test compares. */
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (name === "style") for (const [key, each] of Object.entries(value)) made.style.setProperty(key, each);
    else made.setAttribute(name, value === true ? "" : seen(String(value)));
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false).map(node));
  return made;
}

function node(child) {
  return child instanceof Node ? child : visible(String(child));
}

/** The text with its unseen characters spelt out, for attributes. */
export function seen(text) {
  return text.replace(UNSEEN, (found) => `\\u{${found.codePointAt(0).toString(16)}}`);
}

/** The text as nodes; each unseen character is a mark of its own. */
export function visible(text) {
  UNSEEN.lastIndex = 0;
  if (!UNSEEN.test(text)) return document.createTextNode(text);
  UNSEEN.lastIndex = 0;
  const made = document.createDocumentFragment();
  let from = 0;
  for (const found of text.matchAll(UNSEEN)) {
    made.append(text.slice(from, found.index));
    const mark = document.createElement("span");
    mark.className = "unseen";
    mark.textContent = found[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    mark.title = `U+${mark.textContent}`;
    made.append(mark);
    from = found.index + found[0].length;
  }
  made.append(text.slice(from));
  return made;
}

export function replace(where, ...children) {
  where.replaceChildren(...children.flat(Infinity).filter(Boolean).map(node));
}

/** Makes these elements the children. One that stays is not moved: a click during which it is taken out is lost. */
export function arrange(where, elements) {
  const staying = new Set(elements);
  for (const each of [...where.children]) if (!staying.has(each)) each.remove();
  elements.forEach((each, at) => {
    if (where.children[at] !== each) where.insertBefore(each, where.children[at] ?? null);
  });
}

const LONGEST_WHOLE_WORD = 24; // characters
const CONTROLS = "a, button, input, select, textarea, summary, [tabindex]";

/** Draws a part of the page again; the control that has the focus is the one at the same place afterwards. */
export function redraw(where, draw) {
  const at = [...where.querySelectorAll(CONTROLS)].indexOf(document.activeElement);
  draw();
  if (at >= 0) [...where.querySelectorAll(CONTROLS)][at]?.focus({ preventScroll: true });
}

/** "0.31 s", "42 ms", "3 min 20 s". */
export function seconds(value) {
  if (value < 0.0995) return `${(1000 * value).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 60) return `${value.toFixed(value < 9.95 ? 2 : 1)} s`;
  return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

export function number(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  return value.toFixed(digits).replace(/^-(0\.?0*)$/, "$1");
}

export function signed(value) {
  return typeof value === "number" ? `${value > 0 ? "+" : ""}${number(value, 3)}` : String(value);
}

export function count(value, one, many = `${one}s`) {
  return `${value.toLocaleString("en")} ${value === 1 ? one : many}`;
}

export function bytes(value) {
  if (value < 1000) return `${value} B`;
  return value < 1e6 ? `${(value / 1000).toFixed(1)} kB` : `${(value / 1e6).toFixed(1)} MB`;
}

/** The badge of a score: solved, partial, failed, or none. */
export function badge(score, outcome = "") {
  const kind = score === null ? "none" : score >= 1 ? "good" : score > 0 ? "part" : "bad";
  const text = score === null ? "no score" : number(score);
  return el("span", { class: `badge ${kind}`, title: outcome }, text);
}

/** The beginning of a name that may be of any length. */
export function brief(name, most = 240) {
  return name.length <= most ? name : `${name.slice(0, most)}… (${name.length.toLocaleString("en")} characters)`;
}

/** A name on one line, of which the last characters stay in sight if it does not fit: names often differ in their ends. */
export function cutInside(name, ending) {
  const letters = [...name];
  const at = letters.length > ending + 2 ? letters.length - ending : 0;
  return el("bdi", { class: "cut" }, at > 0 && el("span", {}, letters.slice(0, at).join("")), el("span", {}, letters.slice(at).join("")));
}

/** A name in a table whose columns are narrow: broken only between words, unless it has a long one. */
export function tableName(name, most, attributes = {}) {
  const fits = name.split(/[\s-]+/).every((word) => word.length <= LONGEST_WHOLE_WORD);
  return el("bdi", { ...attributes, class: fits ? "short" : null }, brief(name, most));
}

/** The end of a dialog: a button that closes it, so that something in it has the focus and the keyboard can scroll it. */
export function closing() {
  return el("p", {}, el("button", { type: "button", class: "chip", on: { click: (event) => event.target.closest("dialog").close() } }, "close"), el("span", { class: "soft" }, " or esc"));
}

/** The time of an export: "as of 2026-11-23 02:39 UTC". */
export function asOf(made) {
  return `as of ${made.slice(0, 10)} ${made.slice(11, 16)} UTC`;
}
