// The cards of one estimate: intervals, memory, time, roofline.

import { ask } from "./api.js";
import { chart, numbersAxis, partNames, stack, stacks } from "./charts.js";
import { band, el, fill, table } from "./dom.js";
import { fold } from "./form.js";
import * as format from "./format.js";
import { derivedFrom, figure, interval, linkOrigins, ofEstimate, openOrigin, own } from "./origins.js";

const swatch = (index) => el("i", { class: `swatch s${index % 8}${index < 8 ? "" : " again"}`, "aria-hidden": "true" });

export const OPERATIONS = "Timing each operation …";
/** Figures with their 80 % intervals: what they are called, their names in the answer and in its provenance. */
const INTERVALS = [
  ["throughput per GPU", "tokens_per_s_per_gpu", "throughput per GPU", (found) => [found.low, found.high]], ["time of the run", "seconds", "run time"], ["cost of the run", "cost_usd", "cost"],
  ["energy of the run", "energy_joules", "energy"], ["TTFT, on average", "ttft_s", "TTFT"], ["TPOT, on average", "tpot_s", "TPOT"], ["whole request, on average", "e2e_s", "whole request"],
  ["output tokens/s", "output_tokens_per_s", "throughput"], ["memory per GPU", "per_gpu_bytes", "memory per GPU", (found) => [found.memory?.low_bytes, found.memory?.high_bytes]],
];

/** What the estimate knows with its 80 % interval, each as a band. */
export function intervals(found) {
  const all = { ...found, ...found.run, per_gpu_bytes: found.memory?.per_gpu_bytes };
  const known = INTERVALS.map(([title, name, origin, ends]) => [title, name, origin, all[name], ...(ends ? ends(found) : [all[`${name}_low`], all[`${name}_high`]])])
    .filter(([, , , value, low, high]) => Number.isFinite(value) && Number.isFinite(low) && high > low)
    .filter(([, name]) => name !== "e2e_s" || found.tpot_s); // what answers in one pass has one latency
  if (!known.length) return null;
  const text = (name, value) => (name === "per_gpu_bytes" ? format.gib(value) : format.figure(name, value));
  return el("section", { class: "card" }, el("h2", {}, "How sure it is"), table("Estimates with their 80 % intervals", [
    { title: "figure", cell: ([title]) => title }, { title: "estimate", number: true, cell: ([, name, origin, value]) => figure(origin, text(name, value)) },
    { title: "80 % interval", cell: ([, name, origin, value, low, high]) => [interval(origin, low, high, (end) => text(name, end)), band(low, value, high)] },
  ], known), found.interval?.evidence && el("p", { class: "note" }, `They rest on ${found.interval.evidence}.`));
}

/** Memory by item, of each stage; `origins` asks for the provenance of the estimate, which holds the fullest. */
export function memory(found, origins) {
  const used = found.memory;
  const sized = (items) => items.map((item) => ({ name: item.name, value: item.bytes })).filter((part) => part.value > 0);
  const one = used.worst_rank === "every rank" ? "each GPU" : `the fullest GPU${used.worst_rank ? ` (${used.worst_rank})` : ""}`;
  const bars = used.stages?.length ? used.stages.map((stage) => ({ name: stage.name.replace("pipeline ", ""), parts: sized(stage.items) })) : [{ name: one, parts: sized(used.items) }];
  const parts = partNames(bars);
  const several = bars.length > 1;
  const fullest = used.worst_rank?.replace("pipeline ", ""); // whose items the provenance holds
  const of = (bar, name) => bar.parts.find((part) => part.name === name)?.value;
  const whole = `${format.gib(used.per_gpu_bytes)} (80 % interval: ${format.gib(used.low_bytes)} to ${format.gib(used.high_bytes)})${used.capacity_bytes ? ` of ${format.gib(used.capacity_bytes)}` : ""}`;
  return el("section", { class: "card" }, el("h2", {}, several ? "Memory of the GPUs of each pipeline stage" : `Memory of ${one}`),
    stacks(`Memory by item, ${format.gib(used.per_gpu_bytes)} in all${several ? ` on ${used.worst_rank}` : ""}; the table has the same figures`, bars.map((bar) => ({ ...bar, name: several ? bar.name : "" })), format.gib,
      used.capacity_bytes && { name: `capacity ${format.gib(used.capacity_bytes)}`, value: used.capacity_bytes }, 2 ** 30),
    table(several ? `Fullest, on ${used.worst_rank}: ${whole}` : whole, [
      { title: "item", cell: (name) => [swatch(parts.indexOf(name)), name] },
      ...bars.map((bar) => ({ title: several ? bar.name : "size", number: true, cell: (name) => (of(bar, name) ? (!several || bar.name === fullest ? figure(name, format.gib(of(bar, name))) : ofStage(name, bar.name, format.gib(of(bar, name)), origins)) : "-") })),
    ], parts),
    several && found.layout.pp > bars.length ? el("p", { class: "note" }, `Of ${found.layout.pp} stages; those between the first and the last are alike.`) : null);
}

