// Where the page is: kept after the # of its address, so that back, forward and reload work and nothing is sent.

const DEFAULTS = { run: "0", q: "", sort: "", n: "", other: "", view: "" };

export const place = { ...DEFAULTS };
const listeners = [];

export function follow(listener) {
  listeners.push(listener);
}

/** Goes to a place; `quietly` without a step of history. */
export function go(changes, { quietly = false } = {}) {
  const next = { ...place, ...changes };
  const said = new URLSearchParams();
  for (const [key, value] of Object.entries(next)) if (String(value) !== DEFAULTS[key]) said.set(key, clean(String(value)));
  const hash = `#${said}`;
  if (hash === (location.hash || "#")) return;
  history[quietly ? "replaceState" : "pushState"](null, "", hash);
  read();
}

export function read() {
  const before = { ...place };
  const said = new URLSearchParams(location.hash.slice(1));
  for (const key of Object.keys(DEFAULTS)) place[key] = said.get(key) ?? DEFAULTS[key];
  for (const listener of listeners) listener(before);
}

function clean(text) {
  return text.toWellFormed ? text.toWellFormed() : text;
}

window.addEventListener("popstate", read);
window.addEventListener("hashchange", read);
