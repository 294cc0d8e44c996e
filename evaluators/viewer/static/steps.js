// One step: what the agent saw, did and got, what that changed, which tokens it was, and what credit it was given.

import { ask } from "./ask.js";
import { badge, brief, bytes, count, el, number, replace, seconds, signed } from "./dom.js";
import { isMarkdown, markdown } from "./markdown.js";
import { go } from "./state.js";

const LINES = 14; // of a text that stands open; the rest unfolds

/** A text of the record, its end asked for when it was cut. `rich`: markdown is shown as such. */
export function text(value, { from = null, mono = true, rich = false } = {}) {
  const body = typeof value === "string" ? value : value.text;
  const made = el("div", { class: `text ${mono ? "mono" : ""}`, dir: "auto" });
  if (!rich || !isMarkdown(body)) {
    replace(made, body);
    return foldable(value, body, made, from, (whole) => replace(made, whole));
  }
  let shown = body;
  const fill = () => {
    replace(made, made.classList.contains("markdown") ? markdown(shown) : shown);
  };
  made.classList.add("markdown");
  const plain = el("button", { type: "button", class: "asis", "aria-pressed": "false", title: "the text as it was written (r)" }, "as written");
  plain.addEventListener("click", () => {
    const written = !made.classList.toggle("markdown");
    plain.setAttribute("aria-pressed", String(written));
    fill();
  });
  fill();
  const folded = foldable(value, body, made, from, (whole) => {
    shown = whole;
    fill();
  });
  return el("div", { class: "rich" }, folded, plain);
}

/** The text, folded if it is long, with a button that shows all of it. */
function foldable(value, body, made, from, put) {
  if (typeof value === "string" && body.split("\n").length <= LINES && body.length < 1600) return made;
  made.classList.add("folded");
  const more = el("button", { type: "button", class: "more" }, more_label(value, body));
  more.addEventListener("click", async () => {
    if (typeof value !== "string" && from) {
      more.disabled = true;
      try {
        const whole = await ask(`api/episodes/${from.n}/text?at=${from.at}&part=${from.part}&item=${from.item}`);
        put(whole.text);
        value = whole.text;
      } catch (error) {
        more.textContent = error.message;
        return;
      }
      more.disabled = false;
    }
    const open = made.classList.toggle("folded") === false;
    more.textContent = open ? "less" : more_label(value, body);
  });
  return el("div", { class: "foldable" }, made, more);
}

function more_label(value, body) {
  if (typeof value !== "string") return `all ${value.length.toLocaleString("en")} characters`;
  const lines = body.split("\n").length;
  return lines > LINES ? `all ${lines} lines` : "more";
}

/** The card of a step. `before`: the step before it, whose results the agent sees again. */
export function card(episode, step, before, longest) {
  const from = (part, item = 0) => ({ n: episode.n, at: step.at, part, item });
  const shownBefore = new Set((before?.results ?? []).map((result) => (typeof result.text === "string" ? result.text : result.text.text)));
  const messages = step.messages
    .map((message, item) => ({ message, item }))
    .filter(({ message }) => message.role !== "tool" || !shownBefore.has(typeof message.text === "string" ? message.text : message.text.text));
  return el(
    "article",
    { class: `step${step.valid ? "" : " unusable"}`, "data-at": step.at, id: `step-${episode.run}-${step.at}` },
    el(
      "header",
      {},
      el("span", { class: "at" }, step.at),
      step.at === 0 || before?.turn !== step.turn ? el("span", { class: "tag" }, `turn ${step.turn + 1}`) : null,
      step.context > 0 && el("span", { class: "tag", title: "number of the model's context" }, `context ${step.context}`),
      !step.valid && el("span", { class: "tag bad" }, "unusable"),
      times(step, longest),
      credit(episode, step),
      anchor(episode, step),
    ),
    messages.map(({ message, item }) =>
      el(
        "div",
        { class: `said ${message.role}` },
        el("span", { class: "role" }, message.role === "tool" ? "as the agent saw it" : message.role),
        text(message.text, { from: from("message", item), mono: message.role === "tool", rich: message.role !== "tool" }),
      ),
    ),
    reasoning(step, from),
    (step.text === "" && step.calls.length) || step.text === ""
      ? null
      : el("div", { class: "said assistant" }, el("span", { class: "role" }, "assistant"), text(step.text, { from: from("text"), mono: false, rich: true })),
    step.text === "" && !step.calls.length && el("div", { class: "said assistant" }, el("span", { class: "role" }, "assistant"), el("span", { class: "soft" }, "says nothing")),
    step.calls.map((call, item) => exchange(call, step.results[item], from, item)),
    step.results.slice(step.calls.length).map((result, item) => answer(result, from("result", step.calls.length + item))),
    step.user.map(({ call, result }) =>
      el("div", { class: "said user" }, el("span", { class: "role" }, "user's own"), exchange(call, result, () => null, 0)),
    ),
    changes(step.state),
    tokens(step.tokens),
  );
}

