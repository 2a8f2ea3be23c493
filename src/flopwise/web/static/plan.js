// Plan: a model and a workload in, ranked machines and layouts out, and everything behind the one that is chosen.

import { ask, facts, job, options } from "./api.js";
import { attach, attachedFiles, attachedNote, detach, missingNote } from "./attached.js";
import { prepare } from "./charts.js";
import { band, dropZone, el, failed, fill, fresh, jump, markInvalid, painted, skeleton, statusLine, table, tiles } from "./dom.js";
import { PAUSE_MS, counts, fold, fromAddress, inAddress, input, oneToAddress, others, times, toAddress } from "./form.js";
import * as format from "./format.js";
import { front, levers, rowOf, rowsOf } from "./planned.js";
import { detail } from "./chosen.js";
import { figure, interval, linkOrigins, ofChanges, ofPlan } from "./origins.js";

const TASKS = [["serve", "Real-time"], ["batch", "Batch"], ["finetune", "Fine-tune"], ["pretrain", "Pre-train"], ["encode", "Embeddings"]];
const SESSION = ["turns", "think", "tool_share", "tool_pause", "kv_stores"];
const WHERE = ["provider", "gpu", "purchase", "max_gpus"];
const RUN = ["deadline", "budget"];
const OF_TASK = {
  serve: ["rate", "input", "output", "ttft", "tpot", "budget", "simulate"],
  batch: ["requests", "input", "output", ...RUN],
  finetune: ["lora", "qlora", "tokens", "seq", ...RUN],
  pretrain: ["tokens", "seq", "global_batch", ...RUN],
  encode: ["rate", "input", "latency", "budget", "simulate"],
};
const START = {
  serve: { rate: "2", input: "1024", output: "256", ttft: "1s", simulate: "false" },
  batch: { requests: "100k", deadline: "1d" },
  finetune: { lora: "16", tokens: "20M" },
  pretrain: { tokens: "100B", deadline: "30d" },
  encode: { rate: "20", input: "256", simulate: "false" },
};
const FIELDS = {
  rate: { label: "Requests a second", range: counts(0.1, 1000), hint: "On average: 20, 500/min." },
  requests: { label: "Requests in all", range: counts(1e3, 1e8) },
  input: { label: "Tokens of a prompt", range: counts(32, 131072) },
  output: { label: "Tokens of an answer", range: counts(16, 16384) },
  ttft: { label: "Time to the first token, at most", range: times(0.05, 30), hint: "At a percentile: p99=1s; else p95." },
  tpot: { label: "Time of each further token, at most", range: times(0.005, 0.5) },
  latency: { label: "Time of a request, at most", range: times(0.005, 10) },
  tokens: { label: "Tokens of the run", range: counts(1e6, 2e13) },
  seq: { label: "Tokens of a sequence", range: counts(256, 131072) },
  global_batch: { label: "Sequences of a step", range: counts(8, 16384) },
  lora: { label: "Rank of adapters", hint: "Empty: all weights are trained." },
  qlora: { label: "On a 4-bit base (QLoRA)", check: "off" },
  deadline: { label: "Done within", range: times(600, 86400 * 365) },
  budget: { label: "Budget, US dollars", range: counts(1, 1e7), hint: "Of the run; of a month for services." },
  simulate: { label: "Check the best plans in the simulator", check: "on", hint: "Slower; percentiles then come from simulated queues." },
  turns: { label: "Turns of a conversation", range: counts(1, 50), hint: "Each prompt contains all turns before it." },
  think: { label: "Until the next turn, on average", range: times(1, 600) },
  tool_share: { label: "Turns that follow a tool call", hint: "A share of the later turns: 0.3, 30%." },
  tool_pause: { label: "A tool takes, on average", range: times(0.05, 60) },
  kv_stores: { label: "Stores below the cache of a replica", hint: "host=200GB, nvme=4TB@6GB/s." },
  provider: { label: "Providers", list: true, hint: "aws, gcp, azure …; empty: all.", suggestions: () => names("instances", "provider") },
  gpu: { label: "GPUs", list: true, hint: "h100, l40s …; empty: all.", suggestions: () => names("gpus", "name") },
  purchase: { label: "Bought", list: true, hint: "on_demand, spot, reserved_1y, reserved_3y." },
  max_gpus: { label: "GPUs, at most", range: counts(1, 16384) },
};

