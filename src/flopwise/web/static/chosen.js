// The plan that is chosen: memory, time, roofline, provenance, and its files.

import { ask, facts } from "./api.js";
import { chart, stack } from "./charts.js";
import { el, fill, table, tiles } from "./dom.js";
import { questionOf } from "./form.js";
import * as format from "./format.js";
import { schedule } from "./pipeline.js";

const LABELS = {
  step_s: "step", tokens_per_s: "tokens/s", tokens_per_s_per_gpu: "tokens/s per GPU", gpu_hours: "GPU-hours", ttft_s: "TTFT", tpot_s: "TPOT",
  e2e_s: "whole request", output_tokens_per_s: "output tokens/s", requests_per_s_capacity: "requests/s it sustains", busy_frac: "busy", usd_per_million_tokens: "per million tokens",
};
const UNITS = { run: "a run", hour: "an hour", request: "a request", million_requests: "a million requests", million_tokens: "a million tokens", million_input_tokens: "a million input tokens", million_output_tokens: "a million output tokens", epoch: "an epoch" };
let latest = null;

/** Show a candidate below the table; what its own estimate holds follows as soon as it is there. */
export function detail(place, row, plan, question, rows) {
  latest = row;
  const more = el("div", {});
  const figures = Object.entries(row.figures).filter(([, value]) => value !== null).map(([name, value]) => [LABELS[name] ?? name, format.figure(name, value)]);
  const price = `${format.usd(row.usd_per_hour)}/h, ${row.price_date === "undated" ? "undated" : `of ${row.price_date}`}${row.price_note ? `, ${row.price_note}` : ""}`;
  fill(place, el("section", { class: "card", "aria-label": `Plan ${row.rank}` },
    el("h2", {}, `Plan ${row.rank}: ${row.num_instances} x ${row.provider} ${row.instance}, ${row.region}`),
    tiles([
      ["Price", format.usd(row.usd_per_hour), "an hour"],
      ["Energy", row.energy_joules === null ? null : format.joules(row.energy_joules)],
      ...figures,
      ...Object.entries(row.meets).map(([name, p]) => [`Meets ${name}`, `${format.fixed(100 * p, 0)} % likely`]),
    ]),
    el("p", { class: "note" }, `Price: ${price}: ${row.price_source}. `, row.evidence && `Intervals rest on ${row.evidence}. `, row.note),
    Object.keys(row.unit_usd).length ? el("p", { class: "note" }, "What it costs: ", Object.entries(row.unit_usd).map(([name, value]) => `${UNITS[name] ?? name} ${value < 0.01 ? `$${value.toPrecision(3)}` : format.usd(value)}`).join("; ")) : null,
    row.reproduce && el("div", {}, el("p", { class: "note" }, "The same question on the command line:"), el("pre", {}, row.reproduce))),
  months(row, plan), more, exports(row, plan, rows));
  if (row.reproduce) estimate(more, row, question);
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
      xAxis: { type: "value", name: "months", max: 12 }, yAxis: { type: "value", axisLabel: { formatter: format.usd } },
      series: [{ name: "paid", type: "line", symbol: "none", data: line(row.cost_usd) }, ...(ends ? [bound("10 % pay less", row.cost_usd_low), bound("10 % pay more", row.cost_usd_high)] : [])],
    }), { low: true }),
    el("p", { class: "note" }, `${format.usd(row.cost_usd)} a month, ${format.usd(12 * row.cost_usd)} a year, at the list price of today.`));
}

async function estimate(place, row, question) {
  fill(place, el("p", { class: "card status busy" }, "Estimating it by itself …"));
  const { noun, question: own } = questionOf(row.reproduce);
  const asked = { ...own, explain: true, ...(question.files && own.model === "config.json" ? { files: question.files } : {}) };
  try {
    const [found, gpu] = await Promise.all([ask(noun, asked), facts("gpus", { name: row.gpu })]);
    if (latest !== row) return;
    fill(place, el("div", { class: "cards" }, memory(found), time(found), found.layout?.pp > 1 && found.global_batch ? schedule(found) : null, await roofline(own, gpu, found)), provenance(found.provenance));
  } catch (problem) {
    if (latest === row) fill(place, el("p", { class: "card note" }, `Its own estimate is not there: ${problem.message}`));
  }
}

function memory(found) {
  const held = found.memory;
  const parts = held.items.filter((item) => item.bytes > 0).map((item) => ({ name: item.name, value: item.bytes }));
  return el("section", { class: "card" }, el("h2", {}, "Memory of the fullest GPU"),
    stack(`Memory by item, ${format.gib(held.per_gpu_bytes)} in all; the table holds the same figures`, parts, format.gib, held.capacity_bytes && { name: "capacity", value: held.capacity_bytes }),
    table(`${format.gib(held.per_gpu_bytes)} (80 % interval: ${format.gib(held.low_bytes)} to ${format.gib(held.high_bytes)}) of ${held.capacity_bytes ? format.gib(held.capacity_bytes) : "-"}`, [
      { title: "item", cell: (p) => p.name }, { title: "size", number: true, cell: (p) => format.gib(p.value) },
    ], parts));
}

