// Catalog: GPUs, offers and models with their sources and dates, and how they compare.

import { facts } from "./api.js";
import { chart } from "./charts.js";
import { el, failed, fill, fresh, table } from "./dom.js";
import { PAGE_STATE, foldOf, fromAddress, inAddress, oneToAddress } from "./form.js";
import * as format from "./format.js";
import { figure, linkOrigins, openOrigin, own } from "./origins.js";

const PFLOP_HOUR = "USD per PFLOP-hour";
/** What an hour of a PFLOP/s of dense bf16 costs on demand; null where the price or the peak is not known. */
function pflopHour(offer, peaks) {
  const usd = offer.on_demand_usd_per_hour / (offer.count * offer.accelerator_share * peaks.get(offer.accelerator)?.peak.bf16 / 1e15);
  return usd > 0 && Number.isFinite(usd) ? usd : null;
}
const perHour = (value) => (value === null ? "-" : format.usd(value));
const KINDS = {
  gpus: {
    title: "GPUs", group: "vendor", order: (a, b) => a.name.localeCompare(b.name),
    columns: [
      ["name", (r) => r.name], ["vendor", (r) => r.vendor], ["architecture", (r) => r.architecture], ["year", (r) => r.year ?? "-", true], ["memory", (r) => format.gib(r.hbm_bytes), true],
      ["bandwidth", (r) => (r.hbm_bytes_per_s ? format.rate(r.hbm_bytes_per_s) : "-"), true], ["bf16 dense", (r) => (r.peak.bf16 ? format.rate(r.peak.bf16, "FLOP/s") : "-"), true],
      ["fp8 dense", (r) => (r.peak.fp8 ? format.rate(r.peak.fp8, "FLOP/s") : "-"), true], ["TDP", (r) => (r.tdp_w ? `${format.fixed(r.tdp_w, 0)} W` : "-"), true], ["source", (r) => `${r.source}, ${r.date}`],
    ],
    plots: [
      { title: "Bandwidth against compute", x: "bf16 dense", y: "memory bandwidth", of: (r) => [r.peak.bf16, r.hbm_bytes_per_s], textX: (v) => format.rate(v, "FLOP/s"), textY: (v) => format.rate(v) },
    ],
    more: (rows) => cheapest(rows),
  },
  instances: {
    title: "Offers", group: "provider", order: (a, b) => a.provider.localeCompare(b.provider) || a.instance.localeCompare(b.instance),
    columns: [
      ["provider", (r) => r.provider], ["instance", (r) => r.instance], ["region", (r) => r.region], ["GPU", (r) => `${format.fixed(r.count, 0)} x ${r.accelerator}`],
      ["on demand", (r) => perHour(r.on_demand_usd_per_hour), true], ["spot", (r) => perHour(r.spot_usd_per_hour), true], ["reserved 1y", (r) => perHour(r.reserved_1y_usd_per_hour), true],
      [PFLOP_HOUR, (r, peaks) => format.known(pflopHour(r, peaks), format.usd), true], ["network", (r) => (r.network_bytes_per_s ? format.rate(r.network_bytes_per_s) : "-"), true], ["price of", (r) => r.price_date || "undated", true], ["source", (r) => r.source],
    ],
    plots: [
      { title: "US dollars per PFLOP-hour", x: "day of the price", y: "USD per PFLOP-hour, bf16 dense, on demand", time: true, textX: (v) => new Date(v).toISOString().slice(0, 10), textY: (v) => format.usd(v),
        of: (r, peaks) => [/^\d{4}-\d\d-\d\d/.test(r.price_date) ? Date.parse(r.price_date.slice(0, 10)) : NaN, pflopHour(r, peaks)], origin: (r, usd, peaks) => [PFLOP_HOUR, pflopHourOf(r, usd, peaks.get(r.accelerator))] },
    ],
    more: (rows) => ages(rows),
  },
  models: {
    title: "Models", group: "kind", order: (a, b) => a.name.localeCompare(b.name),
    columns: [
      ["name", (r) => r.name], ["type", (r) => r.model_type], ["kind", (r) => r.kind], ["parameters", (r) => format.count(r.parameters), true], ["active", (r) => format.count(r.active_parameters), true],
      ["layers", (r) => r.layers ?? "-", true], ["width", (r) => r.width ?? "-", true], ["context", (r) => (r.context ? format.fixed(r.context, 0) : "-"), true], ["source", (r) => `${r.source}, ${r.date}`],
    ],
    plots: [{ title: "Context against size", x: "parameters", y: "context, tokens", of: (r) => [r.parameters, r.context], textX: format.count, textY: format.count }],
  },
};
const FIRST = 50;

