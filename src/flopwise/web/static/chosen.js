// The plan that is chosen: memory, time, roofline, provenance, and its files.

import { ask, facts } from "./api.js";
import { chart, partNames, stack, stacks } from "./charts.js";
import { band, el, fill, table, tiles } from "./dom.js";
import { questionOf } from "./form.js";
import * as format from "./format.js";
import { schedule } from "./pipeline.js";

const LABELS = {
  step_s: "step", tokens_per_s: "tokens/s", tokens_per_s_per_gpu: "tokens/s per GPU", gpu_hours: "GPU-hours", ttft_s: "TTFT", tpot_s: "TPOT",
  e2e_s: "whole request", output_tokens_per_s: "output tokens/s", requests_per_s_capacity: "requests/s it sustains", busy_frac: "busy", usd_per_million_tokens: "per million tokens", usd_per_session: "per session", prompt_found_frac: "of prompts found in caches",
};
const UNITS = { run: "a run", hour: "an hour", request: "a request", million_requests: "a million requests", million_tokens: "a million tokens", million_input_tokens: "a million input tokens", million_output_tokens: "a million output tokens", epoch: "an epoch" };
/** Figures of a plan, and the names that they have in the provenance of the estimate of the same plan. */
const ORIGINS = {
  step_s: "step time", tokens_per_s: "throughput", tokens_per_s_per_gpu: "throughput per GPU", gpu_hours: "GPU-hours", ttft_s: "TTFT", tpot_s: "TPOT", e2e_s: "whole request",
  output_tokens_per_s: "throughput", usd_per_million_tokens: "cost per million output tokens", energy_joules: "energy", cost_usd: "cost",
};
/** The same of its intervals, where they are called otherwise. */
const OF_RUN = { tokens_per_s: "throughput per GPU", seconds: "run time", per_gpu_bytes: "memory per GPU" };
const LATENCIES = { ttft_s: "ttft", tpot_s: "tpot", e2e_s: "latency" };
const at = (percentile) => percentile && (percentile === "mean" ? "on average" : `at ${percentile} of requests`);
let picking = new AbortController();

/** Show a candidate below the table; what its own estimate holds follows as soon as it is there, unless `signal` is aborted. */
export function detail(place, row, plan, question, { rows, signal }) {
  picking.abort();
  picking = new AbortController();
  const more = el("div", {});
  const figures = Object.entries(row.figures).filter(([, value]) => value !== null).map(([name, value]) => [LABELS[name] ?? name, format.figure(name, value), LATENCIES[name] && at(format.percentileOf(plan, LATENCIES[name])), null, ORIGINS[name]]);
  const price = `${format.usd(row.usd_per_hour)}/h, ${row.price_date === "undated" ? "undated" : `of ${row.price_date}`}${row.price_note ? `, ${row.price_note}` : ""}`;
  fill(place, el("section", { class: "card", "aria-label": `Plan ${row.rank}` },
    el("h2", {}, `Plan ${row.rank}: ${row.num_instances} x ${row.provider} ${row.instance}, ${row.region}`),
    tiles([
      ["Price", format.usd(row.usd_per_hour), "an hour", null, ["serve", "encode"].includes(plan.task) ? "cost per hour" : "price per device and hour"],
      ["Energy", row.energy_joules === null ? null : format.joules(row.energy_joules), null, null, ORIGINS.energy_joules],
      ...figures,
      ...Object.entries(row.meets).map(([name, p]) => [`Meets ${name}`, `${format.fixed(100 * p, 0)} %`, "likely"]),
    ]),
    el("p", { class: "note" }, `Price: ${price}: ${row.price_source}. `, row.evidence && `Intervals rest on ${row.evidence}. `, row.note),
    Object.keys(row.unit_usd).length ? el("p", { class: "note" }, "What it costs: ", Object.entries(row.unit_usd).map(([name, value]) => `${UNITS[name] ?? name} ${value < 0.01 ? `$${value.toPrecision(3)}` : format.usd(value)}`).join("; ")) : null,
    row.reproduce && el("div", {}, el("p", { class: "note" }, "The same question on the command line:"), el("pre", {}, row.reproduce))),
  months(row, plan), more, exports(row, plan, rows));
  if (row.reproduce) estimate(more, row, plan, question, AbortSignal.any([signal, picking.signal]));
  else fill(more, el("p", { class: "note card" }, "Memory, time and provenance are computed for the first ten plans. Rule the others out above to see more of this one."));
}

