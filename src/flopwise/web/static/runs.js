// Runs: what was recorded, each beside what was expected of it; one that goes on is read again every few seconds.

import { ask } from "./api.js";
import { chart, palette, timeAxis, timesAxis } from "./charts.js";
import { band, el, failed, fill, fresh, table, tiles } from "./dom.js";
import { fromAddress, questionOf, toAddress } from "./form.js";
import * as format from "./format.js";
import { derivedFrom, named, ofEstimate, own, provenance } from "./origins.js";

const AGAIN_MS = 5000;
/** Metrics as people call them. */
const TITLES = {
  step_s: "Time of a step", data_wait_s: "Wait for data", communication_s: "Exposed messages", tokens_per_s: "Tokens/s", samples_per_s: "Samples/s", tokens: "Tokens", loss: "Loss", eval_loss: "Loss on held-out data",
  learning_rate: "Learning rate", grad_norm: "Norm of gradients", loss_scale: "Scale of the loss", mfu_frac: "MFU", model_flops_per_s: "Model FLOP/s", plan_deviation_frac: "Longer than expected", peak_memory_bytes: "Memory at its peak",
  reserved_memory_bytes: "Memory reserved", untrained_memory_bytes: "Memory before training", used_memory_bytes: "Memory in use", energy_joules: "Energy", cost_usd: "Cost", elapsed_s: "Time recorded", eta_s: "Time until it ends", utilization_frac: "Device busy", tensor_active_frac: "Tensor units busy",
  memory_active_frac: "Memory interface busy", temperature_c: "Temperature", power_w: "Power", sm_clock_hz: "Clock", pcie_bytes_per_s: "PCIe traffic", nvlink_bytes_per_s: "NVLink traffic", ttft_s: "TTFT", itl_s: "Between two tokens", e2e_s: "Whole request",
  ttfb_s: "Time to the first byte", chunks: "Pieces of an answer", failed_requests: "Failed requests", preemptions: "Preemptions", requests_per_s: "Requests/s", requests_running: "Running requests", requests_waiting: "Waiting requests", cache_frac: "KV cache in use",
};
/** What metrics are called in the provenance of an estimate. */
const ESTIMATED = {
  step_s: "step time", tokens_per_s: "throughput", mfu_frac: "MFU", peak_memory_bytes: "memory per GPU", energy_joules: "energy", cost_usd: "cost", elapsed_s: "run time", ttft_s: "TTFT", itl_s: "TPOT", e2e_s: "whole request", communication_s: "exposed messages",
};
const called = (metric) => TITLES[metric] ?? metric.replaceAll("_", " ");
const at = (moment) => (moment === null ? "-" : new Date(moment * 1000).toLocaleString());
const taken = (value) => format.known(value, (one) => (one ? format.seconds(one) : "0 s"));
const machines = (run) => [run.gpus, run.gpu].filter((part) => part !== null).join(" x ") || "-";

export async function show(main) {
  const { run } = fromAddress(new Set());
  await (run ? one(main, run) : all(main));
}

async function all(main) {
  const state = fromAddress(new Set());
  const status = el("p", { class: "status busy", role: "status" }, "Loading runs …");
  fill(main, el("h1", {}, "Runs"), status);
  let rows;
  try {
    rows = await ask("runs", {});
  } catch (problem) {
    fill(main, el("h1", {}, "Runs"), failed(problem));
    return;
  }
  if (!rows.length) {
    fill(main, el("h1", {}, "Runs"), el("div", { class: "empty" },
      el("h2", {}, "No run is recorded on this machine yet."),
      el("p", {}, "Record one from any PyTorch loop, and it appears here while it runs:"),
      el("pre", {}, "from flopwise.callbacks import record\n\nwith record(model) as run:\n    for batch in batches:\n        ...  # the step\n        run.step(loss=loss, tokens=batch.numel())"),
      el("p", {}, "Trainer and Lightning have callbacks, ", el("code", {}, "flopwise runs import"), " reads the logs of past runs.")));
    return;
  }
  const place = el("div");
  const id = fresh("find");
  const search = el("input", { type: "search", id, value: state.find ?? "", oninput: () => { toAddress({ find: search.value }); draw(); } });
  const columns = [
    { title: "name", cell: (r) => el("a", { href: `/runs?run=${r.run_id}` }, r.name || r.run_id.slice(0, 8)) },
    { title: "task", minor: true, cell: (r) => r.task }, { title: "model", cell: (r) => r.model ?? "-" }, { title: "machines", minor: true, cell: machines },
    { title: "began", minor: true, cell: (r) => at(r.started_at_s) }, { title: "took", number: true, cell: duration },
    { title: "status", cell: (r) => r.status }, { title: "tokens/s", number: true, cell: (r) => recorded(r, "tokens_per_s", format.count) },
    { title: "MFU", number: true, minor: true, cell: (r) => recorded(r, "mfu_frac", format.percent) }, { title: "cost", number: true, cell: (r) => recorded(r, "cost_usd", format.usd) },
  ];
  function draw() {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter((r) => wanted.every((word) => `${r.name} ${r.task} ${r.model} ${r.status} ${machines(r)}`.toLowerCase().includes(word)));
    fill(place, found.length ? table(`${found.length} of ${rows.length} runs, the latest first`, columns, found) : el("p", { class: "empty" }, `No run contains “${search.value}”.`));
    status.classList.remove("busy");
    status.textContent = `${found.length} of ${rows.length}`;
  }
  fill(main, el("h1", {}, "Runs"), el("div", { class: "field" }, el("label", { for: id }, "Find among runs"), search), status, el("section", { class: "card" }, place));
  draw();
}

