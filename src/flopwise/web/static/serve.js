// Serve: what users of a service see: the curve of latency against throughput, and requests through replicas.

import { ask, facts, job } from "./api.js";
import { attach, attachedNote, detach, missingNote } from "./attached.js";
import { chart, numbersAxis, timeAxis, timesAxis } from "./charts.js";
import { band, dropZone, el, fill, table, tiles } from "./dom.js";
import { counts, foldOf, times } from "./form.js";
import * as format from "./format.js";
import { questionPage } from "./question_page.js";
import { derivedFrom, figure, interval, linkOrigins, ofEstimate, own } from "./origins.js";

const names = async (noun) => (await facts(noun)).map((row) => row.name).sort();
const scales = (state) => Boolean(state.autoscale);
const FIELDS = [
  { key: "model", label: "Model", placeholder: "Llama-3.1-8B", suggestions: () => names("models") },
  { key: "gpu", label: "GPU", placeholder: "l40s", suggestions: () => names("gpus") },
  { key: "replicas", label: "Replicas", range: counts(1, 256), when: (state) => !scales(state) },
  { key: "rate", label: "Requests a second", range: counts(0.1, 1000), hint: "Empty with a trace." },
  { key: "input", label: "Tokens of a prompt", placeholder: "1024", hint: "1024, 200:800, lognormal:900:cv=1." },
  { key: "output", label: "Tokens of an answer", placeholder: "256" },
  { key: "duration", label: "Traffic of", range: times(10, 86400) },
  { key: "ttft", label: "First token within", range: times(0.05, 30) },
  { key: "tpot", label: "Each further token within", range: times(0.005, 0.5) },
  { key: "autoscale", label: "Autoscaling", redraws: true, choices: [["", "fixed replicas"], ["concurrency", "by requests in flight"], ["queue", "by waiting requests"], ["utilisation", "by the time replicas are busy"], ["kv", "by cache usage"]] },
  { key: "target", label: "Target for each replica", hint: "Requests (8), or a share (0.7) of time or cache.", range: counts(0.1, 256), when: scales },
  { key: "min_replicas", label: "Replicas, at least", range: counts(1, 64), when: scales },
  { key: "max_replicas", label: "Replicas, at most", range: counts(1, 256), when: scales },
  { key: "cold_start", label: "Cold start of a replica", range: times(1, 1800), when: scales },
  { key: "cool_down", label: "Scale-down window", range: times(1, 3600), when: scales },
];
const START = { model: "Llama-3.1-8B", gpu: "l40s", rate: "2", input: "1024", output: "256", duration: "5min", ttft: "1s" };
const EXAMPLES = [
  ["One replica", "Llama-3.1-8B on an L40S, two requests a second", "/serve?model=Llama-3.1-8B&gpu=l40s&rate=2&input=1024&output=256&duration=5min&ttft=1s"],
  ["Autoscaling", "the same at eight requests a second, with up to six replicas", "/serve?model=Llama-3.1-8B&gpu=l40s&rate=8&input=1024&output=256&duration=10min&ttft=1s&autoscale=concurrency&target=8&min_replicas=1&max_replicas=6&cold_start=60s"],
];
const TITLES = { ttft_s: "TTFT", tpot_s: "TPOT", itl_s: "between tokens", e2e_s: "whole request" };

export function show(main) {
  return questionPage(main, {
    title: "Serve", noun: "simulate", fields: FIELDS, start: START, needs: (state, files) => state.model && state.gpu && (!state.trace || files[TRACE]),
    empty: [el("h2", {}, "What do users see?"), el("p", {}, "Choose a model and a GPU; requests are simulated through every engine step."),
      el("div", { class: "choices" }, EXAMPLES.map(([name, text, address]) => el("a", { href: address }, el("b", {}, name), text)))],
    before: ({ state, change, files, drawForm }) => traceField(state, change, files, drawForm),
    run: async (noun, question, how) => {
      const own = { ...question };
      for (const field of FIELDS) if (field.when && !field.when(own)) delete own[field.key];
      const [run, curve] = await Promise.all([job(noun, { ...own, explain: true }, how), latencyCurve(own, how).catch((problem) => { if (problem.name === "AbortError") throw problem; return null; })]);
      return { run, curve };
    },
    draw: (found, place, question) => {
      const run = found.run ?? found; // of a run that misses its limits the document is the run
      if (run.ttft_s) drawRun(run, found.curve ?? null, place, question);
      else if (found.feasible === false) place.append(el("p", {}, el("a", { href: `/estimate?${new URLSearchParams({ question: "memory", task: "serve", ...Object.fromEntries(Object.entries(question).filter(([key]) => OF_MEMORY.includes(key))) })}` }, "What would make it fit")));
    },
  });
}