/** What a service costs, month after month; a run is paid once. */
function months(row, plan) {
  if (!["serve", "encode", "develop"].includes(plan.task)) return null;
  const until = Array.from({ length: 13 }, (_, month) => month);
  const line = (usd) => until.map((month) => [month, month * usd]);
  const ends = row.cost_usd_low !== null && row.cost_usd_high !== null && row.cost_usd_high > row.cost_usd_low;
  const bound = (name, usd) => ({ name, type: "line", symbol: "none", lineStyle: { type: "dashed" }, data: line(usd) });
  return el("section", { class: "card" }, el("h2", {}, "Cost by month"),
    chart(`${format.usd(row.cost_usd)} a month, added up over a year`, () => ({
      legend: {}, tooltip: { trigger: "axis", formatter: (all) => [`after ${all[0].value[0]} months`, ...all.map((p) => `${p.seriesName}: ${format.usd(p.value[1])}`)].join("\n") },
      xAxis: { type: "value", name: "months", max: 12 }, yAxis: { type: "value", axisLabel: { formatter: (v) => `$${format.count(v).replace(" ", "")}` } },
      series: [{ name: "paid", type: "line", symbol: "none", data: line(row.cost_usd) }, ...(ends ? [bound("10 % pay less", row.cost_usd_low), bound("10 % pay more", row.cost_usd_high)] : [])],
    })),
    el("p", { class: "note" }, `${format.usd(row.cost_usd)} a month, ${format.usd(12 * row.cost_usd)} a year, at the list price of today.`));
}

/** Figures of the headline, as those of the plan below: where they come from. */
export function link(place, row, plan, question) {
  if (!row.reproduce) return;
  const { noun, question: own } = questionOf(row.reproduce);
  linkOrigins(place, () => origins(noun, own, question.files && own.model === "config.json" ? { files: question.files } : {}), plan);
}

async function estimate(place, row, plan, question, signal) {
  fill(place, el("p", { class: "card status busy" }, "Estimating it by itself …"));
  const { noun, question: own } = questionOf(row.reproduce);
  const files = question.files && own.model === "config.json" ? { files: question.files } : {};
  try {
    const [found, gpu] = await Promise.all([ask(noun, { ...own, ...files }, { signal }), facts("gpus", { name: row.gpu })]);
    const roof = el("section", { class: "card" }, el("h2", {}, `Roofline of ${gpu.name}`), el("p", { class: "status busy" }, "Timing each operation …"));
    fill(place, el("div", { class: "cards" }, intervals(found), memory(found), time(found), found.layout?.pp > 1 && found.global_batch ? schedule(found) : null, roof), provenance(() => origins(noun, own, files)));
    linkOrigins(place.closest("#chosen"), () => origins(noun, own, files), plan);
    await roofline(roof, noun, own, gpu, files, signal);
  } catch (problem) {
    if (problem.name !== "AbortError") fill(place, el("p", { class: "card note" }, `Its own estimate is not there: ${problem.message}`));
  }
}

const swatch = (index) => el("i", { class: `swatch s${index % 8}${index < 8 ? "" : " again"}`, "aria-hidden": "true" });

