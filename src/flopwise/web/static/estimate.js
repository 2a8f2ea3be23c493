// Estimate: one question about given machines, as `flopwise train`, `serve`, `memory`, `fit` and `roofline` answer it.

import { facts } from "./api.js";
import { questionPage } from "./question_page.js";
import { el, table, tiles } from "./dom.js";
import { OPERATIONS, intervals, memory, onePoint, roofline, time } from "./estimated.js";
import { counts, declared, times } from "./form.js";
import * as format from "./format.js";
import { figure, interval, linkOrigins, ofEstimate, provenance } from "./origins.js";
import { schedule } from "./pipeline.js";

const names = async (noun) => (await facts(noun)).map((row) => row.name).sort();
/** What is asked: its name on the page, the fields that stand first, and what stands in them where nobody says. */
const QUESTIONS = {
  train: { title: "Training", first: "model gpu gpus tokens seq global_batch micro_batch dp tp pp zero recompute lora qlora", start: { model: "Llama-3.1-8B", gpu: "h100", gpus: "8", tokens: "1B" } },
  serve: { title: "Serving", first: "model gpu gpus rate concurrency input output weights kv_dtype tp max_batch", start: { model: "Llama-3.1-8B", gpu: "l40s", rate: "2" } },
  memory: { title: "Memory", first: "model gpu task seq micro_batch dp tp pp lora qlora weights concurrency context", start: { model: "Llama-3.1-8B", gpu: "h100", task: "serve" } },
  fit: { title: "What fits", first: "model gpu context output formats kv_dtype", start: { model: "Llama-3.1-8B", gpu: "l40s" } },
  roofline: { title: "Roofline", first: "model flops bytes gpu gpus batch seq dtype training", start: { model: "Llama-3.1-8B", gpu: "l40s" } },
};
const LABELS = {
  model: "Model", gpu: "GPU", gpus: "GPUs", tokens: "Tokens of the run", seq: "Tokens of a sequence", global_batch: "Sequences of a step", micro_batch: "Sequences of a micro-batch", rate: "Requests a second", concurrency: "Sequences at once",
  input: "Tokens of a prompt", output: "Tokens of an answer", weights: "Weights", context: "Tokens of a request", formats: "Weight formats", kv_dtype: "Format of the cache", tp: "Tensor-parallel degree", pp: "Pipeline stages", dp: "Data-parallel replicas", zero: "ZeRO stage",
  recompute: "Recomputed", lora: "Rank of adapters", qlora: "On a 4-bit base (QLoRA)", max_batch: "Sequences at once, at most", task: "For", training: "Backward, too", flops: "FLOP", bytes: "Bytes moved", dtype: "Number format", batch: "Samples of a pass",
};
const RANGES = { gpus: counts(1, 16384), tokens: counts(1e6, 2e13), seq: counts(256, 131072), global_batch: counts(8, 16384), rate: counts(0.1, 1000), concurrency: counts(1, 4096), input: counts(32, 131072), output: counts(16, 16384), context: counts(1024, 1048576), deadline: times(600, 86400 * 365) };
/** Figures of an answer in the order in which they are read: the key, what it is called, and its name in the provenance. */
const FIGURES = [
  ["step_s", "A step", "step time"], ["tokens_per_s", "tokens/s", "throughput"], ["tokens_per_s_per_gpu", "tokens/s per GPU", "throughput per GPU"], ["mfu_frac", "MFU", "MFU"], ["hfu_frac", "HFU", "HFU"],
  ["run.seconds", "The run takes", "run time"], ["run.cost_usd", "The run costs", "cost"], ["run.energy_joules", "Energy", "energy"], ["run.gpu_hours", "GPU-hours", "GPU-hours"], ["run.goodput_frac", "Goodput", "goodput"],
  ["ttft_s", "TTFT, on average", "TTFT"], ["tpot_s", "TPOT, on average", "TPOT"], ["e2e_s", "Whole request", "whole request"], ["output_tokens_per_s", "output tokens/s", "throughput"], ["requests_per_s", "requests/s", "requests per second"],
  ["utilisation_frac", "Of datasheet rates", "share of datasheet rates"], ["usd_per_million_output_tokens", "A million output tokens", "cost per million output tokens"], ["usd_per_million_input_tokens", "A million input tokens", "cost per million input tokens"],
  ["per_gpu_bytes", "Memory per GPU", "memory per GPU"], ["margin_bytes", "Memory left", "margin"], ["fits_probability", "Chance to fit", "chance to fit"], ["max_concurrency", "Sequences at most", "maximum concurrency"], ["kv_capacity_tokens", "Tokens in the cache at most", "cache capacity"],
  ["seconds", "It takes", "time"], ["compute_s", "To compute", "compute time"], ["memory_s", "To move", "memory time"], ["lower_bound_s", "At datasheet rates", "lower bound of a step"], ["flops", "FLOP", "FLOP"], ["bytes", "Moved", "bytes moved"], ["intensity_flops_per_byte", "FLOP per byte", "FLOP per byte"], ["ridge_flops_per_byte", "Ridge, FLOP per byte", "ridge"],
  ["bandwidth_frac", "Of the bandwidth", "share of the bandwidth"], ["samples_per_s", "Samples/s", "samples per second"], ["samples_per_s_at_most", "Samples/s, at most", "samples per second"], ["cost_usd", "Cost", "cost"], ["cost_usd_at_least", "Cost, at least", "cost"], ["energy_joules", "Energy", "energy"], ["energy_joules_at_least", "Energy, at least", "energy"],
];
const OF_ALL = ["throughput", "requests per second", "maximum concurrency", "cache capacity"]; // figures of all replicas together
let drawing = new AbortController();