/** What a configuration is called that was pasted or dropped. */
const CONFIG = "config.json";
/** What the address says besides the question: the row that is shown, how the table is sorted and filtered, of what was asked why it is not there, and the target of the files. */
const START_VIEW = { pick: "1", sort: "rank", find: "", why: "", files: "" };
const VIEW = Object.keys(START_VIEW);

const names = async (noun, key) => [...new Set((await facts(noun)).map((row) => row[key]))].sort();

export async function show(main) {
  const [declared, files] = await Promise.all([options("plan").catch((problem) => ({ problem })), attachedFiles()]);
  if (declared.problem) {
    fill(main, failed(declared.problem));
    return;
  }
  const lists = new Set(Object.keys(declared).filter((key) => declared[key].type === "array"));
  const { model, ...state } = fromAddress(lists);
  if (model) state.workload ??= model; // as other pages call it
  const view = { ...START_VIEW, ...Object.fromEntries(VIEW.filter((key) => key in state).map((key) => [key, state[key]])) };
  for (const key of VIEW) delete state[key];
  let running = null;
  let timer = 0;
  const form = el("form", { class: "form card", onsubmit: (event) => event.preventDefault(), "aria-label": "What is planned" });
  const status = statusLine();
  const results = el("div", { id: "results", tabindex: "-1" });
  fill(main, el("h1", {}, "Plan"), el("div", { class: "split" }, form, jump(results), el("div", {}, status.line, results)));

  const remember = () => toAddress({ ...state, ...Object.fromEntries(VIEW.map((key) => [key, view[key] === START_VIEW[key] ? "" : view[key]])) });

  function change(key, value) {
    if (value === "" || (Array.isArray(value) && !value.length)) delete state[key];
    else state[key] = value;
    view.pick = "1";
    if (state.workload !== CONFIG) detach();
    oneToAddress("all", "");
    remember();
    running?.abort();
    clearTimeout(timer);
    timer = setTimeout(answer, PAUSE_MS);
  }

  function chooseTask(task) {
    for (const key of [...OF_TASK[state.task] ?? [], ...OF_TASK[task], ...SESSION]) delete state[key];
    Object.assign(state, START[task], { task });
    drawForm();
    change("task", task);
  }

  async function take(text) {
    files[CONFIG] = text;
    await attach(CONFIG, text);
    change("workload", CONFIG);
    drawForm();
  }

  document.addEventListener("paste", (event) => {
    const text = event.clipboardData.getData("text").trim();
    if (!text.startsWith("{")) return; // what a field takes
    event.preventDefault();
    take(text);
  });

  function drawForm() {
    const task = state.task;
    const shown = OF_TASK[task] ?? [];
    const drop = dropZone("Or paste or drop a config.json:", { accept: ".json", label: "A config.json", note: state.workload === CONFIG && (files[CONFIG] ? attachedNote : missingNote)(CONFIG) }, take);
    fill(form,
      input({ key: "workload", label: "Model", hint: "A name of the catalog, a hub id, or a size such as 7B.", placeholder: "Llama-3.1-8B", suggestions: () => names("models", "name") }, state, change), drop,
      el("fieldset", {}, el("legend", {}, "Workload"), el("div", { class: "tabs" }, TASKS.map(([key, text]) =>
        el("label", {}, el("input", { type: "radio", name: "task", value: key, checked: key === task, onchange: () => chooseTask(key) }), text)), el("a", { class: "tab", href: DEVELOPMENT }, "Development"))),
      shown.map((key) => input({ key, ...FIELDS[key] }, state, change)),
      task === "serve" && fold("turns", { isOpen: SESSION.some((key) => key in state) }, "Conversations of several turns", SESSION.map((key) => input({ key, ...FIELDS[key] }, state, change))),
      task && fold("where", { isOpen: matchMedia("(min-width: 901px)").matches || WHERE.some((key) => key in state) }, "Where it may run", WHERE.map((key) => input({ key, ...FIELDS[key] }, state, change))),
      task && input({ key: "objective", label: "Rank by", choices: [["", "cost"], ["time", "time"], ["energy", "energy"]] }, state, change),
      task && others(declared, new Set(["workload", "task", "objective", "top", "explain", "from", "compare", ...shown, ...WHERE, ...(task === "serve" ? SESSION : [])]), state, change));
  }

  async function answer() {
    running?.abort();
    if (state.workload === CONFIG && !files[CONFIG]) {
      status.quiet("");
      fill(results, el("div", { class: "empty" }, el("h2", {}, "Which config.json?"), el("p", {}, missingNote(CONFIG))));
      return;
    }
    if (!state.workload || !state.task) {
      status.quiet("");
      fill(results, el("div", { class: "empty" }, el("h2", {}, "What do you want to run?"),
        el("p", {}, "Choose a model and a workload: the ways of running it are ranked over all offers, with what each costs and how sure that is."),
        el("div", { class: "choices" }, EXAMPLES.map(([title, text, address]) => el("a", { href: address }, el("b", {}, title), text)))));
      return;
    }
    const mine = (running = new AbortController());
    const question = { ...state };
    if (state.workload === CONFIG) question.files = files;
    const begun = performance.now();
    const stop = () => {
      mine.abort();
      status.quiet("Stopped.");
      settle();
    };
    const report = (text, fraction) => status.busy(text, fraction, stop);
    report("Planning …");
    prepare();
    if (!results.querySelector("section")) fill(results, skeleton());
    results.classList.add("stale");
    results.setAttribute("aria-busy", "true");
    markInvalid(form);
    let rest = null; // draws what stands below the ranking
    const rank = (plan) => {
      if (mine.signal.aborted) return;
      performance.mark("plan-ranked");
      rest = draw(plan, question, null);
      painted().then(() => performance.mark("plan-shown"));
    };
    const first = (plan) => {
      if (mine.signal.aborted) return;
      draw(plan, question, null, true);
      painted().then(() => performance.mark("plan-first"));
    };
    try {
      const plan = await job("plan", question, { signal: mine.signal, progress: report, first, ranked: rank });
      if (!rest) rank(plan);
      await painted();
      if (mine.signal.aborted) return;
      status.quiet(`${format.count(plan.evaluated)} layouts evaluated; answered in ${format.seconds((performance.now() - begun) / 1000)}.`);
      rest(plan);
      performance.mark("plan-whole");
    } catch (problem) {
      if (problem.name === "AbortError") return;
      if (problem.infeasible && problem.details.document?.misses) draw(problem.details.document, question, problem)(problem.details.document);
      else fill(results, failed(problem));
      markInvalid(form, problem.details?.status === 400 ? problem.message : "");
      status.quiet(problem.infeasible ? "No plan meets every target." : "No answer.");
    }
    settle();
  }

  function settle() {
    results.querySelector(".skeleton")?.remove();
    results.classList.remove("stale");
    results.removeAttribute("aria-busy");
  }

  /** Draw what is read first of an answer; the function that is returned draws the rest of the whole one. `first`: a first look, of which nothing is chosen yet. */
  function draw(plan, question, problem, first = false) {
    const rows = rowsOf(plan);
    const place = el("div", { id: "chosen" });
    let whole = null; // the answer, once what stands below the ranking is there
    const select = (key) => {
      view.pick = key;
      remember();
      for (const line of results.querySelectorAll("tr[data-rank]")) line.classList.toggle("chosen", line.dataset.rank === key);
      for (const one of results.querySelectorAll("input[name=pick]")) one.checked = one.value === key;
      if (whole) detail(place, rowOf(whole, key), whole, question, { view, remember, signal: running.signal });
    };
    results.classList.toggle("stale", false);
    if (first) {
      const before = results.querySelector(":scope > .below"); // of the question before: nothing jumps
      before?.classList.add("stale");
      fill(results, el("p", { class: "first-look" }, "A first look: a few machines that may cost least. All offers are being searched …"),
        headline(rows[0], plan, true), ranked(rows, plan, { ...view, pick: "" }, () => {}, () => {}), before);
      return () => {};
    }
    const before = results.querySelector(":scope > .below"); // stays until the rest is drawn: nothing jumps
    before?.classList.add("stale");
    const below = el("div", { class: "below" });
    fill(results,
      problem && el("div", { class: "infeasible", role: "alert" }, el("h2", {}, plan.verdict),
        el("ul", {}, [...new Set(problem.details.reasons)].map((reason) => el("li", {}, reason))), el("p", { class: "note" }, rows.length ? "The nearest misses are below." : "")),
      rows.length ? headline(rows[0], plan, !problem) : null,
      rows.length ? ranked(rows, plan, view, remember, select, (row) => () => ofPlan(whole ?? plan, row, question.files)) : null,
      before ?? below);
    return (answer) => {
      whole = answer;
      before?.replaceWith(below);
      const shown = front(whole, (key) => { select(key); place.scrollIntoView({ block: "nearest" }); }, { origins: (row) => () => ofPlan(whole, row, question.files), takes: takes(whole) });
      fill(below, el("div", { class: "cards" }, shown, levers(whole, () => ofChanges(whole, question.files))), place, ruledOut(whole, question, view, remember), assumed(whole));
      if (!rows.length) return;
      select(rowOf(whole, view.pick) ? view.pick : "1");
      linkOrigins(results.querySelector("[aria-label='The answer']"), () => ofPlan(whole, rows[0], question.files));
    };
  }

  drawForm();
  answer();
}