/** What the estimate knows with its 80 % interval, each as a band. */
function intervals(found) {
  const run = found.run ?? {};
  const known = [
    ["throughput per GPU", "tokens_per_s", found.tokens_per_s_per_gpu, found.low, found.high], ["time of the run", "seconds", run.seconds, run.seconds_low, run.seconds_high],
    ["cost of the run", "cost_usd", run.cost_usd, run.cost_usd_low, run.cost_usd_high], ["energy of the run", "energy_joules", run.energy_joules, run.energy_joules_low, run.energy_joules_high],
    ["TTFT, on average", "ttft_s", found.ttft_s, found.ttft_s_low, found.ttft_s_high], ["TPOT, on average", "tpot_s", found.tpot_s, found.tpot_s_low, found.tpot_s_high],
    ["whole request, on average", "e2e_s", found.e2e_s, found.e2e_s_low, found.e2e_s_high], ["output tokens/s", "output_tokens_per_s", found.output_tokens_per_s, found.output_tokens_per_s_low, found.output_tokens_per_s_high],
    ["memory per GPU", "per_gpu_bytes", found.memory.per_gpu_bytes, found.memory.low_bytes, found.memory.high_bytes],
  ].filter(([, , value, low, high]) => Number.isFinite(value) && Number.isFinite(low) && high > low);
  const text = (name, value) => (name === "per_gpu_bytes" ? format.gib(value) : format.figure(name, value));
  return el("section", { class: "card" }, el("h2", {}, "How sure it is"), table("Estimates with their 80 % intervals", [
    { title: "figure", cell: ([title]) => title }, { title: "estimate", number: true, cell: ([, name, value]) => el("span", { "data-origin": OF_RUN[name] ?? ORIGINS[name] }, text(name, value)) },
    { title: "80 % interval", cell: ([, name, value, low, high]) => [`${text(name, low)} to ${text(name, high)}`, band(low, value, high)] },
  ], known), found.interval?.evidence && el("p", { class: "note" }, `They rest on ${found.interval.evidence}.`));
}

function memory(found) {
  const held = found.memory;
  const sized = (items) => items.map((item) => ({ name: item.name, value: item.bytes })).filter((part) => part.value > 0);
  const one = held.worst_rank === "every rank" ? "each GPU" : `the fullest GPU${held.worst_rank ? ` (${held.worst_rank})` : ""}`;
  const bars = held.stages?.length ? held.stages.map((stage) => ({ name: stage.name.replace("pipeline ", ""), parts: sized(stage.items) })) : [{ name: one, parts: sized(held.items) }];
  const parts = partNames(bars);
  const several = bars.length > 1;
  const fullest = held.worst_rank?.replace("pipeline ", ""); // whose items the provenance holds
  const of = (bar, name) => bar.parts.find((part) => part.name === name)?.value;
  const whole = `${format.gib(held.per_gpu_bytes)} (80 % interval: ${format.gib(held.low_bytes)} to ${format.gib(held.high_bytes)})${held.capacity_bytes ? ` of ${format.gib(held.capacity_bytes)}` : ""}`;
  return el("section", { class: "card" }, el("h2", {}, several ? "Memory of the GPUs of each pipeline stage" : `Memory of ${one}`),
    stacks(`Memory by item, ${format.gib(held.per_gpu_bytes)} in all${several ? ` on ${held.worst_rank}` : ""}; the table holds the same figures`, bars.map((bar) => ({ ...bar, name: several ? bar.name : "" })), format.gib,
      held.capacity_bytes && { name: `capacity ${format.gib(held.capacity_bytes)}`, value: held.capacity_bytes }, 2 ** 30),
    table(several ? `Fullest, on ${held.worst_rank}: ${whole}` : whole, [
      { title: "item", cell: (name) => [swatch(parts.indexOf(name)), name] },
      ...bars.map((bar) => ({ title: several ? bar.name : "size", number: true, cell: (name) => (of(bar, name) ? el("span", { "data-origin": !several || bar.name === fullest ? name : null }, format.gib(of(bar, name))) : "-") })),
    ], parts),
    several && found.layout.pp > bars.length ? el("p", { class: "note" }, `Of ${found.layout.pp} stages; those between the first and the last are alike.`) : null);
}

function time(found) {
  const parts = found.breakdown.filter((part) => part.seconds > 0).map((part) => ({ name: part.name.replaceAll("_", " "), value: part.seconds }));
  const whole = parts.reduce((sum, part) => sum + part.value, 0);
  return el("section", { class: "card" }, el("h2", {}, "Time of a step"),
    stack(`Time of a step by cause, bound by ${found.bound}; the table holds the same figures`, parts, format.seconds),
    table(`${format.seconds(whole)}, bound by ${found.bound}`, [
      { title: "part", cell: (p) => [swatch(parts.indexOf(p)), p.name] }, { title: "time", number: true, cell: (p) => el("span", { "data-origin": p.name }, format.seconds(p.value)) },
      { title: "share", number: true, cell: (p) => format.percent(p.value / whole) },
    ], parts));
}

const OF_PASS = ["model", "tp", "ep", "precision", "stack", "attention", "weights", "kv_dtype", "engine"];