/** The figure of a column as a fact: what it says, where it was read and when; spot and reserved prices have a source of their own. */
function factOf(row, name, text) {
  const own = { spot: "spot", "reserved 1y": "reserved" }[name];
  const [source, date] = own ? [row[`${own}_source`], row[`${own}_date`]] : [row.source, row.date ?? row.price_date];
  const counted = name === "active" || name === "parameters";
  return { name, value: text, kind: "fact", source: source || row.source, date: date || "undated", note: [counted && "counted from its configuration", row.confidence && `${row.confidence} confidence`, row.notes].filter(Boolean).join("; ") };
}

/** What a PFLOP-hour costs on an offer, with what it is made of. */
function pflopHourOf(offer, usd, gpu) {
  const price = factOf(offer, "on demand", perHour(offer.on_demand_usd_per_hour));
  const peak = { ...factOf(gpu, "peak", format.rate(gpu.peak.bf16, "FLOP/s")), name: `${gpu.name} peak, bf16 dense` };
  const count = { name: "GPUs", value: offer.count * offer.accelerator_share, kind: "fact", source: offer.source, date: offer.price_date || "undated" };
  return { name: PFLOP_HOUR, value: usd, unit: "USD", kind: "derived", formula: `price an hour / (GPUs x peak) x 1 PFLOP/s`, inputs: [{ ...price, name: `price an hour of ${offer.provider} ${offer.instance}, ${offer.region}` }, count, peak] };
}

/** The options of the address, as the command has them; what the page itself takes is left out. */
function filters() {
  const query = new URLSearchParams(location.search);
  for (const key of ["list", "find", ...PAGE_STATE]) query.delete(key);
  return query;
}

/** The facts that the command lists with the same options; of a name it shows one, as it stands in the list where it does. */
async function listed(kind, query) {
  const [all, some] = await Promise.all([facts(kind), facts(kind, query)]);
  if (Array.isArray(some)) return some;
  return [all.find((row) => IDENTITY.every((key) => row[key] === some[key])) ?? some];
}

const IDENTITY = ["name", "provider", "instance", "region"];