const TRACE = "trace.csv";

function traceField(state, change, files, drawForm) {
  const zone = dropZone("Or drop a trace (CSV: arrival_s, prompt_tokens, output_tokens):", { accept: ".csv", label: "A trace of requests", note: state.trace && (files[TRACE] ? attachedNote : missingNote)(TRACE) }, async (text) => {
    files[TRACE] = text;
    for (const key of ["rate", "input", "output", "duration"]) delete state[key];
    await attach(TRACE, text);
    change("trace", TRACE);
    drawForm();
  });
  if (!state.trace) return zone;
  const without = () => {
    delete files[TRACE];
    detach();
    Object.assign(state, { rate: START.rate, input: START.input, output: START.output, duration: START.duration });
    change("trace", "");
    drawForm();
  };
  zone.append(el("button", { type: "button", class: "quiet", onclick: without }, "Without the trace"));
  return zone;
}

const OF_MEMORY = ["model", "gpu", "tp", "pp", "ep", "dp", "weights", "kv_dtype", "engine"];
const OF_SERVE = ["model", "gpu", "tp", "pp", "ep", "dp", "weights", "kv_dtype", "engine", "input", "output"];

/** The sweep of `flopwise serve --sweep concurrency`, for the same deployment. */
const latencyCurve = (question, how) => ask("serve", { ...ownQuestion(question), sweep: "concurrency" }, how);

/** What a simulation's question says of one replica and its requests, as far as an estimate takes it. */
function ownQuestion(question) {
  return Object.fromEntries(Object.entries(question).filter(([key, value]) => OF_SERVE.includes(key) && !(["input", "output"].includes(key) && !/^\d+k?$/.test(value))));
}

/** Both ends of the interval of a percentile; null where it has none. */
function endsOf(run, key, percentile) {
  const ends = [run[`${key}_${percentile}_low`], run[`${key}_${percentile}_high`]];
  return ends.every(Number.isFinite) ? ends : null;
}

/** The same as text, each end with its provenance. */
function withEnds(run, key, percentile, before = "") {
  const ends = endsOf(run, key, percentile);
  return ends && [before, interval(`${TITLES[key]} ${percentile}`, ...ends, format.seconds)];
}

function drawRun(run, curve, place, question) {
  const line = run.timeline;
  const percent = (share) => (share === null || share === undefined ? null : format.percent(share));
  const points = (curve?.points ?? []).filter((p) => p.fits);
  fill(place,
    el("section", { class: "card", "aria-label": "The run" }, el("h2", {}, run.verdict), tiles([
      ["Answered", format.fixed(run.completed, 0), run.dropped ? `${format.fixed(run.dropped, 0)} dropped` : "none dropped", null, "answered"],
      ...["ttft_s", "tpot_s"].map((key) => [`${TITLES[key]} p95`, format.known(run[key].p95, format.seconds) === "-" ? null : format.seconds(run[key].p95), withEnds(run, key, "p95", "80 % interval: "), endsOf(run, key, "p95") && band(endsOf(run, key, "p95")[0], run[key].p95, endsOf(run, key, "p95")[1]), `${TITLES[key]} p95`]),
      ["Within all targets", percent(run.goodput_frac), null, null, "within all targets"], ["Busy", percent(run.utilisation_frac), null, null, "busy"], ["Cache at most", percent(run.kv_peak_frac), null, null, "cache at most"],
      ["Replica-hours", format.plain(run.replica_hours), null, null, "replica-hours"], ["Cost", run.cost_usd === null ? null : format.usd(run.cost_usd), null, null, "cost of the run"],
    ])),
    el("section", { class: "card" }, el("h2", {}, "Percentiles"), table("As simulated, the median and p95 with their 80 % intervals", [
      { title: "latency", cell: ([, name]) => name },
      ...["p50", "p90", "p95", "p99"].map((p) => ({ title: p, number: true, cell: ([key, name]) => (run[key][p] === null ? "-" : [figure(`${name} ${p}`, format.seconds(run[key][p])), el("small", {}, withEnds(run, key, p))]) })),
    ], Object.entries(TITLES))),
    el("div", { class: "cards" }, line?.time_s?.length > 2 ? timeline(run) : null, points.length > 1 ? throughput(points, question) : null),
    line?.time_s?.length > 2 ? el("section", { class: "card" }, el("h2", {}, "Over the time of the run"), foldOf("timeline", "The values of these pictures", () => values(run))) : null,
    run.assumptions?.length ? el("section", { class: "card" }, el("h2", {}, "Assumed"), el("ul", {}, run.assumptions.map((text) => el("li", {}, text)))) : null);
  linkOrigins(place, () => Promise.resolve(run.provenance ?? []));
}