function time(found) {
  const parts = found.breakdown.filter((part) => part.seconds > 0).map((part) => ({ name: part.name.replaceAll("_", " "), value: part.seconds }));
  const whole = parts.reduce((sum, part) => sum + part.value, 0);
  return el("section", { class: "card" }, el("h2", {}, "Time of a step"),
    stack(`Time of a step by cause, bound by ${found.bound}; the table holds the same figures`, parts, format.seconds),
    table(`${format.seconds(whole)}, bound by ${found.bound}`, [
      { title: "part", cell: (p) => p.name }, { title: "time", number: true, cell: (p) => format.seconds(p.value) },
      { title: "share", number: true, cell: (p) => format.percent(p.value / whole) },
    ], parts));
}

/** Each operation of a pass against the roof of the GPU: its rate is at most the roof above it. */
async function roofline(own, gpu, found) {
  const peak = gpu.peak?.bf16;
  if (!peak || !gpu.hbm_bytes_per_s || own.model === "config.json") return null;
  const seq = Number(own.seq) || Number(own.input) || 1024;
  const model = await ask("models", { name: own.model, batch: own.micro_batch ?? 1, seq }).catch(() => null);
  const rows = (model?.operations ?? []).filter((one) => one.flops > 0 && one.bytes > 0).map((one) => ({ name: one.name, x: one.flops / one.bytes, flops: one.flops, bytes: one.bytes }));
  if (!rows.length) return null;
  const roof = (x) => Math.min(peak, x * gpu.hbm_bytes_per_s);
  const ridge = peak / gpu.hbm_bytes_per_s;
  const xs = [Math.min(...rows.map((r) => r.x), ridge / 4), ridge, Math.max(...rows.map((r) => r.x), ridge * 4)];
  return el("section", { class: "card" }, el("h2", {}, `Roofline of ${gpu.name}`),
    chart("Operations of a forward pass under the roof of the GPU; the table holds the same figures", () => ({
      legend: {}, tooltip: { formatter: (p) => (p.data.name ? `${p.data.name}\n${format.fixed(p.value[0], 1)} FLOP/byte` : "") },
      xAxis: { type: "log", name: "FLOP per byte" }, yAxis: { type: "log", axisLabel: { formatter: (v) => format.rate(v, "FLOP/s") } },
      series: [
        { name: "roof, bf16 datasheet", type: "line", symbol: "none", data: xs.map((x) => [x, roof(x)]) },
        { name: "operations, at most", type: "scatter", symbolSize: 11, data: rows.map((r) => ({ name: r.name, value: [r.x, roof(r.x)] })) },
      ],
    })),
    el("details", {}, el("summary", {}, `${rows.length} operations of a forward pass of ${format.fixed(seq, 0)} tokens`), table("Operations", [
      { title: "operation", cell: (r) => r.name }, { title: "work", number: true, cell: (r) => format.flops(r.flops) }, { title: "moved", number: true, cell: (r) => format.bytes(r.bytes) },
      { title: "FLOP/byte", number: true, cell: (r) => format.fixed(r.x, 1) }, { title: "bound by", cell: (r) => (r.x < ridge ? "memory" : "compute") },
    ], rows)));
}

/** Where each figure comes from: formula, facts with source and date, assumptions; each level opens. */
function provenance(figures) {
  const told = (one) => [one.name, one.value === undefined ? "" : `: ${format.withUnit(one.value, one.unit)}`, one.formula ? el("span", { class: "from" }, ` = ${one.formula}`) : "",
    el("span", { class: "from" }, [one.kind && one.kind !== "derived" ? ` [${one.kind}]` : "", one.source ? ` ${one.source}` : "", one.date ? `, ${one.date}` : "", one.note ? ` (${one.note})` : ""].join(""))];
  const node = (one, open) => {
    if (!one.inputs?.length) return el("p", {}, told(one));
    const made = el("details", { open }, el("summary", {}, told(one)));
    const unfold = () => { if (made.open && made.children.length === 1) made.append(...one.inputs.map((inner) => node(inner, false))); };
    made.addEventListener("toggle", unfold);
    if (open) made.append(...one.inputs.map((inner) => node(inner, false)));
    return made;
  };
  return el("section", { class: "card tree" }, el("h2", {}, "Where the figures come from"), figures.map((one) => node(one, true)));
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
