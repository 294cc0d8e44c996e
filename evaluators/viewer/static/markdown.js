// A subset of markdown as elements: headings, lists, tables, quotes, code, bold, italic. Text stays text: no HTML, no
// link that can be followed, no image. A link shows its target beside its words.

import { el } from "./dom.js";

const MAX_INLINE = 4000; // characters of a paragraph beyond which its bold and italic words stay as they are written
const MAX_DEPTH = 4; // of bold in italic in bold, and of quotes

const SIGNS = /^ {0,3}(#{1,6} |[-*+] \S|\d{1,9}[.)] \S|> |```|~~~|\|.*\|)|\*\*[^\s*]|`[^`\n]+`|\[[^\]\n]+\]\([^)\s]+\)|(^|\s)[*_][^\s*_][^*_\n]*[*_](\s|[.,;:!?]|$)/m;

/** Whether the text uses any of it. */
export function isMarkdown(text) {
  return SIGNS.test(text);
}

/** The text as elements. */
export function markdown(text, depth = 0) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const made = [];
  let at = 0;
  while (at < lines.length) {
    const [block, next] = blockAt(lines, at, depth);
    if (block) made.push(block);
    at = next;
  }
  return made;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  const fence = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/.exec(line);
  if (fence) return code(lines, at, fence);
  const heading = /^ {0,3}(#{1,6}) +(.*?)(?: +#+)? *$/.exec(line);
  if (heading) return [el("div", { class: `md-h md-h${heading[1].length}`, role: "heading", "aria-level": Math.min(6, heading[1].length + 2) }, inline(heading[2])), at + 1];
  if (/^ {0,3}([-*_])( *\1){2,} *$/.test(line)) return [el("hr"), at + 1];
  if (/^ {0,3}>/.test(line) && depth < MAX_DEPTH) return quote(lines, at, depth);
  if (isRow(line) && at + 1 < lines.length && isRule(lines[at + 1])) return table(lines, at);
  if (itemOf(line)) return list(lines, at);
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !begins(lines, end)) end += 1;
  return [el("p", {}, inline(lines.slice(at, end).join("\n"))), end];
}

function begins(lines, at) {
  const line = lines[at];
  return /^ {0,3}(`{3,}|~{3,}|#{1,6} |>)/.test(line) || Boolean(itemOf(line)) || (isRow(line) && at + 1 < lines.length && isRule(lines[at + 1]));
}

function code(lines, at, fence) {
  const close = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},} *$`);
  let end = at + 1;
  while (end < lines.length && !close.test(lines[end])) end += 1;
  return [el("pre", { class: "md-code", title: fence[2] || null }, el("code", {}, lines.slice(at + 1, end).join("\n"))), end + 1];
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && /^ {0,3}>/.test(lines[end])) end += 1;
  return [el("blockquote", {}, markdown(lines.slice(at, end).map((line) => line.replace(/^ {0,3}> ?/, "")).join("\n"), depth + 1)), end];
}

function isRow(line) {
  return line.includes("|") && line.trim().length > 1;
}

function isRule(line) {
  return line.includes("-") && line.includes("|") && /^[\s|:-]+$/.test(line);
}

function table(lines, at) {
  const heads = split(lines[at]);
  let end = at + 2;
  while (end < lines.length && lines[end].trim() && isRow(lines[end])) end += 1;
  const rows = lines.slice(at + 2, end).map(split);
  return [
    el(
      "div",
      { class: "md-table" },
      el("table", {}, el("thead", {}, el("tr", {}, heads.map((cell) => el("th", { scope: "col" }, inline(cell))))), el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, inline(cell))))))),
    ),
    end,
  ];
}

function split(line) {
  return line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|").map((cell) => cell.trim());
}

function itemOf(line) {
  const found = /^(\s*)([-*+]|(\d{1,9})[.)])\s+(\S.*)$/.exec(line.slice(0, 2000));
  return found && { depth: found[1].replace(/\t/g, "    ").length, first: found[3], ordered: found[3] !== undefined, text: line.slice(line.indexOf(found[2]) + found[2].length).trim() };
}

/** Items up to a line that is neither an item nor indented; deeper items make lists inside. */
function list(lines, at) {
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = itemOf(lines[end]);
    if (item && items.length && item.depth <= items[0].depth && item.ordered !== items[0].ordered) break;
    if (item) items.push({ ...item, lines: [item.text] });
    else if (lines[end].trim() && /^\s+/.test(lines[end])) items.at(-1).lines.push(lines[end].trim());
    else if (!lines[end].trim() && end + 1 < lines.length && (itemOf(lines[end + 1]) || /^\s{2,}\S/.test(lines[end + 1]))) items.at(-1).lines.push("");
    else break;
    end += 1;
  }
  return [nest(items, 0), end];
}

function nest(items, level) {
  const top = items[0];
  const made = el(top.ordered ? "ol" : "ul", top.ordered && top.first !== "1" ? { start: top.first } : {});
  let at = 0;
  while (at < items.length) {
    let end = at + 1;
    while (end < items.length && items[end].depth > top.depth + 1) end += 1;
    const inner = items.slice(at + 1, end);
    const own = el("li", {}, inline(items[at].lines.join("\n").trim()));
    if (inner.length) own.append(level < MAX_DEPTH ? nest(inner, level + 1) : document.createTextNode(`\n${inner.map((item) => item.lines.join("\n")).join("\n")}`));
    made.append(own);
    at = end;
  }
  return made;
}

const INLINE = /(`+)(?!`)([^`]|[^`][^]*?[^`])\1(?!`)|(!?)\[([^\]\n]{0,500})\]\(([^()\s]{1,2000}(?:\([^()\s]{0,200}\)[^()\s]{0,500})?)(?:\s+"[^"\n]{0,300}")?\)|(\*\*|__)(?=\S)([^]{0,3000}?\S)\6|(?<![\w*_])([*_])(?=[^\s*_])([^*_]{1,3000}?)(?<=[^\s])\8(?![\w*_])|~~(?=\S)([^~]{1,3000})~~/;

/** Code, bold, italic, struck text, links and images in a piece of text. */
function inline(text, depth = 0) {
  if (depth > MAX_DEPTH || text.length > MAX_INLINE) return text;
  const made = [];
  let rest = text;
  for (let found = INLINE.exec(rest); found; found = INLINE.exec(rest)) {
    made.push(rest.slice(0, found.index));
    if (found[1]) made.push(el("code", {}, found[2].length > 2 ? found[2].replace(/^ (.*) $/s, "$1") : found[2]));
    else if (found[5]) made.push(link(found[3] === "!", found[4], found[5], depth));
    else if (found[6]) made.push(el("strong", {}, inline(found[7], depth + 1)));
    else if (found[8]) made.push(el("em", {}, inline(found[9], depth + 1)));
    else made.push(el("s", {}, inline(found[10], depth + 1)));
    rest = rest.slice(found.index + found[0].length);
  }
  made.push(rest);
  return made;
}

function link(isImage, words, target, depth) {
  return el("span", { class: "md-link" }, isImage && el("span", { class: "tag" }, "image"), isImage && " ", words === target ? null : [inline(words, depth + 1), " "], el("span", { class: "md-target" }, el("bdi", {}, target)));
}
