// Where a figure comes from: its formula and what it is made of, facts with source and date, down to what nobody computed.

import { ask } from "./api.js";
import { el, fill } from "./dom.js";
import { fold } from "./form.js";
import * as format from "./format.js";

const words = (one) => [one.name, one.value === undefined ? "" : `: ${format.withUnit(one.value, one.unit)}`, one.formula ? el("span", { class: "from" }, ` = ${one.formula}`) : "",
  el("span", { class: "from" }, [one.kind && one.kind !== "derived" ? ` [${one.kind}]` : "", one.source ? ` ${one.source}` : "", one.date ? `, ${one.date}` : "", one.note ? ` (${one.note})` : ""].join(""))];

/** A figure with what it is made of; each level opens. */
function node(one, open) {
  if (!one.inputs?.length) return el("p", {}, words(one));
  const made = el("details", { open }, el("summary", {}, words(one)));
  const unfold = () => { if (made.open && made.children.length === 1) made.append(...one.inputs.map((inner) => node(inner, false))); };
  made.addEventListener("toggle", unfold);
  if (open) made.append(...one.inputs.map((inner) => node(inner, false)));
  return made;
}

/** The document of an answer that says no: what does not fit has memory and a price, and these have a provenance. */
function infeasible(problem) {
  if (!problem.details?.document?.provenance) throw problem;
  return problem.details.document;
}

const latest = { key: "", figures: null };
/** The provenance that a question answers, which is asked when somebody wants to see it, since its tree is long. */
function answered(key, question) {
  if (latest.key !== key) {
    Object.assign(latest, { key, figures: question().catch(infeasible).then((found) => [found.provenance].flat()) });
    latest.figures.catch(() => { latest.key = ""; });
  }
  return latest.figures;
}

/** Of an estimate, by the options that it was asked with. */
export const ofEstimate = (noun, own, files = {}) => answered(JSON.stringify([noun, own]), () => ask(noun, { ...own, explain: true, ...files }));

/** A plan without what stands beside `plans`: it is sent to be asked about, and nothing is searched again. */
const bare = (plan, plans) => ({ ...plan, plans, misses: [], front: [], fronts: {}, levers: [], ruled_out: [], demoted: [], target_costs: [], if_you_port: [] });
const reread = (plan, files, more = {}) => ask("plan", { from: "plan.json", ...more, files: { ...files, "plan.json": plan } });
const explained = (plan, files) => answered(JSON.stringify(plan), () => reread(plan, files, { explain: true }));

/** Of a row of a plan, of whatever rank, or of a front. */
export const ofPlan = (plan, row, files = {}) => explained(bare(plan, [{ ...row, rank: 1 }]), files);

/** Of the single changes of the first row; some of them are other rows. */
export const ofChanges = (plan, files = {}) => explained({ ...bare(plan, plan.plans), levers: plan.levers }, files);

/** The command that estimates a row by itself: later rows and those of a front come without. */
export async function commandOf(plan, row, files = {}) {
  return row.reproduce || (await reread(bare(plan, [{ ...row, rank: 1 }]), files)).plans[0].reproduce;
}

/** The figure of that name (or of that name for each of something) nearest to the root; null where there is none. */
export function named(figures, name) {
  for (let level = figures, depth = 0; level.length && depth < 6; level = level.flatMap((one) => one.inputs ?? []), depth += 1) {
    const one = level.find((figure) => figure.name === name) ?? level.find((figure) => figure.name.startsWith(`${name} per`));
    if (one) return one;
  }
  return null;
}

/** What a provenance says of the errors of an estimate: the ends of measured / predicted, each once. */
function errorsOf(figures) {
  const found = new Map();
  for (let level = figures, depth = 0; level.length && depth < 6; level = level.flatMap((one) => one.inputs ?? []), depth += 1) {
    for (const one of level) if (one.name.startsWith("measured / predicted")) found.set(`${one.name} ${one.fitted_on}`, one);
  }
  return [...found.values()];
}

/** A figure that an estimate does not hold by its name, by `formula` from the estimate's figure `of` and, where it is an end of an interval, its errors. */
export async function derivedFrom(figures, { name, value, formula, of, isEnd = false }) {
  const all = await figures();
  return [{ name, value, kind: "derived", formula, inputs: [named(all, of), ...(isEnd ? errorsOf(all) : [])].filter(Boolean) }];
}

/** Fill `place` with what `figures()` are made of: all, or the one of that name. */
async function showOrigins(place, figures, name = null) {
  fill(place, el("p", { class: "status busy" }, "Looking up where it comes from …"));
  try {
    const all = await figures();
    const some = name === null ? all : [named(all, name)].filter(Boolean);
    fill(place, some.length ? some.map((one) => node(one, true)) : el("p", {}, "The estimate has no further detail about it."));
  } catch (problem) {
    fill(place, el("p", { class: "error" }, problem.message));
  }
}

/** The provenance of all figures, folded until somebody opens it. */
export function provenance(figures) {
  const place = el("div", {});
  const section = fold("origins", { ontoggle: () => { if (section.open && !place.children.length) showOrigins(place, figures); } }, "Formulas, facts with source and date, assumptions", place);
  return el("section", { class: "card tree" }, el("h2", {}, "Where the figures come from"), section);
}

/** A dialog that says where the figure of that name comes from. */
export function openOrigin(name, figures) {
  const inside = el("div", {});
  const dialog = el("dialog", { class: "card tree", "aria-label": `Where ${name} comes from` },
    el("div", { class: "row" }, el("h2", {}, name), el("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Close")), inside);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.body.append(dialog);
  dialog.showModal();
  showOrigins(inside, figures, name);
}

/**
 * Figures within `place` that have a name in a provenance become buttons that show it. `beside`: of a table whose
 * figures stand below with a button each; the keyboard is led to those alone.
 */
export function linkOrigins(place, figures, { beside = false } = {}) {
  for (const shown of place?.querySelectorAll("[data-origin]:not(:has(button))") ?? []) {
    fill(shown, el("button", { type: "button", class: "origin", "aria-haspopup": "dialog", title: "Where it comes from", tabindex: beside ? "-1" : null, onclick: () => openOrigin(shown.dataset.origin, figures) }, shown.textContent));
  }
}

/** A figure whose provenance has a name. */
export const figure = (name, text) => el("span", { "data-origin": name }, text);

/** A figure with a provenance of its own, to which `origin()` resolves. */
export function own(name, text, origin) {
  const shown = el("span", {}, figure(name, text));
  linkOrigins(shown, origin);
  return shown;
}

/** Both ends of the interval of a figure, each with its provenance; `origin` null: without. */
export const interval = (origin, low, high, text) => [figure(origin && `${origin}, low`, text(low)), " to ", figure(origin && `${origin}, high`, text(high))];