async function one(main, run) {
  const head = el("h1", {}, "Run");
  const status = el("p", { class: "status busy", role: "status" }, "Loading the run …");
  const place = el("div");
  fill(main, el("p", { class: "noprint" }, el("a", { href: "/runs" }, "All runs")), head, status, place);
  for (;;) {
    let found;
    try {
      found = await ask("run", { run });
    } catch (problem) {
      status.classList.remove("busy");
      fill(place, failed(problem));
      status.textContent = "";
      return;
    }
    head.textContent = `Run ${found.name || found.run_id.slice(0, 8)}`;
    draw(place, found);
    status.classList.toggle("busy", found.status === "running");
    status.textContent = found.status === "running" ? `Live, read at ${new Date().toLocaleTimeString()}` : `${found.status}, ${at(found.started_at_s)} to ${at(found.ended_at_s)}`;
    if (found.status !== "running") return;
    await new Promise((later) => { setTimeout(later, AGAIN_MS); });
    if (!place.isConnected) return;
  }
}

function draw(place, run) {
  const budget = run.budget_usd === null ? null : `of ${format.usd(run.budget_usd)}`;
  fill(place,
    el("section", { class: "card" }, el("h2", {}, run.verdict), tiles([
      ["task", run.task], ["model", run.model], ["machines", machines(run)], ["took", duration(run)],
      ["tokens/s", recorded(run, "tokens_per_s", format.count)], ["MFU", recorded(run, "mfu_frac", format.percent)],
      ["energy", recorded(run, "energy_joules", format.joules)], ["cost", recorded(run, "cost_usd", format.usd), budget],
    ].filter(([, value]) => value !== "-"))),
    terms(run),
    el("div", { class: "cards" }, ...Object.entries(run.series).map(([metric, points]) => line(run, metric, points))),
    figures(run), causes(run), events(run),
    run.expected ? el("section", { class: "card" }, el("h2", {}, "What was expected"), el("p", { class: "note" }, `Estimated by flopwise ${run.expected.version} for this question:`), el("pre", {}, run.expected.question)) : null,
    isAsked(run) ? provenance(ofExpected(run)) : null);
}

const SIDES = [["expected", "expected_s", 7], ["measured", "measured_s", 0]];
const APART = 100; // times: bars of terms that lie further apart show one of them alone
const timesOf = (rows) => rows.flatMap((term) => SIDES.map(([, key]) => term[key])).filter((value) => value > 0);
const areApart = (times) => times.length > 1 && Math.max(...times) > APART * Math.min(...times);
const LABEL = "Time of each term, expected and measured; the table has the same figures";
const names = (rows) => ({ type: "category", data: rows.map((term) => term.name), axisLabel: { interval: 0 } });

function bars(rows) {
  const most = Math.max(...rows.flatMap((term) => SIDES.map(([, key]) => term[key] ?? 0)));
  return chart(LABEL, () => ({
    legend: {}, tooltip: { formatter: (p) => `${p.name}, ${p.seriesName}: ${taken(p.value)}` }, xAxis: timeAxis(most), yAxis: names(rows),
    series: SIDES.map(([name, key, hue]) => ({ name, type: "bar", data: rows.map((term) => term[key]), itemStyle: { color: palette()[hue] } })),
  }));
}

