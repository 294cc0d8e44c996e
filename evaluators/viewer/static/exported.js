// Answers of an export: the same as the viewer gives, from files beside the pages. A browser that opens pages from the
// disk may not fetch, so each file is a script that hands over its data, packed; it is loaded when it is asked for.

import { haystack, parse, sorted } from "./query.js";

const { root = "", runs = "", pairs = "", ...listing } = document.documentElement.dataset;
const shown = runs.split("-").filter(Boolean).map(Number); // numbers of the runs of this page
const beside = new Set(pairs.split(" "));
const held = new Set((listing.held ?? "").split(" "));
const PAGE = 200;
const MOST_KEPT = 120; // files whose content is kept

export const exported = true;
export const listPage = `${root}index.html`;

export function runAddress(...numbers) {
  return `runs/${inOrder(numbers).join("-")}/index.html`;
}

export function hasRun(number) {
  return held.has(String(number));
}

export function hasPair(...numbers) {
  return beside.has(inOrder(numbers).join("-"));
}

function inOrder(numbers) {
  return [...numbers].sort((a, b) => a - b);
}

// ---------------------------------------------------------------------------------------------------------------- files

const NAME = /^[a-z0-9/-]+$/;
const policy = window.trustedTypes?.createPolicy("gymcp-data", { createScriptURL: (address) => address });
const arriving = new Map();
const kept = new Map(); // the least recently used first

globalThis.gymcpData = (name, packed) => arriving.get(name)?.(packed);

function load(name) {
  if (!NAME.test(name)) return Promise.reject(new Error(`an export has no file '${name}'`));
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    const address = `${root}data/${name}.js`;
    const end = () => {
      arriving.delete(name);
      script.remove();
    };
    arriving.set(name, resolve);
    script.addEventListener("load", () => {
      end();
      reject(new Error(`${address} holds no data: export the run again`)); // without effect if it did
    });
    script.addEventListener("error", () => {
      end();
      reject(new Error(`there is no file ${address}: was the export copied as a whole?`));
    });
    script.src = policy ? policy.createScriptURL(address) : address;
    document.head.append(script);
  });
}

async function unpack(packed) {
  if (!globalThis.DecompressionStream) throw new Error("this browser is too old for an export: it needs DecompressionStream (Chrome 80, Firefox 113, Safari 16.4)");
  const bytes = Uint8Array.from(atob(packed), (each) => each.charCodeAt(0));
  const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  return JSON.parse(text);
}

function read(name) {
  const found = kept.get(name) ?? load(name).then(unpack);
  kept.delete(name);
  kept.set(name, found);
  found.catch(() => kept.delete(name));
  if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  return found;
}

// -------------------------------------------------------------------------------------------------- rows and transcripts

const tables = new Map(); // run -> promise of its rows
const transcripts = new Map(); // run -> promise of a map from episodes to their words

function rowsOf(run) {
  if (!tables.has(run)) tables.set(run, read(`${run}/rows`).then((rows) => rows.map((row) => ({ ...row, haystack: haystack(row) }))));
  return tables.get(run);
}

function wordsOf(run) {
  if (!transcripts.has(run)) {
    const all = async () => {
      const about = await read(`${run}/about`);
      const chunks = await Promise.all(Array.from({ length: about.chunks }, (_, at) => load(`${run}/words-${at}`).then(unpack)));
      return new Map(chunks.flat());
    };
    transcripts.set(run, all());
  }
  return transcripts.get(run);
}

/** Begins to load what a search reads: called when somebody enters the search field. */
export function prepareSearch() {
  for (const read of [rowsOf, wordsOf]) read(shown[0]).catch(() => {}); // a search reports what is missing
}

async function search(run, query) {
  const { bare, passes } = parse(query);
  const [rows, words] = await Promise.all([rowsOf(run), bare ? wordsOf(run) : new Map()]);
  return rows.filter((row) => passes(row, ({ n }) => words.get(n) ?? ""));
}

/** A row as the list shows it. */
function listed(row) {
  return { ...row, task: row.task.slice(0, 300), reason: row.reason.length > 200 ? `${row.reason.slice(0, 200)}…` : row.reason, tags: row.tags.slice(0, 8).map((tag) => tag.slice(0, 60)) };
}

async function page(rows, offset) {
  const counts = await Promise.all(shown.map((run) => rowsOf(run)));
  const all = counts.reduce((sum, each) => sum + each.length, 0);
  return { total: rows.length, offset, rows: rows.slice(offset, offset + PAGE), searchable: all, indexed: all };
}

async function episodes(said) {
  const rows = await search(runAt(said.get("run")), said.get("q") ?? "");
  return page(sorted(rows, said.get("sort") ?? "recorded").map(listed), Number(said.get("offset") ?? 0));
}