export async function show(main) {
  const state = fromAddress(new Set());
  const query = filters();
  const kind = KINDS[state.list] ? state.list : "gpus";
  const { title, columns, plots, group, order, more } = KINDS[kind];
  const links = el("div", { class: "tabs", role: "group", "aria-label": "What is listed" }, Object.entries(KINDS).map(([key, one]) =>
    el("a", { href: `/catalog?list=${key}`, "aria-current": key === kind ? "true" : null }, one.title)));
  const status = el("p", { class: "status busy", role: "status" }, `Loading ${title} …`);
  fill(main, el("h1", {}, "Catalog"), el("nav", { "aria-label": "Kinds" }, links), status);
  let rows;
  let peaks = new Map();
  try {
    rows = [...await listed(kind, query)].sort(order);
    if (kind === "instances") peaks = new Map((await facts("gpus")).map((one) => [one.name, one]));
  } catch (problem) {
    fill(main, el("h1", {}, "Catalog"), failed(problem));
    return;
  }
  const id = fresh("find");
  let all = inAddress("all") === "true";
  const place = el("div");
  const drawn = el("div", { class: "cards" });
  const search = el("input", { type: "search", id, value: state.find ?? "", oninput: () => { oneToAddress("find", search.value); draw(); } });
  const only = query.size ? el("p", { class: "note" }, `Only those with ${[...query].map(([key, value]) => `${key.replaceAll("_", " ")} ${value}`).join(", ")}. `, el("a", { class: "noprint", href: `/catalog?list=${kind}` }, "Show all")) : null;

  function draw() {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const said = (row, text) => String(text(row, peaks));
    const found = rows.filter((row) => wanted.every((word) => columns.some(([, text]) => said(row, text).toLowerCase().includes(word))));
    const shown = all ? found : found.slice(0, FIRST);
    fill(place, found.length ? table(`${shown.length} of ${rows.length} ${title}`, columns.map(([name, text, number]) => ({ title: name, number, kind: { source: "source", GPU: "gpu" }[name] ?? null, cell: (row) => (number && said(row, text) !== "-" ? figure(name, said(row, text)) : said(row, text)) })), shown)
      : el("p", { class: "empty" }, `No entry of the ${title} contains “${search.value}”.`),
    found.length > shown.length ? el("button", { type: "button", class: "quiet", onclick: () => { all = true; oneToAddress("all", "true"); draw(); } }, `Show all ${found.length}`) : null);
    place.querySelectorAll("tbody tr").forEach((line, i) => linkOrigins(line, () => Promise.resolve(columns.filter(([, , number]) => number).map(([name, text]) => (name === PFLOP_HOUR ? pflopHour(shown[i], peaks) && pflopHourOf(shown[i], pflopHour(shown[i], peaks), peaks.get(shown[i].accelerator)) : factOf(shown[i], name, said(shown[i], text)))).filter(Boolean)), { beside: true }));
    fill(drawn, plots.map((plot) => scatter(plot, found, group, peaks)), more?.(found));
    status.classList.remove("busy");
    status.textContent = `${found.length} of ${rows.length}`;
  }
  fill(main, el("h1", {}, "Catalog"), el("nav", { "aria-label": "Kinds" }, links),
    el("div", { class: "field" }, el("label", { for: id }, `Find among ${title}`), search), only, status, drawn, el("section", { class: "card" }, place));
  draw();
}

/** The same for each accelerator, with the offer whose price it is. */
function leastTable(rows, known) {
  return table("The lowest price by accelerator", [
    { title: "accelerator", cell: (r) => r.name }, { title: PFLOP_HOUR, number: true, cell: (r) => own(PFLOP_HOUR, format.usd(r.usd), () => Promise.resolve([pflopHourOf(r.offer, r.usd, known.get(r.name))])) },
    { title: "offer", kind: "name", cell: (r) => [r.offer.instance, el("small", {}, `${r.offer.provider}, ${r.offer.region}, price of ${r.offer.price_date || "no date"}`)] },
  ], rows);
}

const DEAREST = 20; // accelerators of which a bar is drawn

/** What a PFLOP-hour costs at least on each accelerator that somebody lets. */
function cheapest(rows) {
  const place = el("section", { class: "card" }, el("h2", {}, "US dollars per PFLOP-hour"), el("p", { class: "status busy" }, "Loading offers …"));
  facts("instances").then((offers) => {
    const known = new Map(rows.map((one) => [one.name, one]));
    const least = new Map();
    for (const offer of offers) {
      const usd = pflopHour(offer, known);
      if (usd && usd < (least.get(offer.accelerator)?.usd ?? Infinity)) least.set(offer.accelerator, { name: offer.accelerator, usd, offer });
    }
    const shown = [...least.values()].sort((a, b) => a.usd - b.usd).slice(0, DEAREST).reverse();
    if (!shown.length) return place.remove();
    return fill(place, el("h2", {}, "US dollars per PFLOP-hour"),
      chart("The lowest price of a PFLOP/s of dense bf16 over an hour, on demand, by accelerator", () => ({
        tooltip: { formatter: (p) => `${p.name}: ${format.usd(p.value)}\n${shown[p.dataIndex].offer.provider} ${shown[p.dataIndex].offer.instance}, price of ${shown[p.dataIndex].offer.price_date || "no date"}` },
        grid: { left: 12, right: 24, top: 8, bottom: 24, containLabel: true },
        xAxis: { type: "value", axisLabel: { formatter: format.usd } }, yAxis: { type: "category", data: shown.map((one) => one.name), axisTick: { show: false }, axisLabel: { interval: 0, fontSize: 11 } },
        series: [{ type: "bar", data: shown.map((one) => one.usd) }],
      }), { tall: true, click: (p) => openOrigin(PFLOP_HOUR, () => Promise.resolve([pflopHourOf(shown[p.dataIndex].offer, p.value, known.get(p.name))])) }), el("p", { class: "note" }, `At its lowest on-demand price, bf16 dense at the datasheet's peak; the ${shown.length} cheapest of ${least.size}. Click a bar to see where it comes from.`),
      foldOf("cheapest", `All ${least.size}`, () => leastTable([...least.values()].sort((a, b) => a.usd - b.usd), known)));
  }, () => place.remove());
  return place;
}