/** Machines to develop on run no model: they are planned as a fleet of their own, assessed as the page opens. */
const DEVELOPMENT = `/fleet?scenarios=100#fleet=${encodeURIComponent(`name: development
environments:
  office hours: {start: "09:00", stop: "17:00", days: 22}
workloads:
  - name: desks
    task: develop
    environment: office hours
    machines: {count: 3, memory: 16GB}
`)}`;

const EXAMPLES = [
  ["A chat service", "Llama-3.1-8B, two requests a second, the first token within a second", "/plan?workload=Llama-3.1-8B&task=serve&rate=2&input=1024&output=256&ttft=1s&simulate=false"],
  ["A fine-tuning", "Llama-3.1-8B with LoRA on 20M tokens", "/plan?workload=Llama-3.1-8B&task=finetune&lora=16&tokens=20M"],
  ["A pre-training", "7B parameters on 100B tokens within 30 days", "/plan?workload=7B&task=pretrain&tokens=100B&deadline=30d"],
  ["A fleet", "many workloads, several clouds and one budget, from a file", "/fleet"],
];

const service = (plan) => ["serve", "encode"].includes(plan.task);
const costOf = (plan) => (service(plan) ? "USD a month" : "cost");
const hasTargets = (row) => Object.keys(row.meets).length > 0;
const likely = (row) => (hasTargets(row) ? format.chance(Math.min(...Object.values(row.meets))) : "-");
/** The names that figures of a row have in its provenance. */
const takes = (plan) => ({ finetune: "run time", pretrain: "run time", batch: "time of the batch" })[plan.task] ?? "whole request of the plan";
const chance = (row) => (Object.keys(row.meets).length > 1 ? "chance of every target" : `chance of ${Object.keys(row.meets)[0]}`);
const drawn = (row, name) => band(row[`${name}_low`], row[name], row[`${name}_high`]);
const ends = (row, name, text, origin) => {
  const [low, high] = [row[`${name}_low`], row[`${name}_high`]];
  return low === null || text(low) === text(high) ? null : ["80 % interval: ", interval(origin, low, high, text)];
};