async function pairsOf(said) {
  const [rows, others] = await Promise.all([search(shown[0], said.get("q") ?? ""), rowsOf(shown[1])]);
  const partner = new Map(others.filter((row) => row.latest).map((row) => [`${row.trial} ${row.task}`, row]));
  const gap = ({ score, other }) => Math.abs((score ?? 0) - (other.score ?? 0));
  const found = rows
    .filter((row) => row.latest && partner.has(`${row.trial} ${row.task}`))
    .map((row) => ({ ...row, other: partner.get(`${row.trial} ${row.task}`) }))
    .filter((row) => said.get("sort") === "all" || row.score !== row.other.score);
  const inTasks = sorted(found, "task").sort((a, b) => gap(b) - gap(a));
  return page(inTasks.map(listed), Number(said.get("offset") ?? 0));
}

// -------------------------------------------------------------------------------------------------------------- answers

function runAt(place) {
  const run = shown[Number(place ?? 0)];
  if (run === undefined) throw new Error(`no run ${place}`);
  return run;
}

async function about() {
  const facts = await Promise.all(shown.map((run) => read(`${run}/about`)));
  const { listed, notes, made } = await read("export");
  return { problems: shown.length > 1 ? notes : [], runs: facts.map((run, number) => ({ ...run, number })), listed, made };
}

async function folderOf(n) {
  const { runs } = await read("export");
  const run = runs.find(({ first, last }) => first <= n && n <= last);
  const rows = run && (await rowsOf(run.number));
  if (!rows?.some((row) => row.n === n) && !(run && (await read(`${run.number}/branches`)).includes(n))) throw new Error(`episode ${n} is not in this export`);
  return run.number;
}

async function episode(n) {
  const run = await folderOf(n);
  const found = await read(`${run}/e${n}`);
  if (found.error) throw new Error(found.error);
  return { ...found, run: Math.max(0, shown.indexOf(run)), counterpart: await counterpart(run, n) };
}

/** The episode of the other run with the same task and, if there is one, the same trial. */
async function counterpart(run, n) {
  if (shown.length < 2) return null;
  const row = (await rowsOf(run)).find((each) => each.n === n);
  if (row === undefined) return null; // a branch
  const others = await rowsOf(shown[shown[0] === run ? 1 : 0]);
  const found = others.filter((each) => each.latest && each.task === row.task);
  found.sort((a, b) => Number(a.trial !== row.trial) - Number(b.trial !== row.trial) || a.trial - b.trial);
  return found.length ? found[0].n : null;
}

async function sides(n, other) {
  const [a, b] = await Promise.all([episode(n), episode(other)]);
  const all = await read(a.run === b.run ? `${shown[a.run]}/beside-${a.tree}` : `beside-${shown.join("-")}`);
  const found = all[`${n}-${other}`];
  if (!found) throw new Error("these two episodes are not side by side in this export");
  return { a, b, ...found };
}

/** An export is only read. */
export async function send() {
  throw new Error("an export cannot be changed: open the run with gymcp view");
}

async function ofEpisode(n, part, at, said) {
  if (part === undefined) return episode(n);
  if (part === "beside") return sides(n, Number(at));
  const run = await folderOf(n);
  if (part === "tree") {
    const { leaves, tree } = await episode(n);
    if (leaves < 2) throw new Error("nothing branched off this episode");
    return read(`${run}/tree-${tree}`);
  }
  if (part === "notes") return (await episode(n)).notes;
  if (part === "task") return read(`${run}/facts-${(await episode(n)).facts}`);
  if (part === "anchors") return (await read(`${run}/anchors-${n}`))[at];
  const texts = await read(`${run}/texts-${n}`);
  return { text: texts[["at", "part", "item"].map((key) => said.get(key)).join("-")] };
}

/** The answer to a request such as `api/about`. Raises Error with words for people. */
export async function ask(path, { signal } = {}) {
  const { pathname, searchParams: said } = new URL(path, "http://export/");
  const [what, n, part, at] = pathname.split("/").slice(2);
  let answer;
  if (what === "runs") answer = said.get("version") === "1" ? { version: 1 } : await read("runs");
  else if (what === "matrix" || what === "suites") answer = await read(what);
  else if (what === "about") answer = await about();
  else if (what === "curves") answer = await read(`${runAt(said.get("run"))}/curves`);
  else if (what === "pairs") answer = await pairsOf(said);
  else if (n === undefined) answer = await episodes(said);
  else answer = await ofEpisode(Number(n), part, at, said);
  signal?.throwIfAborted();
  return answer;
}