const AGES = [[31, "a month"], [92, "3 months"], [183, "half a year"], [366, "a year"], [Infinity, "older"]];

/** How old the prices are. */
function ages(rows) {
  const dated = rows.map((one) => Date.parse(one.price_date?.slice(0, 10))).filter(Number.isFinite);
  if (!dated.length) return null;
  const days = dated.map((moment) => (Date.now() - moment) / 86400e3);
  const counts = AGES.map(([most], i) => days.filter((age) => age < most && age >= (AGES[i - 1]?.[0] ?? -Infinity)).length);
  return el("section", { class: "card" }, el("h2", {}, "Age of prices"),
    chart("Number of offers by the age of their price; the table has each date", () => ({
      tooltip: { formatter: (p) => `${p.name}: ${p.value} offers` },
      xAxis: { type: "category", data: AGES.map(([, name], i) => (i < AGES.length - 1 ? `up to ${name}` : name)), axisLabel: { interval: 0, width: 60, overflow: "break", lineHeight: 14, hideOverlap: false, alignMinLabel: "center", alignMaxLabel: "center" } }, yAxis: { type: "value", minInterval: 1 },
      series: [{ type: "bar", data: counts, barMaxWidth: 60 }],
    })), el("p", { class: "note" }, `${dated.length} of ${rows.length} prices have a date; half of them are older than ${format.fixed([...days].sort((a, b) => a - b)[Math.floor(days.length / 2)], 0)} days.`));
}

function scatter(plot, rows, group, peaks) {
  const by = new Map();
  for (const row of rows) {
    const [x, y] = plot.of(row, peaks);
    if (x > 0 && y > 0 && Number.isFinite(x + y)) by.set(row[group], [...(by.get(row[group]) ?? []), { name: row.name ?? `${row.provider} ${row.instance}`, value: [x, y], row }]);
  }
  if (!by.size) return null;
  return el("section", { class: "card" }, el("h2", {}, plot.title),
    chart(`${plot.y} against ${plot.x}; the table has the same figures`, () => ({
      legend: {}, tooltip: { formatter: (p) => `${p.data.name}\n${plot.textX(p.value[0])}, ${plot.textY(p.value[1])}` },
      xAxis: { type: plot.time ? "time" : "log", name: plot.x, axisLabel: { formatter: plot.textX } },
      yAxis: { type: "log", axisLabel: { formatter: plot.textY } },
      series: [...by].map(([name, data]) => ({ name, type: "scatter", data, symbolSize: 9, itemStyle: { opacity: 0.75 } })),
    }), { click: (p) => openOrigin(...explainedPoint(plot, p.data, peaks)) }), el("p", { class: "note" }, `Down: ${plot.y}; across: ${plot.x}. Click a point to see where it comes from.`));
}

/** The name of a point and what asks for its provenance. */
function explainedPoint(plot, { name, value, row }, peaks) {
  if (plot.origin) {
    const [what, made] = plot.origin(row, value[1], peaks);
    return [what, () => Promise.resolve([made])];
  }
  const ends = [factOf(row, plot.x, plot.textX(value[0])), factOf(row, plot.y, plot.textY(value[1]))];
  return [name, () => Promise.resolve([{ name, formula: "its figures", inputs: ends }])];
}
