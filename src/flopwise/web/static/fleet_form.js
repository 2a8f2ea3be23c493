// The form of a fleet: fields that stand for keys of its YAML file. The file is what counts; a change of either shows in both.

import { el, fill, fresh } from "./dom.js";
import { fold } from "./form.js";
import { facts } from "./api.js";

const yaml = import("./vendor/yaml.js");

const TASKS = [["serve", "Real-time service"], ["encode", "Embeddings"], ["batch", "Batch of requests"], ["finetune", "Fine-tuning"], ["pretrain", "Pre-training"], ["develop", "Machines to work on"]];
/** Workloads up to which all stand open. */
const FEW = 4;
const RUNS = ["batch", "finetune", "pretrain"];
const PERCENTILE = /^(mean|p50|p90|p95|p99)\s*=\s*(.+)$/;

/** Text as YAML holds it: a number where it is one, so that 4 is not written as "4". */
const scalar = (text) => (/^-?\d+(\.\d+)?$/.test(text) ? Number(text) : text);
const list = { read: (value) => (Array.isArray(value) ? value.join(", ") : value ?? ""), write: (text) => text.split(",").map((one) => one.trim()).filter(Boolean) };
const plain = { read: (value) => String(value ?? ""), write: scalar };
/** `1s` or `p99=1s` for {p95: 1s} or {p99: 1s}. */
const latency = {
  read: (value) => (value && typeof value === "object" ? Object.entries(value).map(([at, limit]) => (at === "p95" ? limit : `${at}=${limit}`)).join(", ") : value ?? ""),
  write: (text) => { const found = PERCENTILE.exec(text); return found ? { [found[1]]: scalar(found[2]) } : { p95: scalar(text) }; },
};
/** `aws, gcp` or `aws 60%, gcp 40%` for the shares of providers; those without one share what the others leave. */
const shares = {
  read: (value) => Object.entries(value ?? {}).map(([name, share]) => `${name} ${share}`).join(", "),
  write: (text) => {
    const named = list.write(text).map((one) => one.split(/[\s:]+/));
    const left = 100 - named.reduce((sum, [, share]) => sum + (share ? Number.parseFloat(share) * (share.endsWith("%") ? 1 : 100) : 0), 0);
    const free = named.filter(([, share]) => !share).length;
    let given = 0; // in tenths of a point, so that all of them make what is left
    const part = (nth) => { const until = Math.round((10 * Math.max(0, left) * nth) / free); const mine = until - given; given = until; return `${mine / 10}%`; };
    let nth = 0;
    return Object.fromEntries(named.map(([name, share]) => [name, share ?? part((nth += 1))]));
  },
};

const names = (noun, key) => async () => [...new Set((await facts(noun)).map((row) => row[key]))].sort();
const ALL = ["serve", "encode", "batch", "finetune", "pretrain"];
const POLICIES = [
  { path: ["budget_per_month"], label: "Monthly budget, US dollars", kind: plain, placeholder: "$8k" },
  { path: ["providers"], label: "Providers, with their shares", kind: shares, placeholder: "aws 60%, gcp 40%", hint: "Empty: all, with any shares." },
  { path: ["regions"], label: "Regions", kind: list, placeholder: "us-east-1, eu-*" },
  { path: ["purchase"], label: "Bought", kind: list, hint: "on_demand, spot, reserved_1y, reserved_3y." },
  { path: ["max_spot_share"], label: "Maximum share of spot", kind: plain, placeholder: "50%" },
  { path: ["growth_per_month"], label: "Monthly growth", kind: plain, placeholder: "4%" },
];
const FIELDS = [
  { path: ["name"], label: "Name", kind: { ...plain, write: (text) => text } },
  { path: ["task"], label: "Kind", choices: TASKS },
  { path: ["model"], label: "Model", kind: { ...plain, write: (text) => text }, of: ALL, suggestions: names("models", "name"), placeholder: "Llama-3.1-8B" },
  { path: ["environment"], label: "Environment", environment: true },
  { path: ["traffic", "requests_per_s"], label: "Requests a second", kind: plain, of: ["serve", "encode"] },
  { path: ["traffic", "requests"], label: "Requests of a run", kind: plain, of: ["batch"] },
  { path: ["traffic", "input_tokens"], label: "Tokens of a prompt", kind: plain, of: ["serve", "encode", "batch"] },
  { path: ["traffic", "output_tokens"], label: "Tokens of an answer", kind: plain, of: ["serve", "batch"] },
  { path: ["targets", "ttft"], label: "First token within", kind: latency, of: ["serve"], hint: "1s: of 95 % of requests; p99=1s." },
  { path: ["targets", "tpot"], label: "Each further token within", kind: latency, of: ["serve"] },
  { path: ["targets", "latency"], label: "A request within", kind: latency, of: ["serve", "encode"] },
  { path: ["method", "kind"], label: "Trained", choices: [["lora", "adapters (LoRA)"], ["qlora", "adapters on a 4-bit base (QLoRA)"], ["full", "all weights"]], of: ["finetune"] },
  { path: ["method", "rank"], label: "Rank of the adapters", kind: plain, of: ["finetune"] },
  { path: ["data", "tokens"], label: "Tokens of a run", kind: plain, of: ["finetune", "pretrain"], placeholder: "20M" },
  { path: ["targets", "deadline"], label: "Done within", kind: plain, of: RUNS, placeholder: "1d" },
  { path: ["runs_per_month"], label: "Runs a month", kind: plain, of: RUNS },
  { path: ["machines", "count"], label: "Machines", kind: plain, of: ["develop"] },
  { path: ["machines", "memory"], label: "Memory of each GPU, at least", kind: plain, of: ["develop"], placeholder: "16GB" },
  { path: ["constraints", "gpus"], label: "GPUs", kind: list, of: ALL, hint: "h100, l40s …; empty: all.", suggestions: names("gpus", "name") },
];
const HOURS = [
  { path: ["start"], label: "On from", kind: plain, placeholder: "09:00" }, { path: ["stop"], label: "Until", kind: plain, placeholder: "17:00" },
  { path: ["days"], label: "Days of a month, or of the week", kind: plain, placeholder: "22, mon-fri" },
];
const FRESH = {
  serve: { traffic: { requests_per_s: 2, input_tokens: 1024, output_tokens: 256 }, targets: { ttft: { p95: "1s" } }, model: "Llama-3.1-8B" },
  encode: { traffic: { requests_per_s: 20, input_tokens: 256 }, model: "bert-base-uncased" },
  batch: { traffic: { requests: "100k", input_tokens: 1024, output_tokens: 256 }, targets: { deadline: "1d" }, runs_per_month: 30, model: "Llama-3.1-8B" },
  finetune: { method: { kind: "lora", rank: 16 }, data: { tokens: "20M" }, runs_per_month: 4, model: "Llama-3.1-8B" },
  pretrain: { data: { tokens: "10B" }, model: "Llama-3.2-1B" },
  develop: { machines: { count: 1, memory: "16GB" } },
};