/** An item of a stage that is not the fullest. */
const ofStage = (name, stage, value, origins) => own(`${name} of the ${stage}`, value, () => derivedFrom(origins, { name: `${name} of the ${stage}`, value, formula: `memory model: as on the fullest GPU, for the layers and at the fullest moment of the ${stage}`, of: name }));

/** Time of a step by cause; `origins` asks for the provenance of the estimate. */
export function time(found, origins) {
  const parts = found.breakdown.filter((part) => part.seconds > 0).map((part) => ({ name: part.name.replaceAll("_", " "), value: part.seconds }));
  const whole = parts.reduce((sum, part) => sum + part.value, 0);
  return el("section", { class: "card" }, el("h2", {}, "Time of a step"),
    stack(`Time of a step by cause, bound by ${found.bound}; the table has the same figures`, parts, format.seconds),
    table(`${format.seconds(whole)}, bound by ${found.bound}`, [
      { title: "part", cell: (p) => [swatch(parts.indexOf(p)), p.name] }, { title: "time", number: true, cell: (p) => figure(p.name, format.seconds(p.value)) },
      { title: "share", number: true, cell: (p) => own(`share of ${p.name}`, format.percent(p.value / whole), () => derivedFrom(origins, { name: `share of ${p.name}`, value: format.percent(p.value / whole), formula: `${p.name} / all parts, ${format.seconds(whole)}`, of: p.name })) },
    ], parts));
}

const OF_PASS = ["model", "tp", "ep", "precision", "stack", "attention", "weights", "kv_dtype", "engine"];

/** A pass as `flopwise roofline` times it, of a network that is known by its samples alone: nobody can time its operations one by one. */
async function wholePass(place, own, gpu, files, signal) {
  const question = { model: own.model, gpu: gpu.name, batch: own.micro_batch ?? 1, training: true, ...(own.precision in (gpu.peak ?? {}) && { dtype: own.precision }), ...files };
  onePoint(place, await ask("roofline", question, { signal }), gpu, () => ofEstimate("roofline", question));
}

/** Each operation of a pass, as `flopwise explain` times it, under the roof of the GPU; `found`: the estimate. */
export async function roofline(place, noun, own, gpu, files, signal, found) {
  const title = el("h2", {}, `Roofline of ${gpu.name}`);
  const serves = noun === "serve";
  const generated = found.kv_capacity_tokens === null ? 0 : (Number(own.output) || 256) / 2; // an encoder's pass is over its inputs
  const length = serves ? Math.round((Number(own.input) || 1024) + generated) : own.seq ?? found.seq_len ?? 4096;
  const stack = serves ? null : found.settings?.stack?.split(" ")[0]; // the one that the estimate is of, where nobody stated one
  const question = { ...(stack && { stack }), ...Object.fromEntries(Object.entries(own).filter(([key]) => OF_PASS.includes(key))), gpu: gpu.name, task: serves ? "serve" : "train", batch: serves ? own.max_batch ?? 1 : own.micro_batch ?? 1, seq: length, ...files };
  let timed;
  try {
    if (!serves && found.samples_per_s) return await wholePass(place, own, gpu, files, signal);
    timed = await ask("explain", question, { signal });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    fill(place, title, el("p", { class: "note" }, `The operations are not timed: ${problem.message}`));
    return;
  }
  const peak = gpu.peak?.[timed.dtype] ?? gpu.peak?.bf16;
  const all = timed.operations.filter((one) => one.seconds > 0).map((one) => ({ ...one, x: one.bytes ? one.flops / one.bytes : 0, y: one.flops / one.seconds, whole: `${one.name}${one.forward ? "" : ", backward"}` }));
  const rows = all.filter((one) => one.x > 0);
  if (!rows.length || !peak || !gpu.hbm_bytes_per_s) {
    fill(place, title, el("p", { class: "note" }, `Of ${gpu.name} the peak of ${timed.dtype} or the bandwidth is not known.`));
    return;
  }
  const ridge = peak / gpu.hbm_bytes_per_s;
  const xs = [Math.min(...rows.map((r) => r.x), ridge / 4), ridge, Math.max(...rows.map((r) => r.x), ridge * 4)];
  const points = (bound) => rows.filter((r) => (r.bound === "memory") === (bound === "memory")).map((r) => ({ name: r.whole, value: [r.x, r.y], row: r }));
  const pass = [timed.settings.pass, timed.settings.recipe].filter(Boolean).join(", ");
  const origins = () => ofEstimate("explain", question);
  fill(place, title,
    chart("Rate of each operation against its FLOP per byte, under the roof of the GPU; the table has the same figures", () => ({
      legend: {}, tooltip: { formatter: (p) => (p.data.row ? `${p.name}\n${format.rate(p.data.row.y, "FLOP/s")} at ${format.fixed(p.data.row.x, 1)} FLOP/byte\n${format.percent(p.data.row.share_frac)} of the pass` : "") },
      xAxis: { type: "log", name: "FLOP per byte" }, yAxis: { type: "log", axisLabel: { formatter: (v) => format.rate(v, "FLOP/s") } },
      series: [
        { name: `roof, ${timed.dtype}`, type: "line", symbol: "none", data: xs.map((x) => [x, Math.min(peak, x * gpu.hbm_bytes_per_s)]) },
        { name: "memory-bound", type: "scatter", symbolSize: 11, data: points("memory") },
        { name: "compute-bound", type: "scatter", symbolSize: 11, data: points("compute") },
      ],
    }), { click: (p) => { if (p.data.row) openOrigin(p.data.row.whole, origins); } }),
    el("p", { class: "note" }, `${pass}: `, figure("pass", format.seconds(timed.pass_s)), ", ", figure("memory-bound share", format.percent(timed.memory_bound_frac)), " of it bound by memory. As flopwise explain prints it. Click a point to see where it comes from."),
    roofSource(gpu),
    withoutFlop(all.filter((one) => !rows.includes(one))),
    fold("operations", {}, `${all.length} operations`, table("Operations", [
      { title: "operation", cell: (r) => r.whole }, { title: "times", number: true, cell: (r) => r.layers }, { title: "each", number: true, cell: (r) => figure(r.whole, format.seconds(r.seconds)) },
      { title: "share", number: true, cell: (r) => figure(`share of ${r.whole}`, format.percent(r.share_frac)) }, { title: "FLOP/byte", number: true, cell: (r) => (r.x ? figure(`FLOP per byte of ${r.whole}`, format.fixed(r.x, 1)) : "-") },
      { title: "rate", number: true, cell: (r) => (r.y ? figure(`rate of ${r.whole}`, format.rate(r.y, "FLOP/s")) : "-") }, { title: "bound by", cell: (r) => r.bound },
    ], all)));
  linkOrigins(place, origins);
}