/** Each operation of a pass, as `flopwise explain` times it, under the roof of the GPU. */
async function roofline(place, noun, own, gpu, files, signal) {
  const title = el("h2", {}, `Roofline of ${gpu.name}`);
  const serves = noun === "serve";
  const length = serves ? Math.round((Number(own.input) || 1024) + (Number(own.output) || 256) / 2) : own.seq ?? 4096;
  const asked = { ...Object.fromEntries(Object.entries(own).filter(([key]) => OF_PASS.includes(key))), gpu: gpu.name, task: serves ? "serve" : "train", batch: serves ? own.max_batch ?? 1 : own.micro_batch ?? 1, seq: length, ...files };
  let found;
  try {
    found = await ask("explain", asked, { signal });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    fill(place, title, el("p", { class: "note" }, `The operations are not timed: ${problem.message}`));
    return;
  }
  const peak = gpu.peak?.[found.dtype] ?? gpu.peak?.bf16;
  const rows = found.operations.filter((one) => one.flops > 0 && one.bytes > 0 && one.seconds > 0)
    .map((one) => ({ ...one, x: one.flops / one.bytes, y: one.flops / one.seconds, whole: `${one.name}${one.forward ? "" : ", backward"}` }));
  if (!rows.length || !peak || !gpu.hbm_bytes_per_s) {
    fill(place, title, el("p", { class: "note" }, `Of ${gpu.name} the peak of ${found.dtype} or the bandwidth is not known.`));
    return;
  }
  const ridge = peak / gpu.hbm_bytes_per_s;
  const xs = [Math.min(...rows.map((r) => r.x), ridge / 4), ridge, Math.max(...rows.map((r) => r.x), ridge * 4)];
  const points = (bound) => rows.filter((r) => (r.bound === "memory") === (bound === "memory")).map((r) => ({ name: r.whole, value: [r.x, r.y], row: r }));
  const pass = [found.settings.pass, found.settings.recipe].filter(Boolean).join(", ");
  fill(place, title,
    chart("Rate of each operation against its FLOP per byte, under the roof of the GPU; the table holds the same figures", () => ({
      legend: {}, tooltip: { formatter: (p) => (p.data.row ? `${p.name}\n${format.rate(p.data.row.y, "FLOP/s")} at ${format.fixed(p.data.row.x, 1)} FLOP/byte\n${format.percent(p.data.row.share_frac)} of the pass` : "") },
      xAxis: { type: "log", name: "FLOP per byte" }, yAxis: { type: "log", axisLabel: { formatter: (v) => format.rate(v, "FLOP/s") } },
      series: [
        { name: `roof, ${found.dtype}`, type: "line", symbol: "none", data: xs.map((x) => [x, Math.min(peak, x * gpu.hbm_bytes_per_s)]) },
        { name: "memory-bound", type: "scatter", symbolSize: 11, data: points("memory") },
        { name: "compute-bound", type: "scatter", symbolSize: 11, data: points("compute") },
      ],
    })),
    el("p", { class: "note" }, `${pass}: ${format.seconds(found.pass_s)}, ${format.percent(found.memory_bound_frac)} of it bound by memory. As flopwise explain prints it.`),
    el("details", {}, el("summary", {}, `${rows.length} operations`), table("Operations", [
      { title: "operation", cell: (r) => r.whole }, { title: "times", number: true, cell: (r) => r.layers }, { title: "each", number: true, cell: (r) => format.seconds(r.seconds) },
      { title: "share", number: true, cell: (r) => format.percent(r.share_frac) }, { title: "FLOP/byte", number: true, cell: (r) => format.fixed(r.x, 1) },
      { title: "rate", number: true, cell: (r) => format.rate(r.y, "FLOP/s") }, { title: "bound by", cell: (r) => r.bound },
    ], rows)));
}

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

let explained = { key: "", figures: null };
/** The provenance of an estimate: asked when somebody wants to see it, since its tree is long. */
function origins(noun, own, files) {
  const key = JSON.stringify([noun, own]);
  if (explained.key !== key) {
    explained = { key, figures: ask(noun, { ...own, explain: true, ...files }).then((found) => found.provenance) };
    explained.figures.catch(() => { explained.key = ""; });
  }
  return explained.figures;
}

