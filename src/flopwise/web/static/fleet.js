// Fleet: many workloads, one bill: where each runs, what it costs, what could go wrong.

import { job } from "./api.js";
import { questionPage } from "./question_page.js";
import { band, download, dropZone, el, fill, fresh, table, tiles } from "./dom.js";
import { fleetForm } from "./fleet_form.js";
import { fold, oneToAddress } from "./form.js";
import * as format from "./format.js";
import { figure, interval, linkOrigins, provenance } from "./origins.js";

const FILE = "fleet.yaml";
/** How long after the last key the form follows the text. */
const FOLLOWS_MS = 250;
const FILES_TYPE = "application/vnd.flopwise.files+json";
const FIELDS = [{ key: "scenarios", label: "Simulated months", placeholder: "1000" }];
const EXAMPLE = `name: two services and a fine-tuning
environments:
  production: {always: true}
  development: {start: "09:00", stop: "17:00", days: 22}
policies:
  budget_per_month: $8k
workloads:
  - name: chat
    task: serve
    model: Llama-3.1-8B
    environment: production
    traffic: {requests_per_s: 4, input_tokens: 1024, output_tokens: 256}
    targets: {ttft: {p95: 1s}}
  - name: search
    task: encode
    model: bert-base-uncased
    environment: production
    traffic: {requests_per_s: 50, input_tokens: 128}
  - name: nightly tuning
    task: finetune
    model: Llama-3.1-8B
    environment: development
    method: {kind: lora, rank: 16}
    data: {tokens: 20M}
    runs_per_month: 20
`;

const fleetOfAddress = () => (location.hash.startsWith("#fleet=") ? decodeURIComponent(location.hash.slice(7)) : "");

export function show(main) {
  const files = {};
  if (fleetOfAddress()) files[FILE] = fleetOfAddress();
  const view = { what_if: "" };
  return questionPage(main, {
    title: "Fleet", noun: "assess", fields: FIELDS, start: {}, files, button: "Assess", kept: view,
    needs: () => Boolean(files[FILE]?.trim()),
    empty: [el("h2", {}, "What does the whole platform cost, and where should it run?"), el("p", {}, "Add workloads and policies, or open a fleet file, and assess it; it takes seconds to minutes."),
      el("div", { class: "choices" }, el("a", { href: `/fleet#fleet=${encodeURIComponent(EXAMPLE)}` }, el("b", {}, "An example"), "two services and a fine-tuning under a budget of $8k a month"))],
    before: (page) => editor(page),
    run: (noun, question, how) => assess(noun, { ...question, fleet: FILE }, how),
    draw: (found, place, question) => drawFleet(found, place, { ...question, fleet: FILE, files: { ...files } }, view),
  });
}