function headline(best, plan, meets) {
  const figures = [
    [meets ? `Best by ${plan.objective}` : "Nearest miss", `${best.num_instances} x ${best.instance}`, `${best.provider}, ${best.region}: ${best.num_gpus} x ${best.gpu}`],
    [service(plan) ? "Cost a month" : "Cost", format.usd(best.cost_usd), ends(best, "cost_usd", format.usd, "cost of the plan"), drawn(best, "cost_usd"), "cost of the plan"],
  ];
  if (service(plan)) {
    figures.push(["TTFT", best.figures.ttft_s ? format.seconds(best.figures.ttft_s) : null, format.percentileOf(plan, "ttft"), null, "TTFT of the plan"], ["TPOT", best.figures.tpot_s ? format.seconds(best.figures.tpot_s) : null, format.percentileOf(plan, "tpot"), null, "TPOT of the plan"]);
  }
  figures.push([service(plan) ? "A request takes" : "It takes", format.seconds(best.seconds), ends(best, "seconds", format.seconds, takes(plan)), drawn(best, "seconds"), takes(plan)], ["Meets its targets", hasTargets(best) ? likely(best) : null, null, null, chance(best)]);
  return el("section", { class: "card headline", "aria-label": "The answer" }, el("h2", {}, meets ? plan.verdict : "The nearest miss"), tiles(figures));
}

