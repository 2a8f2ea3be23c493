// A question that is asked again after each change of its fields, with its states: nothing yet, busy, answered, refused.

import { ask, options } from "./api.js";
import { IS_FILE, attachedFiles, missingNote } from "./attached.js";
import { el, failed, fill, jump, markInvalid, skeleton, statusLine } from "./dom.js";
import { PAUSE_MS, fromAddress, input, others, toAddress } from "./form.js";
import * as format from "./format.js";

/**
 * A form beside its answer. `fields`: declarations; `start`: options where the address says none; `draw(answer, place)`;
 * `files`: texts by name, `needs(state)`: whether there is enough to ask; `run`: asks; `button`: asked when it is pressed and as the page
 * opens, not after each change; `kept`: what else the address says, with what it is where the address is silent.
 */
export async function questionPage(main, { title, noun, fields, start, draw, empty, needs, files = {}, before, run = ask, button = null, kept = {} }) {
  const [declared, attached] = await Promise.all([options(noun).catch((problem) => ({ problem })), attachedFiles()]);
  Object.assign(files, attached);
  if (declared.problem) {
    fill(main, el("h1", {}, title), failed(declared.problem));
    return;
  }
  const lists = new Set(Object.keys(declared).filter((key) => declared[key].type === "array"));
  const given = fromAddress(lists);
  for (const key of Object.keys(kept)) {
    kept[key] = given[key] ?? kept[key];
    delete given[key];
  }
  if (typeof fields === "function") fields = fields(declared);
  const state = Object.keys(given).length ? given : { ...start };
  const form = el("form", { class: "form card", "aria-label": title, onsubmit: (event) => { event.preventDefault(); answer(); } });
  const status = statusLine();
  const results = el("div", { id: "results", tabindex: "-1" });
  let running = null;
  let timer = 0;
  fill(main, el("h1", {}, title), el("div", { class: "split" }, form, jump(results), el("div", {}, status.line, results)));

  function change(key, value) {
    if (value === "" || (Array.isArray(value) && !value.length)) delete state[key];
    else state[key] = value;
    toAddress({ ...kept, ...state });
    if (fields.find((field) => field.key === key)?.redraws) {
      drawForm();
      form.elements[key]?.focus();
    }
    clearTimeout(timer);
    if (!button) running?.abort();
    if (!button) timer = setTimeout(answer, PAUSE_MS);
  }

  function drawForm() {
    fill(form, before?.({ state, change, files, drawForm, answer }), fields.filter((field) => field.when?.(state) ?? true).map((field) => input(field, state, change)), button && el("button", {}, button),
      others(declared, new Set([...fields.map((field) => field.key), "fleet", "trace", "explain", "sweep", "compare", "weak"]), state, change));
  }

  async function answer() {
    running?.abort();
    if (!needs(state, files)) {
      const lacking = Object.values(state).find((value) => IS_FILE.test(value) && !files[value]);
      fill(results, el("div", { class: "empty" }, lacking ? [el("h2", {}, `Which ${lacking}?`), el("p", {}, missingNote(lacking))] : empty));
      return;
    }
    const mine = (running = new AbortController());
    const stop = () => {
      mine.abort();
      status.quiet("Stopped.");
      settle();
    };
    const begun = performance.now();
    const report = (text, fraction) => status.busy(text, fraction, stop);
    report("Computing …");
    if (!results.querySelector("section")) fill(results, skeleton());
    results.classList.add("stale");
    results.setAttribute("aria-busy", "true");
    markInvalid(form);
    try {
      const used = Object.fromEntries(Object.entries(files).filter(([name]) => Object.values(state).includes(name) || name.endsWith(".yaml")));
      const question = { ...state, ...(Object.keys(used).length ? { files: used } : {}) };
      const found = await run(noun, question, { signal: mine.signal, progress: report });
      fill(results);
      draw(found, results, question);
      status.quiet(`Answered in ${format.seconds((performance.now() - begun) / 1000)}.`);
    } catch (problem) {
      if (problem.name === "AbortError") return;
      fill(results, failed(problem, true));
      status.quiet("No answer.");
      markInvalid(form, problem.details?.status === 400 ? problem.message : "");
      if (problem.details?.document) draw(problem.details.document, results, state);
    }
    settle();
  }

  function settle() {
    results.querySelector(".skeleton")?.remove();
    results.classList.remove("stale");
    results.removeAttribute("aria-busy");
  }

  drawForm();
  answer();
}