/** Terms that lie decades apart, as points: the length of a bar says nothing on a logarithmic axis. */
function dots(rows) {
  return chart(LABEL, () => ({
    legend: {}, tooltip: { formatter: (p) => `${rows[p.value[1]].name}, ${p.seriesName}: ${taken(p.value[0])}` }, xAxis: timesAxis(timesOf(rows)), yAxis: { ...names(rows), splitLine: { show: true } },
    series: SIDES.map(([name, key, hue]) => ({ name, type: "scatter", symbolSize: 11, data: rows.map((term, i) => [term[key], i]).filter(([value]) => value > 0), itemStyle: { color: palette()[hue] } })),
  }));
}

function terms(run) {
  if (!run.terms.length) return null;
  const rows = [...run.terms].reverse();
  return el("section", { class: "card" }, el("h2", {}, "Where the time goes"),
    areApart(timesOf(rows)) ? dots(rows) : bars(rows),
    linked(run));
}

/** The table of terms: what was measured of each has its basis, what was expected is part of the estimate. */
function linked(run) {
  const whole = ["serve", "encode", "batch"].includes(run.task) ? "whole request" : "step time";
  const measuredOrigin = (t) => () => Promise.resolve([{ ...measuredOf(run, "step_s", null, t.basis), name: t.name, value: taken(t.measured_s) }]);
  const expectedOrigin = (t) => () => (isAsked(run) ? derivedFrom(ofExpected(run), { name: t.name, value: taken(t.expected_s), formula: `part of the estimate; ${t.basis}`, of: whole }) : stated(run, t.name, taken(t.expected_s)));
  const measured = (t) => (t.measured_s === null ? "-" : own(t.name, taken(t.measured_s), measuredOrigin(t)));
  const expected = (t) => (t.expected_s === null ? "-" : own(t.name, taken(t.expected_s), expectedOrigin(t)));
  const apart = (t) => (t.difference_s === null ? "-" : own(`${t.name}, difference`, taken(t.difference_s), () => difference(`${t.name}, difference`, taken(t.difference_s), "measured - expected", measuredOrigin(t), expectedOrigin(t))));
  return table("Terms", [
    { title: "term", cell: (t) => t.name }, { title: "expected", number: true, cell: expected }, { title: "measured", number: true, cell: measured },
    { title: "difference", number: true, cell: apart }, { title: "basis", minor: true, cell: (t) => t.basis },
  ], run.terms);
}

/** Ends of an axis that hold what was expected, too. */
const bounds = (planned) => ({ min: (all) => Math.min(all.min, planned.low ?? planned.expected), max: (all) => Math.max(all.max, planned.high ?? planned.expected) });

function line(run, metric, points) {
  const planned = run.figures.find((figure) => figure.metric === metric && figure.expected !== null);
  const text = (value) => format.figure(metric, value);
  const across = ["serve", "encode", "batch"].includes(run.task) ? "request" : "step";
  const marks = planned && { silent: true, symbol: "none", label: { formatter: "expected", position: "insideEndTop" }, data: [{ yAxis: planned.expected }] };
  const area = planned && planned.low !== null && { silent: true, itemStyle: { opacity: 0.12 }, data: [[{ yAxis: planned.low }, { yAxis: planned.high }]] };
  return el("section", { class: "card" }, el("h2", {}, `${called(metric)} over the run`),
    chart(`${called(metric)} over the run; its median is in the table`, () => ({
      tooltip: { trigger: "axis", formatter: ([p]) => `${across} ${format.plain(p.value[0])}: ${text(p.value[1])}` },
      xAxis: { type: "value", min: "dataMin", max: "dataMax", name: across }, yAxis: { type: "value", scale: true, ...(planned && bounds(planned)), axisLabel: { formatter: text } },
      series: [{ type: "line", showSymbol: false, data: points, markLine: marks || undefined, markArea: area || undefined }],
    })));
}

/** A metric of the whole run, with where it was recorded. */
function recorded(run, metric, text) {
  const value = run.metrics[metric];
  if (value === null || value === undefined) return "-";
  return own(called(metric), text(value), () => Promise.resolve([measuredOf(run, metric, value, "over the whole run: the mean of its samples, or their total; without samples from tokens, price and time")]));
}

/** How long a run took, with when it began and when it was heard of last. */
function duration(run) {
  if (run.seconds === null) return "-";
  const moment = (name, seconds) => ({ ...measuredOf(run, "elapsed_s", null, ""), name, value: at(seconds), note: "" });
  const made = { name: "took", value: format.seconds(run.seconds), kind: "derived", formula: "its end, or what was recorded last, - its begin", inputs: [moment("its end, or what was recorded last", run.ended_at_s ?? run.last_at_s), moment("its begin", run.started_at_s)] };
  return own("took", format.seconds(run.seconds), () => Promise.resolve([made]));
}

