// The plan that is chosen: memory, time, roofline, provenance, and its files.

import { ask, facts } from "./api.js";
import { chart } from "./charts.js";
import { download, el, fill, tiles } from "./dom.js";
import { OPERATIONS, intervals, memory, roofline, time } from "./estimated.js";
import { fold, questionOf } from "./form.js";
import * as format from "./format.js";
import { commandOf, derivedFrom, figure, linkOrigins, ofEstimate, ofPlan, own, provenance } from "./origins.js";
import { schedule } from "./pipeline.js";
import { rowsOf } from "./planned.js";

/** Figures of a plan: what they are called, and the names that they have in its provenance. */
const FIGURES = {
  step_s: ["step", "step time"], tokens_per_s: ["tokens/s", "throughput"], tokens_per_s_per_gpu: ["tokens/s per GPU", "throughput per GPU"], gpu_hours: ["GPU-hours", "GPU-hours"],
  ttft_s: ["TTFT", "TTFT of the plan"], tpot_s: ["TPOT", "TPOT of the plan"], e2e_s: ["whole request", "whole request of the plan"], output_tokens_per_s: ["output tokens/s", "output tokens/s of the plan"],
  requests_per_s_capacity: ["requests/s it sustains", "requests/s it sustains"], busy_frac: ["busy", "busy"], usd_per_million_tokens: ["per million tokens", "cost per million tokens of the plan"],
  usd_per_session: ["per session", "cost per session"], prompt_found_frac: ["of prompts found in caches", "share of prompts found in caches"],
};
const UNITS = { run: "a run", hour: "an hour", request: "a request", million_requests: "a million requests", million_tokens: "a million tokens", million_input_tokens: "a million input tokens", million_output_tokens: "a million output tokens", epoch: "an epoch" };
const LATENCIES = { ttft_s: "ttft", tpot_s: "tpot", e2e_s: "latency" };
const services = ["serve", "encode", "develop"];
let picking = new AbortController();

/** Show a row below the table; what its own estimate holds follows as soon as it is there, unless `signal` is aborted. `view.files`: the target of its files. */
export function detail(place, row, plan, question, { view, remember, signal }) {
  picking.abort();
  picking = new AbortController();
  const title = rowsOf(plan).includes(row) ? `Plan ${row.rank}` : "On the front";
  const more = el("div", {});
  const command = el("div", {});
  const figures = Object.entries(row.figures).filter(([, value]) => value !== null).map(([name, value]) => [FIGURES[name]?.[0] ?? name, format.figure(name, value), LATENCIES[name] && format.percentileOf(plan, LATENCIES[name]), null, FIGURES[name]?.[1]]);
  const price = [`${format.usd(row.usd_per_hour)}/h`, row.price_date === "undated" ? "" : `of ${row.price_date}`, row.price_note].filter(Boolean).join(", "); // the remark says that it is undated
  fill(place, el("section", { class: "card", "aria-label": title },
    el("h2", {}, `${title}: ${row.num_instances} x ${row.provider} ${row.instance}, ${row.region}`),
    tiles([
      ["Price", format.usd(row.usd_per_hour), "an hour", null, "price of all machines"],
      [services.includes(plan.task) ? "Cost a month" : "Cost", format.usd(row.cost_usd), null, null, "cost of the plan"],
      ["Energy", row.energy_joules === null ? null : format.joules(row.energy_joules), null, null, ["finetune", "pretrain"].includes(plan.task) ? "energy" : "energy of the plan"],
      ...figures,
      ...Object.entries(row.meets).map(([name, p]) => [`Meets ${name}`, format.chance(p), "likely", null, `chance of ${name}`]),
    ]),
    el("p", { class: "note" }, `Price: ${price}: ${row.price_source}. `, row.evidence && `Intervals rest on ${row.evidence}. `, row.note),
    Object.keys(row.unit_usd).length ? el("p", { class: "note" }, "What it costs: ", Object.entries(row.unit_usd).map(([name, value], i) => [i ? "; " : "", `${UNITS[name] ?? name} `, figure(`cost per ${name.replaceAll("_", " ")}`, value < 0.01 ? `$${value.toPrecision(3)}` : format.usd(value))])) : null,
    command),
  months(row, plan, () => ofPlan(plan, row, question.files)), more, plan.plans.includes(row) ? exports(row, plan, view, remember) : null);
  for (const one of place.children) if (one !== more) linkOrigins(one, () => ofPlan(plan, row, question.files));
  estimate(more, command, row, plan, question, AbortSignal.any([signal, picking.signal]));
}

const YEAR = 12; // months
const MONTH_S = 730 * 3600;

/** What a service costs, month after month of a year; a run of more than a month, until it ends. `origins` asks for the provenance of the plan. */
function months(row, plan, origins) {
  if (!services.includes(plan.task)) return monthsOfRun(row);
  const until = Array.from({ length: YEAR + 1 }, (_, month) => month);
  const line = (usd) => until.map((month) => [month, month * usd]);
  const ends = row.cost_usd_low !== null && row.cost_usd_high !== null && row.cost_usd_high > row.cost_usd_low;
  const bound = (name, usd) => ({ name, type: "line", symbol: "none", lineStyle: { type: "dashed" }, data: line(usd) });
  return el("section", { class: "card" }, el("h2", {}, "Cost by month"),
    chart(`${format.usd(row.cost_usd)} a month, added up over a year`, () => ({
      legend: ends ? {} : undefined, tooltip: { trigger: "axis", formatter: (all) => [`after ${all[0].value[0]} months`, ...all.map((p) => `${p.seriesName}: ${format.usd(p.value[1])}`)].join("\n") },
      xAxis: { type: "value", name: "months", max: YEAR }, yAxis: { type: "value", axisLabel: { formatter: format.briefUsd } },
      series: [{ name: "paid", type: "line", symbol: "none", data: line(row.cost_usd) }, ...(ends ? [bound("10 % pay less", row.cost_usd_low), bound("10 % pay more", row.cost_usd_high)] : [])],
    })),
    el("p", { class: "note" }, figure("cost of the plan", format.usd(row.cost_usd)), " a month, ", own("cost of a year", format.usd(YEAR * row.cost_usd), () => derivedFrom(origins, { name: "cost of a year", value: format.usd(YEAR * row.cost_usd), formula: "12 x cost of the plan", of: "cost of the plan" })), " a year, at the price above."));
}

