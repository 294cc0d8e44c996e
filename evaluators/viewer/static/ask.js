// Answers of the viewer that serves this page. In an export, exported.js takes the place of this file.

/** True in an export: nothing follows, and nothing can be written. */
export const exported = false;

/** Address of the list of runs, from the page of a run. */
export const listPage = "../../";

/** Address of the page of a run, or of two side by side, from the list. */
export function runAddress(...numbers) {
  return `runs/${numbers.join("-")}/`;
}

/** True if the run has a page. */
export function hasRun() {
  return true;
}

/** True if these two runs can be shown side by side. */
export function hasPair() {
  return true;
}

/** Makes the first search faster, where something can be done for it: called when somebody enters the search field. */
export function prepareSearch() {
  // the server has read the transcripts already
}

/** Sends the value, as JSON; returns the answer. Raises Error with words for people. */
export function send(path, value) {
  return ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(value) });
}

/** The answer to a request such as `api/about`. Raises Error with words for people. */
export async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the viewer does not answer: is gymcp view still running?");
  }
  let body;
  try {
    body = await answer.json();
  } catch {
    throw new Error(answer.status === 403 ? "open the address that gymcp view has printed" : `the viewer answered ${answer.status}`);
  }
  if (!answer.ok) throw new Error(body.error ?? `the viewer answered ${answer.status}`);
  return body;
}