/** Requests, cache and replicas over the time of the run, each in its own picture. */
function timeline(run) {
  const line = run.timeline;
  const drawn = (key) => line.time_s.map((t, i) => [t, line[key][i]]);
  const over = (title, note, series) => el("section", { class: "card" }, el("h2", {}, title),
    chart(`${title} over the time of the run; the table has the same figures`, () => ({
      legend: series.length > 1 ? {} : undefined, tooltip: { trigger: "axis", valueFormatter: (v) => format.plain(v) },
      xAxis: { ...timeAxis(line.time_s.at(-1)), max: line.time_s.at(-1), name: "time" }, yAxis: { type: "value", minInterval: 1 },
      series: series.map(([key, name, step]) => ({ name, type: "line", symbol: "none", step: step ? "end" : false, areaStyle: { opacity: 0.15 }, data: drawn(key) })),
    })), el("p", { class: "note" }, note));
  const several = line.replicas && new Set(line.replicas).size > 1;
  return [
    over("Running and waiting requests", [figure("running on average", format.plain(run.mean_running)), " run and ", figure("waiting on average", format.plain(run.mean_queue)), " wait on average."], [["running", "running"], ["queue", "waiting"]].filter(([key]) => line[key])),
    line.blocks && over("KV cache: blocks in use", ["At most ", figure("cache at most", format.percent(run.kv_peak_frac)), " of the cache, ", figure("cache on average", format.percent(run.kv_mean_frac)), " on average."], [["blocks", "blocks"]]),
    several && over("Replicas", [`Between ${format.plain(Math.min(...line.replicas))} and ${format.plain(Math.max(...line.replicas))}; `, figure("replica-hours", format.plain(run.replica_hours)), " replica-hours", run.cost_usd === null ? "" : [", ", figure("cost of the run", format.usd(run.cost_usd))], "."], [["replicas", "replicas", true]]),
  ];
}

/** What the pictures over time hold: the key of the timeline, what it is, and the figure that its values make up. */
const OVER_TIME = [["running", "running requests", "running on average"], ["queue", "waiting requests", "waiting on average"], ["blocks", "blocks of the cache in use", "cache at most"], ["replicas", "replicas", "replica-hours"]];
const MOST_TIMES = 50; // rows of the table

/** The values of the timeline as a table: of many times evenly spread ones, the first and the last among them. */
function values(run) {
  const line = run.timeline;
  const last = line.time_s.length - 1;
  const every = Math.ceil(last / (MOST_TIMES - 1));
  const rows = line.time_s.map((_, i) => i).filter((i) => i % every === 0 || i === last);
  const of = ([key, title, name]) => (i) => {
    const at = `${title} at ${format.seconds(line.time_s[i])}`;
    return own(at, format.plain(line[key][i]), () => derivedFrom(() => Promise.resolve(run.provenance ?? []), { name: at, value: line[key][i], formula: "simulated: the state at that time", of: name }));
  };
  return table(every > 1 ? `Every ${every}th of ${last + 1} times` : "All times", [
    { title: "time", number: true, cell: (i) => format.seconds(line.time_s[i]) },
    ...OVER_TIME.filter(([key]) => line[key]).map((one) => ({ title: one[1], number: true, cell: of(one) })),
  ], rows);
}

function throughput(points, question) {
  const rows = points.filter((p) => p.tpot_s > 0);
  const made = el("section", { class: "card" }, el("h2", {}, "Latency against throughput"),
    chart("Time of a token against output tokens a second; the table has the same figures", () => ({
      tooltip: { formatter: (p) => `${format.plain(p.value[0])} output tokens/s\n${format.seconds(p.value[1])} a token` },
      xAxis: { ...numbersAxis(rows.map((p) => p.tokens_per_s), format.count), name: "output tokens/s", splitNumber: 4 }, yAxis: timesAxis(rows.map((p) => p.tpot_s)),
      series: [{ type: "line", symbolSize: 8, data: rows.map((p) => [p.tokens_per_s, p.tpot_s]) }],
    })),
    table("One replica", [
      { title: "at once", number: true, cell: (p) => format.plain(p.value) }, { title: "TTFT", number: true, cell: (p) => figure("TTFT", format.seconds(p.ttft_s)) },
      { title: "TPOT", number: true, cell: (p) => figure("TPOT", format.seconds(p.tpot_s)) }, { title: "output tokens/s", number: true, cell: (p) => figure("throughput", format.plain(p.tokens_per_s)) },
    ], rows));
  made.querySelectorAll("tbody tr").forEach((line, i) => linkOrigins(line, () => ofEstimate("serve", { ...ownQuestion(question), concurrency: rows[i].value })));
  return made;
}