/** The figure of that name (or of that name for each of something) nearest to the root; null where there is none. */
function named(figures, name) {
  for (let level = figures, depth = 0; level.length && depth < 6; level = level.flatMap((one) => one.inputs ?? []), depth += 1) {
    const one = level.find((figure) => figure.name === name) ?? level.find((figure) => figure.name.startsWith(`${name} per`));
    if (one) return one;
  }
  return null;
}

/** Fill `place` with what `figures()` are made of: all, or the one of that name. */
async function showOrigins(place, figures, name = null) {
  fill(place, el("p", { class: "status busy" }, "Looking up where it comes from …"));
  try {
    const all = await figures();
    const some = name === null ? all : [named(all, name)].filter(Boolean);
    fill(place, some.length ? some.map((one) => node(one, true)) : el("p", {}, "The estimate holds nothing more about it."));
  } catch (problem) {
    fill(place, el("p", { class: "error" }, problem.message));
  }
}

/** Where each figure comes from: formula, facts with source and date, assumptions. */
function provenance(figures) {
  const place = el("div", {});
  const section = el("details", { ontoggle: () => { if (section.open && !place.children.length) showOrigins(place, figures); } }, el("summary", {}, "Formulas, facts with source and date, assumptions"), place);
  return el("section", { class: "card tree" }, el("h2", {}, "Where the figures come from"), section);
}

/** What a figure of the plan is of the estimate that its provenance tells of, where the two are not the same. */
function difference(name, plan) {
  if (name === "cost per hour") return "The price is that of all machines; a month has 730 hours.";
  const percentile = { TTFT: "ttft", TPOT: "tpot", "whole request": "latency" }[name];
  const held = percentile && at(format.percentileOf(plan, percentile));
  return held && held !== "on average" ? `The plan tells it ${held}; this is the average that it is computed from.` : "";
}

/** Figures with a name in the provenance become buttons that show where they come from. */
function linkOrigins(place, figures, plan) {
  for (const shown of place?.querySelectorAll("[data-origin]") ?? []) {
    const name = shown.dataset.origin;
    const show = () => {
      const inside = el("div", {});
      const note = difference(name, plan);
      const dialog = el("dialog", { class: "card tree", "aria-label": `Where ${name} comes from` },
        el("div", { class: "row" }, el("h2", {}, name), el("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Close")), note && el("p", { class: "note" }, note), inside);
      dialog.addEventListener("close", () => dialog.remove());
      dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
      document.body.append(dialog);
      dialog.showModal();
      showOrigins(inside, figures, name);
    };
    fill(shown, el("button", { type: "button", class: "origin", "aria-haspopup": "dialog", title: "Where it comes from", onclick: show }, shown.textContent));
  }
}

const FILES = "application/vnd.flopwise.files+json";

/** The plan as the files of other tools: previewed, and packed. */
function exports(row, plan, rows) {
  if (rows !== plan.plans) return null;
  const preview = el("div", { role: "status", "aria-live": "polite" });
  const select = el("select", { "aria-label": "Export target" }, el("option", { value: "" }, "Choose a target …"));
  facts("export", { list: "true" }).then((targets) => {
    select.append(...targets.filter((one) => one.for.includes(plan.task)).map((one) => el("option", { value: one.name }, `${one.name}: ${one.summary}`)));
  }, () => {});
  const question = () => ({ target: select.value, plan: "plan.json", rank: row.rank, files: { "plan.json": plan } });
  async function show() {
    if (!select.value) return;
    fill(preview, el("p", { class: "status busy" }, "Writing the files …"));
    try {
      const files = await ask("export", question(), { accept: FILES });
      fill(preview, el("button", { type: "button", onclick: pack }, "Download as zip"),
        Object.entries(files).map(([name, text]) => el("details", {}, el("summary", {}, name), el("pre", { tabindex: "0" }, text))));
    } catch (problem) {
      fill(preview, el("p", { class: "error" }, problem.message));
    }
  }
  async function pack() {
    const url = URL.createObjectURL(await ask("export", question(), { accept: "application/zip" }));
    el("a", { href: url, download: `flopwise-${select.value}.zip` }).click();
    URL.revokeObjectURL(url);
  }
  select.addEventListener("change", show);
  return el("section", { class: "card noprint" }, el("h2", {}, "Deploy it"), select, preview);
}