/** The form; `text()` gives the file, `write(text)` takes it changed. Returns {element, refresh}: `refresh` after the text was edited. */
export function fleetForm({ text, write }) {
  const place = el("div", { class: "fleet-form" });
  const status = el("p", { class: "note", role: "status", "aria-live": "polite" });
  let library = null;
  let parsed = null;

  /** The text anew; `focus`: of which field the cursor stays in. */
  function refresh() {
    if (!library) {
      yaml.then((found) => { library = found; refresh(); }, () => fill(status, "The form could not be loaded; edit the file as text."));
      return;
    }
    parsed = library.parseDocument(text() || "name: our platform\nworkloads: []\n", { version: "1.1" });
    const wrong = parsed.errors[0];
    if (wrong || !library.isMap(parsed.contents)) {
      fill(status, wrong ? `The form follows once the text can be read: ${wrong.message.split("\n")[0]}` : "The form follows once the text is a file with `workloads`.");
      place.inert = true;
      return;
    }
    place.inert = false;
    fill(status);
    draw();
  }

  function changed(redraws) {
    write(parsed.toString({ lineWidth: 0 }));
    if (redraws) draw();
  }

  /** Write a value where its key stands; nothing in its place where it is empty, and no map that is left empty. */
  function set(path, value) {
    const empty = value === "" || (Array.isArray(value) && !value.length) || (value && typeof value === "object" && !Object.keys(value).length);
    if (!empty) {
      const made = value && typeof value === "object" ? parsed.createNode(value, { flow: true }) : value;
      if (!parsed.hasIn(path.slice(0, -1)) && path.length > 1) parsed.setIn(path.slice(0, -1), parsed.createNode({}, { flow: path.length > 2 }));
      parsed.setIn(path, made);
      return;
    }
    parsed.deleteIn(path);
    for (let up = path.slice(0, -1); up.length && typeof up.at(-1) === "string"; up = up.slice(0, -1)) {
      const map = parsed.getIn(up);
      if (library.isMap(map) && !map.items.length) parsed.deleteIn(up);
    }
  }

  const value = (path) => {
    const node = parsed.getIn(path);
    return node && typeof node.toJSON === "function" ? node.toJSON() : node;
  };

  function field(above, one) {
    const id = fresh("fleet");
    const path = [...above, ...one.path];
    const now = value(path);
    const label = el("label", { for: id }, one.label);
    if (one.choices) {
      const other = now !== undefined && !one.choices.some(([key]) => key === now) ? [[now, String(now)]] : [];
      const select = el("select", { id, "data-path": path.join("."), onchange: () => { set(path, select.value); changed(true); } },
        (one.path[0] === "task" ? [] : [["", "-"]]).concat(one.choices, other).map(([key, words]) => el("option", { value: key, selected: key === (now ?? "") }, words)));
      return el("div", { class: "field" }, label, select);
    }
    const known = one.suggestions && el("datalist", { id: `${id}-list` });
    const box = el("input", {
      type: "text", id, value: one.kind.read(now), placeholder: one.placeholder ?? "", autocomplete: "off", spellcheck: "false", list: known?.id,
      onfocus: () => { if (known && !known.children.length) one.suggestions().then((all) => fill(known, all.map((name) => el("option", { value: name }))), () => {}); },
      oninput: () => { const text = box.value.trim(); set(path, text ? one.kind.write(text) : ""); changed(false); if (one.renames) one.renames(text); },
    });
    return el("div", { class: "field" }, label, box, known, one.hint && el("small", {}, one.hint));
  }

  function workload(index, opened) {
    const above = ["workloads", index];
    const task = value([...above, "task"]) ?? "serve";
    const title = el("b", {}, value([...above, "name"]) || `workload ${index + 1}`);
    const environments = Object.keys(value(["environments"]) ?? {});
    const fields = FIELDS.filter((one) => !one.of || one.of.includes(task)).map((one) => {
      if (one.environment) return environments.length ? field(above, { ...one, choices: environments.map((name) => [name, name]) }) : null;
      return field(above, one.path[0] === "name" ? { ...one, renames: (text) => fill(title, text || `workload ${index + 1}`) } : one);
    });
    const drop = el("button", { type: "button", class: "quiet", onclick: () => { parsed.deleteIn(above); changed(true); } }, "Remove");
    return fold(`workload:${index + 1}`, { class: "card", isOpen: opened }, [title, ` · ${TASKS.find(([key]) => key === task)?.[1] ?? task}`], el("div", { class: "fields" }, fields), drop);
  }

  function add(task) {
    const number = (value(["workloads"]) ?? []).length + 1;
    const { model, ...rest } = FRESH[task];
    const made = { name: `${task} ${number}`, task, ...(model ? { model } : {}), ...rest };
    if (!library.isSeq(parsed.getIn(["workloads"]))) parsed.setIn(["workloads"], parsed.createNode([]));
    const node = parsed.createNode(made);
    for (const pair of node.items) if (library.isMap(pair.value)) pair.value.flow = true;
    parsed.getIn(["workloads"]).flow = false;
    parsed.addIn(["workloads"], node);
    changed(true);
  }

  function environment(name) {
    const above = ["environments", name];
    const id = fresh("always");
    const always = Boolean(value([...above, "always"]));
    const box = el("input", { type: "checkbox", id, checked: always, onchange: () => {
      parsed.setIn(above, parsed.createNode(box.checked ? { always: true } : { start: "09:00", stop: "17:00", days: 22 }, { flow: true }));
      changed(true);
    } });
    const drop = el("button", { type: "button", class: "quiet", onclick: () => { parsed.deleteIn(above); changed(true); } }, "Remove");
    return el("fieldset", {}, el("legend", {}, name), el("label", { class: "check", for: id }, box, "all hours"), always ? null : el("div", { class: "fields" }, HOURS.map((one) => field(above, one))), drop);
  }

  function draw() {
    const focused = document.activeElement?.dataset?.path;
    const environments = Object.keys(value(["environments"]) ?? {});
    const named = el("input", { type: "text", "aria-label": "Name of a further environment", placeholder: "development" });
    const adds = el("button", { type: "button", class: "quiet", onclick: () => {
      const name = named.value.trim();
      if (!name || environments.includes(name)) return;
      if (!library.isMap(parsed.getIn(["environments"]))) parsed.setIn(["environments"], parsed.createNode({}));
      parsed.setIn(["environments", name], parsed.createNode({ start: "09:00", stop: "17:00", days: 22 }, { flow: true }));
      changed(true);
    } }, "Add an environment");
    const kind = el("select", { "aria-label": "Kind of a further workload" }, TASKS.map(([key, words]) => el("option", { value: key }, words)));
    fill(place,
      field([], { path: ["name"], label: "Name of the fleet", kind: { ...plain, write: (text) => text } }),
      fold("policies", { isOpen: true }, "Policies of all workloads", el("div", { class: "fields" }, POLICIES.map((one) => field(["policies"], one)))),
      fold("environments", {}, `When machines are on (${environments.length} environment${environments.length === 1 ? "" : "s"})`, environments.map(environment), el("div", { class: "row" }, named, adds)),
      el("h2", {}, "Workloads"), (value(["workloads"]) ?? []).map((_, index, all) => workload(index, all.length <= FEW || index === all.length - 1)),
      el("div", { class: "row" }, kind, el("button", { type: "button", class: "quiet", onclick: () => add(kind.value) }, "Add a workload")));
    if (focused) place.querySelector(`[data-path="${CSS.escape(focused)}"]`)?.focus();
  }

  return { element: el("div", {}, place, status), refresh };
}