/** The model's reasoning, folded. */
function reasoning(step, from) {
  if (!step.reasoning) return null;
  const made = el("details", { class: "reasoning" }, el("summary", {}, "reasoning ", el("span", { class: "fine" }, count(step.reasoning.length, "character"))));
  made.addEventListener("toggle", () => {
    if (made.childElementCount === 1) made.append(text(step.reasoning, { from: from("reasoning"), mono: false, rich: true }));
  });
  return made;
}

function exchange(made, result, from, item) {
  return el("div", { class: "exchange" }, call(made, from("call", item)), result && answer(result, from("result", item)));
}

/** A call: its tool and its arguments. */
export function call(made, from = null) {
  return el(
    "div",
    { class: "call" },
    el("span", { class: "arrow", "aria-hidden": "true" }, "→"),
    el("div", {}, el("b", { class: "tool" }, el("bdi", {}, brief(made.name))), args(made.arguments, from), made.problem && el("div", { class: "bad" }, made.problem)),
  );
}

/** Arguments that are short stand in one line. */
function args(value, from) {
  if (typeof value !== "string") return text(value, { from });
  let flat = value;
  try {
    const parsed = JSON.parse(value);
    if (parsed && typeof parsed === "object" && !Array.isArray(parsed)) {
      const parts = Object.entries(parsed).map(([name, each]) => `${name}=${JSON.stringify(each)}`);
      flat = parts.join("  ");
    }
  } catch {
    // raw text that a model wrote: shown as it is
  }
  return flat.length <= 160 ? el("span", { class: "args mono" }, flat) : text(value, { from });
}

function answer(result, from) {
  return el(
    "div",
    { class: `result${result.is_error ? " error" : ""}` },
    el("span", { class: "arrow", "aria-hidden": "true" }, "←"),
    el(
      "div",
      {},
      text(pretty(result.text), { from }),
      el("span", { class: "fine" }, [result.is_error ? "error" : "", seconds(result.seconds), result.bytes ? bytes(result.bytes) : "", result.cost ? `cost ${result.cost}` : ""].filter(Boolean).join(" · ")),
    ),
  );
}