const COLUMNS = [
  { key: "rank", title: "#", number: true, minor: true, of: (c) => c.rank, text: (c) => String(c.rank) },
  { key: "instance", title: "instance", kind: "name", of: (c) => c.instance, text: (c) => `${c.num_instances} x ${c.instance}${c.purchase === "on_demand" ? "" : ` ${c.purchase}`}`, note: (c) => `${c.provider}, ${c.region}` },
  { key: "gpu", title: "GPUs", of: (c) => c.gpu, text: (c) => `${c.num_gpus} x ${c.gpu}` },
  { key: "layout", title: "layout", kind: "words", minor: true, of: (c) => format.layout(c.layout) },
  { key: "memory", title: "memory", number: true, minor: true, of: (c) => c.memory_bytes, text: (c) => `${format.fixed(c.memory_bytes / 2 ** 30, 0)}/${format.fixed(c.capacity_bytes / 2 ** 30, 0)} GiB`, origin: () => "memory per GPU" },
  { key: "ttft", title: "TTFT", number: true, only: (p) => p.task === "serve", of: (c) => c.figures.ttft_s ?? Infinity, text: (c) => format.figure("ttft_s", c.figures.ttft_s), origin: () => "TTFT of the plan" },
  { key: "tpot", title: "TPOT", number: true, minor: true, only: (p) => p.task === "serve", of: (c) => c.figures.tpot_s ?? Infinity, text: (c) => format.figure("tpot_s", c.figures.tpot_s), origin: () => "TPOT of the plan" },
  { key: "time", title: "time", number: true, only: (p) => p.task !== "serve", of: (c) => c.seconds, text: (c) => format.seconds(c.seconds), origin: (_, plan) => takes(plan) },
  { key: "hourly", title: "USD/h", number: true, minor: true, of: (c) => c.usd_per_hour, text: (c) => format.usd(c.usd_per_hour), origin: () => "price of all machines" },
  { key: "cost", title: "cost", number: true, of: (c) => c.cost_usd, text: (c) => format.usd(c.cost_usd), origin: () => "cost of the plan" },
  { key: "meets", title: "meets", number: true, of: (c) => (hasTargets(c) ? -Math.min(...Object.values(c.meets)) : 0), text: likely, origin: (c) => (hasTargets(c) ? chance(c) : null) },
];
const FIRST = 10;

/**
 * The ranked table: sorted by any column, filtered by any text, ten rows at first. `view`: the row that is picked, the
 * column that sorts (`-cost`: the dearest first) and the filter, which `remember()` keeps; `origins(row)` asks for its provenance.
 */
