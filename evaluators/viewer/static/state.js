// Where the page is: kept after the # of its address, so that back, forward and reload work and nothing is sent.
// And whether it is light or dark, which the browser keeps.

const DEFAULTS = { run: "0", q: "", sort: "", n: "", other: "", view: "", task: "", home: "", tree: "", credit: "" };

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

const themes = ["", "light", "dark"];
function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}
/** Changes between light and dark, and remembers it. */
export function nextTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  setTheme(next);
  try {
    localStorage.setItem("gymcp-theme", next);
  } catch {
    // a browser that stores nothing forgets the choice
  }
}
try {
  const kept = localStorage.getItem("gymcp-theme");
  if (themes.includes(kept)) setTheme(kept);
} catch {
  // as above
}