/** What was measured, as a figure: of which samples, recorded by what and when. */
function measuredOf(run, metric, value, formula) {
  const summary = run.summaries?.find((one) => one.metric === metric);
  return { name: called(metric), value: format.known(value, (one) => format.figure(metric, one)), kind: "measured", formula, source: `run ${run.name || run.run_id}, ${run.source}`, date: new Date(run.started_at_s * 1000).toISOString().slice(0, 10), note: summary ? `${format.fixed(summary.count, 0)} samples in all` : "" };
}

/** The provenance of what was expected: the same question, asked anew. */
const ofExpected = (run) => () => {
  const { noun, question } = questionOf(run.expected.question);
  return ofEstimate(noun, question);
};

/** Whether the estimate can be asked for again: it was a question of the command line, not a plan of a file. */
const isAsked = (run) => /^flopwise (train|serve) /.test(run.expected?.question ?? "");

/** What a plan stated that cannot be asked for again. */
const stated = (run, name, value) => Promise.resolve([{ name, value, kind: "given", source: `what was expected of the run: ${run.expected.question || "a plan of a file"}`, note: `flopwise ${run.expected.version}` }]);

/** By how much what was measured differs from what was expected, with where both come from. */
async function difference(name, value, formula, measured, expected) {
  const [of, from] = await Promise.all([measured(), expected()]);
  return [{ name, value, kind: "derived", formula, inputs: [...of, ...from].filter(Boolean) }];
}

/** Where a measured figure lies; of one of which nothing was expected it says so. */
const placeOf = (f) => f.place || (f.measured === null ? "not measured" : "nothing expected");

function figures(run) {
  if (!run.figures.length) return null;
  const text = (f, value) => format.known(value, (one) => format.figure(f.metric, one));
  const estimated = (f) => ESTIMATED[f.metric] ?? called(f.metric);
  const measuredOrigin = (f) => () => Promise.resolve([measuredOf(run, f.metric, f.measured, `${f.statistic} of ${format.fixed(f.count ?? 0, 0)}${f.derived ? ", derived" : ""}`)]);
  const expectedOrigin = (f) => (isAsked(run) ? ofExpected(run) : () => stated(run, estimated(f), text(f, f.expected)));
  const measured = (f) => (f.measured === null ? "-" : own(called(f.metric), text(f, f.measured), measuredOrigin(f)));
  const expected = (f) => (f.expected === null ? "-" : own(estimated(f), text(f, f.expected), expectedOrigin(f)));
  const end = (f, word) => {
    const [name, value] = [`${called(f.metric)}, ${word}`, text(f, f[word])];
    return own(name, value, () => (isAsked(run) ? derivedFrom(ofExpected(run), { name, value, formula: `${estimated(f)} over or times the errors of the estimate`, of: estimated(f), isEnd: true }) : stated(run, name, value)));
  };
  const apart = (f) => {
    if (f.difference === null) return "-";
    const [name, value] = [`${called(f.metric)}, difference`, `${f.difference > 0 ? "+" : ""}${format.percent(f.difference)}`];
    return own(name, value, () => difference(name, value, "measured / expected - 1", measuredOrigin(f), async () => [named(await expectedOrigin(f)(), estimated(f))]));
  };
  return el("section", { class: "card" }, el("h2", {}, "Measured and expected"), table("Figures with their 80 % interval", [
    { title: "figure", cell: (f) => called(f.metric) }, { title: "measured", number: true, cell: measured }, { title: "expected", number: true, cell: expected },
    { title: "interval", number: true, cell: (f) => (f.low === null ? "-" : [end(f, "low"), " to ", end(f, "high"), f.measured === null ? null : band(f.low, f.measured, f.high)]) },
    { title: "difference", number: true, cell: apart }, { title: "place", minor: true, cell: placeOf },
  ], run.figures));
}

function causes(run) {
  if (!run.causes.length) return null;
  return el("section", { class: "card" }, el("h2", {}, "Likely causes"), el("ul", {}, run.causes.map((cause) => el("li", {}, `${cause.name}: ${cause.evidence}; ${cause.lever}`))));
}

function events(run) {
  if (!run.events.length) return null;
  return el("section", { class: "card" }, el("h2", {}, "Events"), table("Events, the last twenty", [
    { title: "when", cell: (e) => at(e.at_s) }, { title: "step", number: true, cell: (e) => e.step ?? "-" }, { title: "what", cell: (e) => e.kind }, { title: "text", cell: (e) => e.text },
  ], run.events.slice(-20)));
}
