// Search queries over the rows of an export: the same language as in query.py, which a test compares with this.

const WORD = /(-?)(?:([\p{L}\p{N}_]+)(:|>=|<=|>|<|=))?(?:"([^"]*)"?|(\S+))/gu;
const MAX_QUERY = 1000;
const MAX_WORDS = 32;
const NUMBERS = {
  score: (row) => row.score,
  steps: (row) => row.steps,
  calls: (row) => row.calls,
  errors: (row) => row.errors,
  tokens: (row) => row.tokens,
  seconds: (row) => row.seconds,
  cost: (row) => row.cost,
  trial: (row) => row.trial,
  branches: (row) => row.branches,
  attempt: (row) => row.attempt,
  seed: (row) => row.seed,
  version: (row) => row.version,
  iteration: (row) => (row.version === null ? null : row.version + 1),
};
const TEXTS = { task: (row) => row.task, outcome: (row) => row.outcome, group: (row) => row.group, why: (row) => row.reason, note: (row) => row.notes, id: (row) => row.id };
const LISTS = { tag: (row) => row.tags, tool: (row) => row.tools, label: (row) => row.labels, verdict: (row) => row.verdicts };
const known = (score) => typeof score === "number";
const STATES = {
  solved: (row) => known(row.score) && row.score >= 1,
  failed: (row) => known(row.score) && row.score < 1,
  partial: (row) => known(row.score) && row.score > 0 && row.score < 1,
  unscored: (row) => row.score === null,
  replaced: (row) => !row.latest,
  noted: (row) => row.noted === 1,
};
const COMPARE = { ":": (a, b) => a === b, "=": (a, b) => a === b, ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b };
const KEYS = [...Object.keys(NUMBERS), ...Object.keys(TEXTS), ...Object.keys(LISTS), "is"];

const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
const byTask = (a, b) => order(a.task, b.task) || a.trial - b.trial;
const scored = (a, b) => Number(a.score === null) - Number(b.score === null);
const most = (key) => (a, b) => b[key] - a[key] || a.n - b.n;
const ORDERS = {
  recorded: (a, b) => a.n - b.n,
  newest: (a, b) => b.n - a.n,
  task: (a, b) => byTask(a, b) || a.attempt - b.attempt,
  score: (a, b) => scored(a, b) || a.score - b.score || byTask(a, b),
  best: (a, b) => scored(a, b) || b.score - a.score || byTask(a, b),
  steps: most("steps"),
  calls: most("calls"),
  tokens: most("tokens"),
  seconds: most("seconds"),
  iteration: (a, b) => Number(a.version === null) - Number(b.version === null) || b.version - a.version || a.n - b.n,
};

/** The rows in this order. Raises Error for an order that does not exist. */
export function sorted(rows, name) {
  if (!Object.hasOwn(ORDERS, name)) throw new Error(`no order '${name}'; have ${Object.keys(ORDERS).join(", ")}`);
  return [...rows].sort(ORDERS[name]);
}

/**
 * The test of a query: `passes(row, words)` is true for rows that match; `words` gives the folded transcript of a row.
 * `bare`: whether the query has words that are looked for in transcripts. Raises Error with words for people.
 */
export function parse(query) {
  if (query.length > MAX_QUERY) throw new Error(`the query is longer than ${MAX_QUERY} characters`);
  const parts = [...query.matchAll(WORD)].slice(0, MAX_WORDS).map(([, sign, key, operator, quoted, bare]) => {
    const passes = part(key, operator, quoted || bare || "");
    return sign ? (row, words) => !passes(row, words) : passes;
  });
  const bare = [...query.matchAll(WORD)].slice(0, MAX_WORDS).some(([, , key]) => !key);
  return { bare, passes: (row, words) => parts.every((each) => each(row, words)) };
}

function part(key, operator, word) {
  if (!key) return anywhere(word);
  if (key === "is" && operator === ":") {
    if (!Object.hasOwn(STATES, word)) throw new Error(`is:${word}: no such state; have ${Object.keys(STATES).join(", ")}`);
    return STATES[word];
  }
  if (Object.hasOwn(NUMBERS, key)) {
    if (!/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(word.trim())) throw new Error(`${key}${operator}${word}: not a number`);
    const number = Number(word);
    return (row) => typeof NUMBERS[key](row) === "number" && COMPARE[operator](NUMBERS[key](row), number);
  }
  if (operator !== ":" && operator !== "=") throw new Error(`${key}${operator}${word}: only numbers are compared: ${Object.keys(NUMBERS).join(", ")}`);
  if (Object.hasOwn(LISTS, key)) {
    const looked = `\x1f${word.toLowerCase()}\x1f`;
    return (row) => `\x1f${lower(LISTS[key](row).join("\x1f"))}\x1f`.includes(looked);
  }
  if (Object.hasOwn(TEXTS, key)) {
    if (operator === "=") return (row) => TEXTS[key](row) === word;
    const looked = word.toLowerCase();
    if (!word.includes("*")) return (row) => lower(TEXTS[key](row)).includes(looked);
    const pattern = glob(looked);
    return (row) => pattern.test(lower(TEXTS[key](row)));
  }
  throw new Error(`${key}${operator}: no such key; have ${KEYS.join(", ")}; in quotes it is looked for as text`);
}

function anywhere(word) {
  const looked = word.toLowerCase();
  const phrase = fold(word);
  return (row, words) => row.haystack.includes(looked) || (phrase !== "" && words(row).includes(` ${phrase}`));
}

/** Everything that bare words are looked for in, apart from the transcript. */
export function haystack(row) {
  return [row.task, row.reason, ...row.tags, ...row.tools, row.outcome, row.id].join("\n").toLowerCase();
}

/** The words of a text without case, diacritics and what stands between them: as transcripts are kept. */
function fold(text) {
  const bare = text.normalize("NFD").replace(/\p{Mn}/gu, "").toLowerCase();
  return (bare.match(/[\p{L}\p{N}]+/gu) ?? []).join(" ");
}

/** Only the letters of ASCII, as the database does. */
function lower(text) {
  return text.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
}

/** The pattern of `*`, `?` and `[...]`. */
function glob(word) {
  const parts = word.match(/\*+|\?|\[\^?\]?[^\]]*\]|[^]/gu) ?? [];
  const made = parts.map((each) => {
    if (each[0] === "*") return "[^]*?";
    if (each === "?") return "[^]";
    if (each === "[") return "[]"; // it is never closed: nothing matches
    if (each.length > 2 && each[0] === "[") return `[${each[1] === "^" ? "^" : ""}${each.slice(each[1] === "^" ? 2 : 1, -1).replace(/[\\\]^[]/g, "\\$&")}]`;
    return each.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&");
  });
  return new RegExp(`^${made.join("")}$`, "u");
}
