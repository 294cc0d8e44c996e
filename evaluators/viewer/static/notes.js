// What people say of an episode: a note, labels, and verdicts. What is typed stays, whatever is opened meanwhile.

import { ask, exported, send } from "./ask.js";
import { brief, count, el, replace } from "./dom.js";

const drafts = new Map(); // episode -> what was typed and not saved yet

window.addEventListener("beforeunload", (event) => {
  if (drafts.size) event.preventDefault();
});

/** The section with the notes on an episode; it fills itself. */
export function notes(n) {
  const section = el("section", { class: "notes", "aria-label": "Notes" });
  ask(`api/episodes/${n}/notes`).then(
    (found) => fill(section, n, found),
    (error) => replace(section, el("p", { class: "bad" }, error.message)),
  );
  return section;
}

function fill(section, n, found, problem = "") {
  const mine = found.notes.find((each) => each.who === found.who && !exported);
  const draft = drafts.get(n);
  const elsewhere = draft && draft.seen !== (mine?.seen ?? ""); // it was changed in another window since it was shown here
  const others = found.notes.filter((each) => each !== mine || elsewhere);
  if (elsewhere) drafts.set(n, { ...draft, seen: mine?.seen ?? "" }); // it is shown now: the next save replaces it
  replace(section, others.map(written), found.count > found.notes.length && el("p", { class: "soft" }, `and ${count(found.count - found.notes.length, "more person", "more people")}`), !exported && form(section, n, found, mine, problem));
}

function written(note) {
  return el(
    "article",
    { class: "note" },
    el("p", { class: "fine" }, el("b", {}, el("bdi", {}, note.who)), ` ${note.at.replace("T", " ")} `, marks(note)),
    note.note !== "" && el("p", { class: "words", dir: "auto" }, note.note),
  );
}

function marks(note) {
  const verdict = (name, value) => el("span", { class: `tag ${value === "pass" ? "good" : "bad"}` }, name ? `${name}: ${value}` : value);
  return [
    note.verdict !== "" && verdict("", note.verdict),
    Object.entries(note.criteria).map(([name, value]) => verdict(brief(name, 60), value)),
    note.labels.map((label) => el("span", { class: "tag label" }, el("bdi", {}, label))),
  ];
}

function form(section, n, found, mine, problem) {
  const kept = mine ?? { note: "", labels: [], verdict: "", criteria: {}, seen: "" };
  const start = drafts.get(n) ?? { ...kept, labels: kept.labels.join(", ") };
  const words = el("textarea", { rows: 2, dir: "auto", "aria-label": "Your note", placeholder: "a note on this episode   e" });
  words.value = start.note;
  const offered = el("datalist", { id: "labels" }, found.labels.map((label) => el("option", { value: label })));
  const labels = el("input", { type: "text", list: "labels", "aria-label": "Your labels, with commas between them", placeholder: "labels, with commas", autocomplete: "off", value: start.labels });
  const verdict = choice("verdict", start.verdict);
  const criteria = found.criteria.map((name) => [name, choice(brief(name, 60), start.criteria[name] ?? "")]);
  const said = el("span", { role: "status", class: "fine" }, problem ? el("span", { class: "bad" }, problem) : drafts.has(n) ? "not saved yet" : mine ? `saved ${mine.at.replace("T", " ")}` : "");
  const save = el("button", { type: "submit" }, "save");
  const now = () => ({ note: words.value, labels: labels.value, verdict: verdict.value(), criteria: Object.fromEntries(criteria.map(([name, each]) => [name, each.value()]).filter(([, value]) => value)), seen: start.seen });
  const made = el(
    "form",
    { class: "noting" },
    words,
    el("div", { class: "noted" }, labels, offered, verdict.box, criteria.map(([, each]) => each.box), save, said, el("span", { class: "fine soft" }, `as ${found.who}`)),
  );
  made.addEventListener("input", () => {
    drafts.set(n, now());
    replace(said, "not saved yet");
  });
  made.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) made.requestSubmit();
    if (event.key !== "Escape") return;
    event.stopPropagation(); // leaves the field, not the episode
    document.activeElement.blur();
    document.getElementById("detail").focus();
  });
  made.addEventListener("submit", async (event) => {
    event.preventDefault();
    const asked = now();
    save.disabled = true;
    try {
      const answer = await send(`api/episodes/${n}/notes`, { ...asked, labels: asked.labels.split(",").map((label) => label.trim()).filter(Boolean) });
      drafts.delete(n);
      const active = section.contains(document.activeElement);
      fill(section, n, answer);
      if (active) section.querySelector("textarea").focus();
      document.dispatchEvent(new CustomEvent("noted"));
    } catch (error) {
      drafts.set(n, asked);
      replace(said, el("span", { class: "bad" }, error.message));
      save.disabled = false;
      const found = await ask(`api/episodes/${n}/notes`).catch(() => null);
      if (found) fill(section, n, found, error.message);
    }
  });
  return made;
}

/** Buttons for pass, fail, or neither. */
function choice(name, value) {
  const box = el("fieldset", { class: "verdicts" }, el("legend", {}, name));
  const buttons = ["pass", "fail"].map((each) => {
    const button = el("button", { type: "button", class: `chip${value === each ? " on" : ""}`, "aria-pressed": String(value === each), "aria-label": `${name}: ${each}` }, each);
    button.addEventListener("click", () => {
      value = value === each ? "" : each;
      for (const other of buttons) {
        other.setAttribute("aria-pressed", String(value === other.textContent));
        other.classList.toggle("on", value === other.textContent);
      }
      box.dispatchEvent(new Event("input", { bubbles: true }));
    });
    return button;
  });
  box.append(...buttons);
  return { box, value: () => value };
}