function monthsOfRun(row) {
  const whole = (row.start_s + row.seconds) / MONTH_S;
  if (!(whole > 1)) return null;
  const paid = Array.from({ length: Math.ceil(whole) }, (_, month) => Math.min(month + 1, whole) - month).map((share) => (row.cost_usd * share) / whole);
  return el("section", { class: "card" }, el("h2", {}, "Cost by month"),
    chart(`${format.usd(row.cost_usd)} over ${format.seconds(row.seconds)}, by the month of the run`, () => ({
      tooltip: { formatter: (p) => `month ${p.name}: ${format.usd(p.value)}` },
      xAxis: { type: "category", name: "month of the run", data: paid.map((_, month) => String(month + 1)), axisLabel: { alignMinLabel: "center", alignMaxLabel: "center" } }, yAxis: { type: "value", axisLabel: { formatter: format.briefUsd } },
      series: [{ type: "bar", data: paid, barMaxWidth: 60 }],
    })),
    el("p", { class: "note" }, figure("cost of the plan", format.usd(row.cost_usd)), ` in all, ${format.usd(paid[0])} for each whole month of 730 hours.`));
}

/** The page that asks a question of `train` or `serve`. */
function estimateAddress({ noun, question }) {
  const pairs = Object.entries(question).flatMap(([key, value]) => [value].flat().map((one) => [key, String(one)]));
  return `/estimate?${new URLSearchParams([["question", noun], ...pairs])}${question.model === "config.json" ? location.hash : ""}`;
}

/** What a row's own estimate holds, and in `command` the line that asks for it. */
async function estimate(place, command, row, plan, question, signal) {
  fill(place, el("p", { class: "card status busy" }, "Estimating it by itself …"));
  try {
    const line = await commandOf(plan, row, question.files);
    if (signal.aborted) return;
    const query = questionOf(line);
    const { noun, question: options } = query;
    const files = question.files && options.model === "config.json" ? { files: question.files } : {};
    fill(command, el("p", { class: "note" }, "The same question on the command line", el("span", { class: "noprint" }, ", or ", el("a", { href: estimateAddress(query) }, "by itself, to change it")), ":"), el("pre", {}, line));
    const [found, gpu] = await Promise.all([ask(noun, { ...options, ...files }, { signal }), facts("gpus", { name: row.gpu })]);
    const roof = el("section", { class: "card" }, el("h2", {}, `Roofline of ${gpu.name}`), el("p", { class: "status busy" }, OPERATIONS));
    const origins = () => ofEstimate(noun, options, files);
    const cards = el("div", { class: "cards" }, intervals(found), memory(found, origins), time(found, origins), found.layout?.pp > 1 && found.global_batch ? schedule(found, origins) : null, roof);
    fill(place, cards, provenance(() => ofPlan(plan, row, question.files)));
    linkOrigins(cards, origins);
    await roofline(roof, noun, options, gpu, files, signal, found);
  } catch (problem) {
    if (problem.name !== "AbortError") fill(place, el("p", { class: "card note" }, `This plan could not be estimated by itself: ${problem.message}`));
  }
}

const FILES = "application/vnd.flopwise.files+json";

/** The plan as the files of other tools: previewed, and packed. */
function exports(row, plan, view, remember) {
  const preview = el("div", { role: "status", "aria-live": "polite" });
  const select = el("select", { "aria-label": "Export target" }, el("option", { value: "" }, "Choose a target …"));
  facts("export", { list: "true" }).then((targets) => {
    select.append(...targets.filter((one) => one.for.includes(plan.task)).map((one) => el("option", { value: one.name, selected: one.name === view.files }, `${one.name}: ${one.summary}`)));
    show();
  }, () => {});
  const question = () => ({ target: select.value, plan: "plan.json", rank: row.rank, files: { "plan.json": plan } });
  async function show() {
    if (!select.value) return fill(preview);
    fill(preview, el("p", { class: "status busy" }, "Writing the files …"));
    try {
      const files = await ask("export", question(), { accept: FILES });
      return fill(preview, el("button", { type: "button", onclick: pack }, "Download as zip"),
        Object.entries(files).map(([name, text]) => fold(`file:${name}`, {}, name, el("pre", { tabindex: "0" }, text))));
    } catch (problem) {
      return fill(preview, el("p", { class: "error" }, problem.message));
    }
  }
  const pack = async () => download(await ask("export", question(), { accept: "application/zip" }), `flopwise-${select.value}.zip`);
  select.addEventListener("change", () => { view.files = select.value; remember(); show(); });
  return el("section", { class: "card noprint" }, el("h2", {}, "Deploy it"), select, preview);
}