function ranked(rows, plan, view, remember, select, origins = null) {
  let all = inAddress("all") === "true";
  const place = el("div");
  const search = el("input", { type: "search", "aria-label": "Filter the plans", placeholder: "Filter: l40s, aws, spot …", value: view.find, oninput: () => { view.find = search.value; remember(); draw(); } });
  const columns = COLUMNS.filter((c) => !c.only || c.only(plan));
  const text = (c, row) => (c.text ? c.text(row) : String(c.of(row)));

  function sortBy(key) {
    view.sort = view.sort === key ? `-${key}` : key;
    remember();
    draw();
  }

  function draw() {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const column = columns.find((c) => c.key === view.sort.replace("-", "")) ?? columns[0];
    const up = !view.sort.startsWith("-");
    const found = rows.filter((row) => wanted.every((word) => columns.some((c) => `${text(c, row)} ${c.note?.(row) ?? ""}`.toLowerCase().includes(word))));
    found.sort((a, b) => {
      const [x, y] = [column.of(a), column.of(b)];
      return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
    });
    const shown = all ? found : found.slice(0, FIRST);
    fill(place,
      table(`${plan.plans.length ? "Plans that meet every target" : "Nearest misses"}: ${shown.length} of ${rows.length}`, [
        { title: el("span", { class: "unseen" }, "show"), cell: (row) => el("input", { type: "radio", name: "pick", value: String(row.rank), checked: String(row.rank) === view.pick, "aria-label": `Show plan ${row.rank}: ${row.instance}`, onchange: () => select(String(row.rank)) }) },
        ...columns.map((c) => ({
          number: c.number, minor: c.minor, sorted: c === column ? (up ? "ascending" : "descending") : null,
          title: el("button", { type: "button", onclick: () => sortBy(c.key) }, c.key === "cost" ? costOf(plan) : c.title, c === column ? (up ? "\u00a0▲" : "\u00a0▼") : ""),
          kind: c.kind, cell: (row) => [origins && c.origin?.(row, plan) ? figure(c.origin(row, plan), text(c, row)) : text(c, row), c.note && el("small", {}, c.note(row))],
        })),
      ], shown, (row) => ({ "data-rank": row.rank, class: String(row.rank) === view.pick && "chosen" })),
      found.length > shown.length ? el("button", { type: "button", class: "quiet", onclick: () => { all = true; oneToAddress("all", "true"); draw(); } }, `Show all ${found.length}`) : null);
    const lines = place.querySelectorAll("tr[data-rank]");
    if (origins) shown.forEach((row, i) => linkOrigins(lines[i], origins(row), { beside: true }));
  }
  draw();
  return el("section", { class: "card" }, el("div", { class: "row" }, el("h2", {}, plan.plans.length ? "Ranked plans" : "Nearest misses"), search), place);
}