export function show(main) {
  const given = new URLSearchParams(location.search);
  const noun = QUESTIONS[given.get("question")] ? given.get("question") : "train";
  const { title, first, start } = QUESTIONS[noun];
  const links = el("nav", { "aria-label": "Questions" }, el("div", { class: "tabs" }, Object.entries(QUESTIONS).map(([key, one]) =>
    el("a", { class: "tab", href: `/estimate?question=${key}`, "aria-current": key === noun ? "true" : null }, one.title))));
  return questionPage(main, {
    title: `Estimate: ${title.toLowerCase()}`, noun, start, kept: { question: noun }, before: () => links,
    fields: (schemas) => first.split(" ").filter((key) => schemas[key]).map((key) => ({
      ...declared(key, schemas[key], LABELS[key]), ...(key === "model" && { hint: "A name of the catalog, a hub id, or a size such as 7B." }), ...(["n", "flop", "bytes", "dtype"].includes(schemas[key]["x-takes"]) && { placeholder: "" }), ...(RANGES[key] && { range: RANGES[key] }), ...(key === "model" && { suggestions: () => names("models") }), ...(key === "gpu" && { suggestions: () => names("gpus") }),
    })),
    needs: (state, files) => (state.model ? state.model !== "config.json" || files["config.json"] : noun === "roofline" && state.flops),
    empty: [el("h2", {}, "What is estimated?"), el("p", {}, "Name a model, and the machines that it runs on: nothing is searched, the layout is yours, or the fastest that fits.")],
    draw: (found, place, question) => drawEstimate(noun, found, place, question),
  });
}