/** JSON that stands in one line, on several. */
function pretty(value) {
  if (typeof value !== "string" || value.length < 80 || value.includes("\n") || !/^\s*[[{]/.test(value)) return value;
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}

function times(step, longest) {
  const share = (value) => `${Math.max(0, (100 * value) / Math.max(longest, 1e-9)).toFixed(2)}%`;
  return el(
    "span",
    { class: "times", title: `agent ${seconds(step.agent_s)}${requested(step)}, tools ${seconds(step.tool_s)}` },
    el("span", { class: "bar" }, el("i", { class: "agent", style: { width: share(step.agent_s) } }), el("i", { class: "tools", style: { width: share(step.tool_s) } })),
    el("span", { class: "fine" }, seconds(step.agent_s + step.tool_s)),
  );
}

function requested(step) {
  if (!step.request) return "";
  const first = step.request.first_token_s === null ? "" : `, first token after ${seconds(step.request.first_token_s)}`;
  return ` (request ${seconds(step.request.request_s)}${first})`;
}

function credit(episode, step) {
  const given = episode.credits[0];
  const parts = [];
  if (step.reward) parts.push(el("span", { class: "fact" }, "reward ", el("b", {}, number(step.reward))));
  if (given && step.at < given.advantages.length) {
    const value = given.advantages[step.at];
    parts.push(el("span", { class: "fact" }, "return ", el("b", {}, number(given.returns[step.at], 3))));
    parts.push(el("span", { class: `fact ${value > 0 ? "good" : value < 0 ? "bad" : ""}` }, "advantage ", el("b", {}, signed(value))));
  }
  return parts;
}

function anchor(episode, step) {
  if (!step.anchor || step.anchor.steps < 2) return step.anchor && episode.siblings.length > 1 ? el("span", { class: "fact soft", title: step.state_key }, "anchor: alone") : null;
  const label = `anchor: ${step.anchor.steps} steps of ${count(step.anchor.episodes, "episode")}`;
  const button = el("button", { type: "button", class: "anchor", "aria-expanded": "false", title: `state ${step.state_key}` }, label);
  let shown = null;
  button.addEventListener("click", async () => {
    if (shown) {
      shown.remove();
      shown = null;
    } else {
      shown = el("div", { class: "siblings" }, el("span", { class: "soft" }, "…"));
      button.closest("article").append(shown);
      try {
        const steps = await ask(`api/episodes/${episode.n}/anchors/${step.at}`);
        replace(shown, steps.map((sibling) => siblingCard(episode, step, sibling)));
      } catch (error) {
        replace(shown, el("span", { class: "bad" }, error.message));
      }
    }
    button.setAttribute("aria-expanded", String(Boolean(shown)));
  });
  return button;
}

function siblingCard(episode, step, sibling) {
  const self = sibling.n === episode.n && sibling.at === step.at;
  const given = sibling.credits[0];
  return el(
    "section",
    { class: `sibling${self ? " self" : ""}` },
    el(
      "header",
      {},
      el("a", { href: "#", on: { click(event) { event.preventDefault(); go({ n: sibling.n, other: "" }); } } }, self ? "this step" : `trial ${sibling.trial}, step ${sibling.at}`),
      badge(sibling.score),
    ),
    given && el("div", { class: "facts" }, el("span", { class: "fact" }, "return ", el("b", {}, number(given.return, 3))), el("span", { class: `fact ${given.advantage > 0 ? "good" : given.advantage < 0 ? "bad" : ""}` }, "advantage ", el("b", {}, signed(given.advantage)))),
    sibling.text !== "" && text(sibling.text, { mono: false }),
    sibling.calls.map((call) => el("div", { class: "call" }, el("span", { class: "arrow" }, "→"), el("div", {}, el("b", { class: "tool" }, brief(call.name)), args(call.arguments)))),
    sibling.results.map((result) => el("div", { class: `result${result.is_error ? " error" : ""}` }, el("span", { class: "arrow" }, "←"), text(result.text))),
  );
}

/** Changes of the world, unfolded if they are few. */
export function changes(state) {
  if (!state) return null;
  if (state.unknown) return el("div", { class: "state soft" }, state.unknown);
  if (!state.count) return null;
  const made = el(
    "details",
    { class: "state", open: state.count <= 6 },
    el("summary", {}, `${count(state.count, "change")} of the world`),
    el(
      "ul",
      {},
      state.changes.map((change) =>
        el(
          "li",
          { class: change.kind },
          el("span", { class: "path" }, change.path.length ? change.path.map((part, at) => [at ? el("i", {}, " › ") : null, el("bdi", {}, brief(part))]) : "all of it"),
          change.before !== null && el("del", { dir: "auto" }, change.before),
          change.after !== null && el("ins", { dir: "auto" }, change.after),
        ),
      ),
      state.count > state.changes.length && el("li", { class: "soft" }, `and ${state.count - state.changes.length} more`),
    ),
  );
  return made;
}

/** Made when it is opened: thousands of elements that few look at. */
export function tokens(drawn) {
  if (!drawn) return null;
  const names = [...new Set(drawn.versions.map(([version]) => version))];
  const made = el(
    "details",
    { class: "tokens" },
    el("summary", {}, `${count(drawn.drawn, "token")} drawn after ${drawn.prompt.toLocaleString("en")}`, el("span", { class: "fine" }, ` · weights ${names.join(", ") || "unknown"} · ended by ${drawn.finish === "stop" ? "the model" : "length"} · mean logprob ${number(mean(drawn.logprobs), 3)}`)),
  );
  made.addEventListener("toggle", () => {
    if (made.childElementCount > 1) return;
    const starts = new Map(drawn.versions.map(([version, start]) => [start, version]));
    made.append(
      el(
        "div",
        { class: "drawn" },
        drawn.ids.map((id, at) => {
          const logprob = drawn.logprobs[at];
          const known = typeof logprob === "number";
          return [
            starts.has(at) && el("span", { class: "version", title: "version of the weights that drew what follows" }, `v${starts.get(at)}`),
            el(
              "span",
              {
                class: "token",
                title: `${at}: id ${id}, logprob ${known ? logprob.toFixed(4) : logprob}, p ${known ? (100 * Math.exp(logprob)).toFixed(2) : "?"} %`,
                style: { "--unlikely": known ? Math.min(1, -logprob / 5).toFixed(3) : "1" },
              },
              drawn.texts ? drawn.texts[at].replaceAll("\n", "⏎") : id,
            ),
            drawn.texts ? "" : " ", // numbers would run together
          ];
        }),
        drawn.drawn > drawn.ids.length && el("span", { class: "soft" }, ` and ${drawn.drawn - drawn.ids.length} more`),
      ),
      el("div", { class: "fine legend" }, el("span", { class: "scale" }), "certain … p < 1 %", drawn.texts ? "" : " · numbers, for want of a tokenizer (--tokenizer)"),
    );
  });
  return made;
}

function mean(values) {
  const known = values.filter((value) => typeof value === "number");
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}