/** The fleet as a form and as text: opened, dropped, or written; it stands in the link. */
function editor({ files }) {
  const id = fresh("fleet");
  const keep = (value) => {
    files[FILE] = value;
    history.replaceState(null, "", `${location.pathname}${location.search}${value ? `#fleet=${encodeURIComponent(value)}` : ""}`);
  };
  let timer = 0;
  const text = el("textarea", { id, rows: "18", spellcheck: "false", oninput: () => { keep(text.value); clearTimeout(timer); timer = setTimeout(form.refresh, FOLLOWS_MS); } });
  text.value = files[FILE] ?? "";
  const form = fleetForm({ text: () => text.value, write: (value) => { text.value = value; keep(value); } });
  const open = (value) => { text.value = value; keep(value); form.refresh(); };
  const drop = dropZone("Open or drop a fleet file:", { accept: ".yaml,.yml,.json", label: "Open a fleet file" }, open);
  form.refresh();
  return el("div", {}, drop, el("div", { class: "field" }, el("button", { type: "button", class: "quiet", onclick: () => open(EXAMPLE) }, "Write an example")),
    form.element, fold("file", { isOpen: matchMedia("(min-width: 901px)").matches }, "The fleet as a file", el("div", { class: "field" }, el("label", { for: id }, "Fleet file (YAML)"), text, el("small", {}, "A change here shows in the form, and the other way round; comments stay."))));
}

const purchase = (a) => a.purchase.replaceAll("_", " ");

/** What a risk is called in the provenance. */
const named = (risk) => `${risk.kind}, ${risk.workload || "the fleet"}: ${risk.evidence}`;

function drawFleet(found, place, question, view) {
  if (!found.usd_per_month) return;
  const cost = found.usd_per_month;
  const bought = (a) => `${format.fixed(a.count, 0)} x ${a.provider} ${a.instance}, ${a.region}`;
  const missing = found.workloads.filter((w) => !w.feasible);
  const expected = cost.expected ?? cost.total;
  place.append(
    ...missing.map((w) => el("div", { class: "infeasible", role: "alert" }, el("h2", {}, `No machine runs ${w.name}`), el("ul", {}, w.reasons.map((r) => el("li", {}, r))))),
    el("section", { class: "card", "aria-label": "The bill" }, el("h2", {}, found.verdict), tiles([
      ["A month", format.usd(expected), cost.low === null ? null : ["80 % interval: ", interval("expected bill", cost.low, cost.high, format.usd)], band(cost.low, expected, cost.high), cost.expected === null ? "bill of a month" : "expected bill"],
      ["Workloads", `${found.workloads.length - missing.length} of ${found.workloads.length}`, "run"],
      ["Budget", found.budget_per_month === null ? null : format.percent(expected / found.budget_per_month), "of it used", null, "share of the budget"],
    ]), found.optimality && el("p", { class: "note" }, found.optimality), reportButton(question)),
    el("section", { class: "card" }, el("h2", {}, "What runs where"), table(`${found.allocation.length} set-up${found.allocation.length === 1 ? "" : "s"}`, [
      { title: "workload", cell: (a) => a.workload }, { title: "environment", minor: true, cell: (a) => a.environment }, { title: "runs on", cell: bought },
      { title: "bought", minor: true, cell: purchase }, { title: "a month", number: true, cell: (a) => figure(`${a.workload || "nothing"}: ${a.count} x ${a.provider} ${a.instance}, ${a.region}, ${purchase(a)}`, format.usd(a.usd_per_month)) },
    ], found.allocation)),
    whatIf(found, expected, view),
    pictures(found.pictures ?? []),
    found.plans?.length ? fold("plans", { isOpen: found.plans.length <= FEW_PLANS }, "What else was considered for each workload", found.plans.map((one) => el("section", {}, el("h2", {}, one.name), pictures(one.pictures)))) : null,
    listed("Savings", found.savings.filter((s) => s.counted), [["saving", (s) => s.what], ["workload", (s) => s.workload], ["a month", (s) => figure(`saving by ${s.what}, ${s.workload}`, format.usd(s.usd_per_month)), true], ["how", (s) => s.how]]),
    listed("Risks", [...found.risks].sort((a, b) => b.probability * b.impact - a.probability * a.impact), [["likely", (r) => figure(`risk of ${named(r)}`, format.percent(r.probability, 0)), true], ["impact", (r) => figure(`impact of ${named(r)}`, format.percent(r.impact, 0)), true, true], ["kind", (r) => r.kind, false, true], ["workload", (r) => r.workload || "the fleet"], ["evidence", (r) => r.evidence], ["what to do", (r) => r.mitigation]]),
    listed("Assumed", found.assumptions, [["assumption", (text) => text]]),
    found.provenance ? provenance(() => Promise.resolve(found.provenance)) : "",
  );
  if (found.provenance) linkOrigins(place, () => Promise.resolve(found.provenance));
}

/** What the month would cost if something else happened: one at a time, switched on; `view.what_if` is kept in the address. */
function whatIf(found, expected, view) {
  if (!found.whatif?.length) return "";
  const most = Math.max(expected, ...found.whatif.map((one) => one.usd_per_month ?? 0));
  const status = el("p", { role: "status", "aria-live": "polite" });
  const bill = (usd) => [el("b", {}, usd === null ? "some workloads have no machine" : format.usd(usd)), el("span", { class: "note" }, " a month"), usd === null ? null : el("meter", { min: "0", max: String(most), "aria-label": "share of the highest of these bills", value: usd })];
  const show = (one) => fill(status, one ? [bill(one.usd_per_month), el("span", { class: "line" }, `${one.name}: ${one.text}`)] : [bill(expected), el("span", { class: "line" }, "As planned.")]);
  const name = fresh("whatif");
  const on = found.whatif.find((one) => one.name === view.what_if) ?? null;
  const choose = (one) => {
    view.what_if = one?.name ?? "";
    oneToAddress("what_if", view.what_if);
    show(one);
  };
  const choice = (one, text) => el("label", {}, el("input", { type: "radio", name, checked: one === on, onchange: () => choose(one) }), text);
  show(on);
  return el("section", { class: "card" }, el("h2", {}, "What if …"),
    el("div", { class: "tabs noprint", role: "radiogroup", "aria-label": "What if" }, choice(null, "as planned"), found.whatif.map((one) => choice(one, one.name))), status,
    fold("whatif", {}, "All of them", table("What else could happen", [
      { title: "what", cell: (w) => w.name }, { title: "possible", cell: (w) => (w.feasible ? "yes" : "no") },
      { title: "a month", number: true, cell: (w) => (w.usd_per_month === null ? "-" : figure(`bill if ${w.name}`, format.usd(w.usd_per_month))) },
      { title: "change", number: true, cell: (w) => (w.change_usd === null ? "-" : figure(`change if ${w.name}`, `${w.change_usd > 0 ? "+" : ""}${format.usd(w.change_usd)}`)) }, { title: "why", cell: (w) => w.text },
    ], found.whatif)));
}

function listed(title, rows, columns) {
  if (!rows.length) return "";
  return el("section", { class: "card" }, el("h2", {}, title), table(`${rows.length} of them`, columns.map(([name, cell, number, minor]) => ({ title: name, cell, number, minor })), rows));
}

/** Workloads up to which the pictures of their plans stand open. */
const FEW_PLANS = 4;
const pictures = (drawn) => el("div", { class: "cards pictures" }, drawn.map((one) => el("section", { class: "card" }, document.importNode(one, true))));

/** The pictures of a page of the report, as they stand there: drawn once for both, in the colours of each. */
function picturesOf(page) {
  const body = new DOMParser().parseFromString(page.slice(page.indexOf("<body>")), "text/html"); // without its styles
  return [...body.querySelectorAll("figure")];
}

/** The assessment with the pictures of its report, and of the page of each plan, from the files that the report is written as. */
function withPictures(files) {
  const found = JSON.parse(files["assessment.json"]);
  const plans = found.workloads.filter((one) => one.plan_file).map((one) => ({ name: one.name, pictures: picturesOf(files[one.plan_file.replace(/\.json$/, ".html")] ?? "") }));
  return { ...found, provenance: JSON.parse(files["provenance.json"] ?? "null"), pictures: picturesOf(files["report.html"]), plans: plans.filter((one) => one.pictures.length) };
}

/** The assessment; of one in which not all can run, too. */
async function assess(noun, question, how) {
  try {
    return withPictures(await job(noun, { ...question, explain: true }, { ...how, accept: FILES_TYPE }));
  } catch (problem) {
    if (problem.details?.files?.["assessment.json"]) problem.details.document = withPictures(problem.details.files);
    throw problem;
  }
}

/** The report's files as a zip; it is computed with the same seed, so it says the same. */
function reportButton(question) {
  const status = el("span", { role: "status" });
  async function pack() {
    fill(status, "Writing the report …");
    try {
      download(await job("assess", question, { accept: "application/zip", signal: new AbortController().signal, progress: (text) => fill(status, `Writing the report: ${text}`) }), "flopwise-report.zip");
      fill(status, "");
    } catch (problem) {
      fill(status, problem.message);
    }
  }
  return el("div", { class: "row noprint" }, el("button", { type: "button", class: "quiet", onclick: pack }, "Download the report"), status);
}