/** What was ruled out and why; any instance or GPU can be asked for, and every one that is not ranked has its button. `view.why` is what was asked for last. */
function ruledOut(plan, question, view, remember) {
  const place = el("div", { role: "status", "aria-live": "polite" });
  const known = el("datalist", { id: fresh("offers") });
  const suggest = () => {
    if (!known.children.length) Promise.all([names("instances", "instance"), names("gpus", "name")]).then((lists) => fill(known, lists.flat().map((name) => el("option", { value: name }))), () => {});
  };
  const field = el("input", { type: "text", "aria-label": "Instance or GPU", placeholder: "p5.48xlarge, h100 …", list: known.id, onfocus: suggest });
  const isSeen = !view.why; // an answer that the link asks for stands there, and the page stays where it is

  async function askAbout(name, limits) {
    fill(place, el("p", { class: "status busy" }, `Asking about ${name} …`));
    if (isSeen) place.scrollIntoView({ block: "nearest" });
    const rest = Object.fromEntries(Object.entries(question).filter(([key]) => !["gpu", "instance"].includes(key)));
    const other = [question.gpu ?? []].flat().length ? ` The question is about ${[question.gpu].flat().join(", ")} only.` : "";
    try {
      const found = await ask("plan", { ...rest, ...limits, ...(service(plan) ? { simulate: false } : {}) });
      const best = found.plans[0];
      fill(place, el("p", {}, `${name} meets the targets: ${best.num_instances} x ${best.provider} ${best.instance} in `, figure(takes(found), format.seconds(best.seconds)), " for ", figure("cost of the plan", format.usd(best.cost_usd)),
        plan.plans.length ? `, against ${format.usd(plan.plans[0].cost_usd)} of plan 1` : "", `.${other}`));
      linkOrigins(place, () => ofPlan(found, best, question.files));
    } catch (problem) {
      fill(place, el("p", {}, `${name}: ${problem.message}`), el("ul", {}, (problem.details?.reasons ?? []).map((reason) => el("li", {}, reason))));
    }
  }

  function keep(name) {
    view.why = name;
    remember();
  }

  async function why() {
    const name = field.value.trim();
    keep(name);
    if (!name) return fill(place);
    const gpu = (await names("gpus", "name").catch(() => [])).some((one) => one.toLowerCase().startsWith(name.toLowerCase()));
    return askAbout(name, { [gpu ? "gpu" : "instance"]: [name] });
  }

  if (view.why) {
    field.value = view.why;
    why();
  }
  return el("section", { class: "card" }, el("h2", {}, "Why not …?"),
    el("form", { class: "row noprint", onsubmit: (event) => { event.preventDefault(); why(); } }, field, known, el("button", {}, "Ask")), place,
    plan.ruled_out.length ? table("Ruled out", [
      { title: "left out", number: true, cell: (r) => `${format.fixed(r.count, 0)} ${r.unit}` },
      { title: "why", cell: (r) => [r.reason, r.example && el("small", {}, `Such as ${r.example}`)] },
    ], plan.ruled_out) : null,
    unranked(plan, (row) => {
      const providers = [question.provider ?? []].flat();
      if (!providers.length || providers.includes(row.provider)) {
        keep(row.instance);
        return askAbout(`${row.provider} ${row.instance}`, { instance: [row.instance], provider: [row.provider] });
      }
      return fill(place, el("p", {}, `${row.provider} ${row.instance} is left out: the question is about ${providers.join(", ")} only.`));
    }));
}

const AT_ONCE = 50;

/** Every instance on offer that has no plan, with a button that asks why; listed once it is opened. */
function unranked(plan, why) {
  const place = el("div");
  const search = el("input", { type: "search", "aria-label": "Filter the instances without a plan", placeholder: "Filter: h100, azure …", value: inAddress("among"), oninput: () => { oneToAddress("among", search.value); draw(); } });
  let all = null;

  function draw() {
    if (!all) return; // drawn once it is there
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = all.filter((row) => wanted.every((word) => `${row.provider} ${row.instance} ${row.accelerator}`.toLowerCase().includes(word)));
    fill(place, table(`${Math.min(AT_ONCE, found.length)} of ${found.length} instances without a plan`, [
      { title: "instance", kind: "name", cell: (row) => [row.instance, el("small", {}, row.provider)] },
      { title: "GPUs", cell: (row) => `${format.plain(row.count)} x ${row.accelerator}` },
      { title: el("span", { class: "unseen" }, "ask"), cell: (row) => el("button", { type: "button", class: "quiet", "aria-label": `Why not ${row.provider} ${row.instance}?`, onclick: () => why(row) }, "Why not?") },
    ], found.slice(0, AT_ONCE)));
  }

  async function list(event) {
    if (!event.target.open || all) return;
    const ranked = new Set(plan.plans.map((one) => `${one.provider} ${one.instance}`));
    const offers = await facts("instances").catch(() => []);
    all = [...new Map(offers.map((row) => [`${row.provider} ${row.instance}`, row])).entries()].filter(([key]) => !ranked.has(key)).map(([, row]) => row);
    draw();
  }
  return fold("unranked", { class: "noprint", ontoggle: list }, "Every instance without a plan", search, place);
}

function assumed(plan) {
  if (!plan.assumptions.length) return null;
  return el("section", { class: "card" }, el("h2", {}, "Assumed"), el("ul", {}, [...new Set(plan.assumptions)].map((text) => el("li", {}, text))));
}