const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`);

/** The command line that asks the same. */
function line(noun, { files, ...question }) {
  const words = Object.entries(question).filter(([key]) => key !== "model").flatMap(([key, value]) => {
    const name = `--${key.replaceAll("_", "-")}`;
    if (value === "true" || value === true) return [name];
    if (value === "false" || value === false) return [name.replace("--", "--no-")];
    return [value].flat().flatMap((one) => [name, quoted(String(one))]);
  });
  return ["flopwise", noun, ...(question.model ? [quoted(question.model)] : []), ...words].join(" ");
}

/** What a figure is called in the provenance: of all replicas where the answer is of several; training has one step, other work none. */
function originOf(noun, found, name) {
  if (noun === "roofline") return name.replace(" of a step", "");
  if (noun === "train") return name.replace("of a step", "of the step");
  return noun === "serve" && found.replicas > 1 && OF_ALL.includes(name) ? `${name} of all replicas` : name;
}

const at = (found, path) => path.split(".").reduce((value, key) => value?.[key], found);

async function drawEstimate(noun, found, place, question) {
  drawing.abort();
  const { signal } = (drawing = new AbortController());
  if (!found) return;
  const whole = noun === "memory" ? { memory: found, ...found } : found;
  const shown = FIGURES.filter(([path]) => typeof at(found, path) === "number").map(([path, title, origin]) => [title, path === "fits_probability" ? format.chance(at(found, path)) : path === "per_gpu_bytes" || path === "margin_bytes" ? format.gib(at(found, path)) : format.figure(path.split(".").at(-1), at(found, path)), null, null, originOf(noun, found, origin)]);
  const origins = () => ofEstimate(noun, question);
  const cards = el("div", { class: "cards" }, intervals(whole), whole.memory && memory(whole, origins), found.breakdown?.length ? time(found, origins) : null, found.breakdown?.length && found.layout?.pp > 1 && found.global_batch ? schedule(found, origins) : null, underLoad(found.under_load), closedLoop(found.closed_loop));
  const roof = noun === "memory" || noun === "fit" ? null : el("section", { class: "card" }, el("h2", {}, `Roofline of ${found.gpu}`), el("p", { class: "status busy" }, OPERATIONS));
  if (roof) cards.append(roof);
  place.append(
    el("section", { class: "card", "aria-label": "The answer" }, el("h2", {}, found.verdict), shown.length ? tiles(shown) : null, settings({ ...found.memory?.settings, ...found.settings }, found.laid_out), el("p", { class: "note" }, "The same question on the command line:"), el("pre", {}, line(noun, question))),
    remedies(whole.memory?.remedies, whole.memory?.per_gpu_bytes), noun === "fit" ? formats(found.formats) : "", cards, quick(found.quick ?? found.memory?.quick),
    listed("Assumed", [...new Set([...(found.assumptions ?? []), ...(noun === "memory" ? [] : found.memory?.assumptions ?? []), ...(found.run?.notes ?? [])])]),
    provenance(origins));
  linkOrigins(place, origins);
  if (!roof) return;
  const gpu = await facts("gpus", { name: found.gpu }).catch(() => null);
  if (signal.aborted) return;
  if (!gpu || !found.gpu) roof.remove();
  else if (noun === "roofline") onePoint(roof, found, gpu, origins);
  else await roofline(roof, noun, { ...question, ...laidOut(found) }, gpu, question.files ? { files: question.files } : {}, signal, found).catch((problem) => { if (problem.name !== "AbortError") throw problem; });
}

/** What the answer chose where the question is silent, as far as a pass depends on it. */
function laidOut(found) {
  const { tp, ep, micro_batch: size } = found.layout ?? {};
  const each = { ...(tp > 1 && { tp }), ...(ep > 1 && { ep }), ...((size ?? found.batch) && { micro_batch: size ?? found.batch }), ...(found.seq_len && { seq: found.seq_len }) };
  return found.concurrency ? { ...each, max_batch: Math.max(1, Math.round(found.concurrency)) } : each;
}

function settings(chosen, laidOut) {
  const rows = Object.entries(chosen);
  if (laidOut) rows.push(["chosen as", laidOut]);
  return rows.length ? el("p", { class: "note" }, rows.map(([name, text]) => `${name}: ${text}`).join("; ")) : null;
}

function underLoad(load) {
  if (!load) return null;
  return el("section", { class: "card" }, el("h2", {}, `At ${format.plain(load.requests_per_s)} requests/s`), el("p", {}, figure("share of what it sustains", format.percent(load.utilisation_frac)), " of what it sustains."), percentiles("What requests see that arrive at random, with 80 % intervals", load));
}

function closedLoop(seen) {
  return seen ? el("section", { class: "card" }, el("h2", {}, "Users in a closed loop"), percentiles("What all of their requests see, with 80 % intervals", seen)) : null;
}

/** Latencies by percentile, and their intervals where the replicas keep up. */
function percentiles(caption, seen) {
  const isKept = Object.keys(seen.ttft_s_low).length > 0; // can be kept up with
  const latency = (title, key) => [{ title, number: true, cell: (p) => (isKept ? [figure(`${title} at ${p}`, format.seconds(seen[key][p])), el("small", {}, interval(`${title} at ${p}`, seen[`${key}_low`][p], seen[`${key}_high`][p], format.seconds))] : "unbounded") }];
  return table(caption, [
    { title: "of requests", cell: (p) => p }, ...latency("TTFT", "ttft_s"), ...(Object.values(seen.tpot_s).some(Boolean) ? latency("TPOT", "tpot_s") : []),
  ], Object.keys(seen.ttft_s));
}

function formats(rows) {
  const of = (name, key, text) => (r) => (r[key] === null || r[key] === undefined ? "-" : figure(`${name} in ${r.weights}`, text(r[key])));
  const whole = (n) => format.fixed(n, 0);
  return el("section", { class: "card" }, el("h2", {}, "Which format fits"), table("With as many requests as memory holds", [
    { title: "weights", cell: (r) => r.weights }, { title: "chance to fit", number: true, cell: (r) => [of("chance to fit", "fits_probability", format.chance)(r), r.fits ? null : el("small", {}, "does not fit")] },
    { title: "memory", number: true, minor: true, cell: of("memory", "total_bytes", format.gib) }, { title: "longest context", number: true, minor: true, cell: of("longest context", "longest_context", whole) },
    { title: "requests", number: true, cell: (r) => (r.most_requests ? of("requests at once", "most_requests", whole)(r) : "none") }, { title: "tokens/s", number: true, cell: of("tokens/s", "tokens_per_s", format.plain) },
    { title: "80 % interval", number: true, minor: true, cell: (r) => (format.known(r.tokens_per_s_low, format.plain) === "-" ? "-" : interval(`tokens/s in ${r.weights}`, r.tokens_per_s_low, r.tokens_per_s_high, format.plain)) },
    { title: "TTFT", number: true, minor: true, cell: of("TTFT", "ttft_s", format.seconds) }, { title: "TPOT", number: true, minor: true, cell: of("TPOT", "tpot_s", format.seconds) },
    { title: "USD/M input tokens", number: true, cell: of("cost per million input tokens", "usd_per_million_input_tokens", format.usd) },
    { title: "USD/M output tokens", number: true, cell: of("cost per million output tokens", "usd_per_million_output_tokens", format.usd) },
    { title: "scores kept", minor: true, cell: of("scores kept", "quality", (ends) => [...new Set(ends.map((one) => format.percent(one)))].join(" to ")) },
  ], rows));
}

/** Changes that save memory; `bytes`: what it is without them. Those that cost speed have a price. */
function remedies(rows, bytes) {
  if (!rows?.length) return "";
  const priced = rows.some((r) => r.slower_frac !== null);
  return el("section", { class: "card" }, el("h2", {}, "What would make it fit"), table("Changes, each alone", [
    { title: "change", cell: (r) => r.change }, { title: "saves", number: true, cell: (r) => figure(`saved by the change: ${r.change}`, format.gib(r.saves_bytes)) },
    { title: "leaves", number: true, cell: (r) => figure(`memory with the change: ${r.change}`, format.gib(bytes - r.saves_bytes)) }, { title: "enough", cell: (r) => (r.fits ? "yes" : "no") },
    ...(priced ? [{ title: "each token longer by", number: true, cell: (r) => (r.slower_frac === null ? "-" : figure(`time added to each token by the change: ${r.change}`, format.percent(r.slower_frac, 0))) }] : []),
  ], rows));
}

function quick(rows) {
  if (!rows?.length) return "";
  const unit = (r, value) => format.known(value, (one) => format.withUnit(one, r.unit));
  return el("section", { class: "card" }, el("h2", {}, "Compared with the rule of thumb"), table("Rules of thumb, compared with the estimate", [
    { title: "figure", cell: (r) => r.name }, { title: "formula", minor: true, cell: (r) => r.formula }, { title: "by the rule", number: true, cell: (r) => figure(`${r.name} by the rule`, unit(r, r.value)) },
    { title: "estimate", number: true, cell: (r) => (r.estimate === null ? "-" : figure(`${r.name}, estimated`, unit(r, r.estimate))) }, { title: "off by", number: true, cell: (r) => (r.error === null ? "-" : figure(`error of the rule: ${r.name}`, format.percent(r.error))) },
  ], rows));
}

function listed(title, texts) {
  return texts.length ? el("section", { class: "card" }, el("h2", {}, title), el("ul", {}, texts.map((text) => el("li", {}, text)))) : "";
}