/** Where the roof and the points below it come from. */
const roofSource = (gpu) => el("p", { class: "note" }, `The roof is min(peak, FLOP per byte x bandwidth); a point's rate is its FLOP over its time. Peak and bandwidth of ${gpu.name}: ${gpu.source}, ${gpu.date}.`);

const NAMED = 4; // of the operations that have no place on the chart, the longest are named

/** Operations that count no FLOP move bytes only: a logarithmic axis has no place for them, so they stand below it. */
function withoutFlop(rows) {
  if (!rows.length) return null;
  const longest = [...rows].sort((a, b) => b.share_frac - a.share_frac);
  const named = longest.slice(0, NAMED).map((one) => `${one.whole} ${format.seconds(one.seconds)}${one.layers > 1 ? ` x ${format.fixed(one.layers, 0)}` : ""}`);
  const share = rows.reduce((sum, one) => sum + one.share_frac, 0);
  return el("p", { class: "note" }, `Not on the chart, since they only move bytes (no FLOP is counted for them): ${named.join("; ")}${rows.length > NAMED ? `; and ${rows.length - NAMED} more, which the table holds` : ""}. Together ${format.percent(share)} of the pass.`);
}

const UNKNOWN = "One point for all of it: its FLOP are published for a whole sample, its layers are not.";

/** The work as one point under the roof of its devices together; `origins` asks for its provenance. */
export function onePoint(place, found, gpu, origins) {
  const [peak, moved] = [gpu.peak?.[found.dtype] * found.num_gpus, gpu.hbm_bytes_per_s * found.num_gpus];
  const x = found.intensity_flops_per_byte;
  const title = el("h2", {}, `Roofline of ${found.num_gpus > 1 ? `${found.num_gpus} x ` : ""}${gpu.name}`);
  if (!(peak > 0 && moved > 0 && x > 0)) {
    place.replaceChildren(title, el("p", { class: "note" }, x > 0 ? `Of ${gpu.name} the peak of ${found.dtype} or the bandwidth is not known.` : "Work without FLOP, or without bytes, has no place on it."));
    return;
  }
  const ridge = peak / moved;
  const xs = [Math.min(x, ridge) / 8, ridge, Math.max(x, ridge) * 8];
  const reached = found.flops / found.seconds;
  place.replaceChildren(title, chart("Rate of the work against its FLOP per byte, under the roof of the devices; the tiles have the same figures", () => ({
    legend: {}, tooltip: { formatter: (p) => (p.seriesType === "scatter" ? `${format.rate(reached, "FLOP/s")} at ${format.fixed(x, 1)} FLOP/byte` : "") },
    xAxis: { ...numbersAxis(xs, format.count), name: "FLOP per byte" }, yAxis: { type: "log", axisLabel: { formatter: (v) => format.rate(v, "FLOP/s") } },
    series: [{ name: `roof, ${found.dtype}`, type: "line", symbol: "none", data: xs.map((one) => [one, Math.min(peak, one * moved)]) }, { name: "the work", type: "scatter", symbolSize: 13, data: [[x, reached]] }],
  }), { click: (p) => { if (p.seriesType === "scatter") openOrigin("time", origins); } }),
  el("p", { class: "note" }, `${found.what}: `, figure("time", format.seconds(found.seconds)), ", bound by ", found.bound, "; ", figure("FLOP per byte", format.figure("intensity_flops_per_byte", x)), ` FLOP/byte. As flopwise roofline prints it.${found.partial ? ` ${UNKNOWN}` : ""}`), roofSource(gpu));
  linkOrigins(place, origins);
}
