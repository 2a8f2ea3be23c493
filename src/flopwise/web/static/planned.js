// What a whole plan is drawn with: the front of cost and time, and what single changes do.

import { chart, numbersAxis, palette, timesAxis } from "./charts.js";
import { el, table } from "./dom.js";
import { fold, foldOf } from "./form.js";
import * as format from "./format.js";
import { figure, linkOrigins, openOrigin, own } from "./origins.js";

const AXES = { ttft: "TTFT", tpot: "TPOT" };
const MOST_BARS = 10;
const SMALL = 0.005; // changes of the cost that no bar shows

const SAME = ["provider", "region", "instance", "purchase", "num_instances", "cost_usd", "seconds"];
const same = (a, b) => SAME.every((key) => a[key] === b[key]) && format.layout(a.layout) === format.layout(b.layout);
const targetOf = (plan) => Object.keys(plan.fronts)[0];

/** What stands across of a front: the latency of its target, or the time. */
const timeOf = (plan, row) => (targetOf(plan) ? row.figures[`${targetOf(plan)}_s`] : row.seconds);
const isDrawn = (plan) => (row) => timeOf(plan, row) > 0 && row.cost_usd > 0;

/** The cheapest row at each time, the quickest first; one that is ranked is that of the ranking. */
export function frontRows(plan) {
  const line = (targetOf(plan) ? plan.fronts[targetOf(plan)] : plan.front).filter(isDrawn(plan)).sort((a, b) => timeOf(plan, a) - timeOf(plan, b));
  return line.filter((one, i) => line.slice(0, i).every((quicker) => quicker.cost_usd > one.cost_usd)).map((one) => plan.plans.find((ranked) => same(ranked, one)) ?? one);
}

/** The plans, or the nearest misses. */
export const rowsOf = (plan) => (plan.plans.length ? plan.plans : plan.misses);
const ON_FRONT = "front-";
/** What a row is called in the address: its rank, or its place on the front. */
const keyOf = (plan, row) => (rowsOf(plan).includes(row) ? String(row.rank) : `${ON_FRONT}${frontRows(plan).indexOf(row) + 1}`);
export const rowOf = (plan, key) => (key.startsWith(ON_FRONT) ? frontRows(plan)[Number(key.slice(ON_FRONT.length)) - 1] : rowsOf(plan).find((row) => String(row.rank) === key));

/**
 * Cost against time: each ranked plan a point, the front a line; a point that is clicked is shown: `select(key)`.
 * `origins(row)` asks for the provenance of a row, in which its time is called `takes`.
 */
export function front(plan, select, { origins, takes }) {
  const target = targetOf(plan);
  const points = (rows) => rows.map((row) => ({ value: [timeOf(plan, row), row.cost_usd], row, key: keyOf(plan, row) })); // the library gives copies back
  const lower = points(frontRows(plan));
  const all = points(plan.plans.filter(isDrawn(plan)));
  if (all.length + lower.length < 2) return null;
  const title = target ? `Cost against ${AXES[target] ?? target}` : "Cost against time";
  const words = (row) => `${row.num_instances} x ${row.provider} ${row.instance}\n${row.num_gpus} x ${row.gpu}\n${format.seconds(timeOf(plan, row))}, ${format.usd(row.cost_usd)}`;
  return el("section", { class: "card" }, el("h2", {}, title),
    chart(`${title}: ${all.length} plans and the cheapest at each time; the table of plans has the same figures`, () => ({
      legend: {},
      tooltip: { formatter: (p) => words(p.data.row) },
      xAxis: { ...timesAxis([...all, ...lower].map((one) => one.value[0])), name: target ? AXES[target] ?? target : "time" },
      yAxis: numbersAxis([...all, ...lower].map((one) => one.value[1]), format.briefUsd),
      series: [
        { name: "cheapest at each time", type: "line", data: lower, symbolSize: 7, lineStyle: { width: 2 } },
        { name: "plans", type: "scatter", data: all, symbolSize: (v, p) => (p.data.row.rank === 1 ? 16 : 9), itemStyle: { opacity: 0.75 } },
      ],
    }), { click: (p) => select(p.data.key) }),
    lower.length ? foldOf("front", `${lower.length} on the line`, () => table("The cheapest at each time", [
      { title: target ? AXES[target] ?? target : "time", number: true, cell: (p) => own(AXES[target] ? `${AXES[target]} of the plan` : takes, format.seconds(p.value[0]), origins(p.row)) }, { title: "cost", number: true, cell: (p) => own("cost of the plan", format.usd(p.value[1]), origins(p.row)) },
      { title: "machines", kind: "name", cell: (p) => [`${p.row.num_instances} x ${p.row.instance}`, el("small", {}, `${p.row.provider}: ${p.row.num_gpus} x ${p.row.gpu}`)] },
      { title: el("span", { class: "unseen" }, "show"), cell: (p) => el("button", { type: "button", class: "quiet noprint", "aria-label": `Show ${p.row.num_instances} x ${p.row.provider} ${p.row.instance}`, onclick: () => select(p.key) }, "Show") },
    ], lower)) : null);
}

/** Single changes of the best plan as a tornado of cost, with the table of all that they do; `origins` asks for where it comes from. */
export function levers(plan, origins) {
  if (!plan.levers.length) return null;
  const ratio = (value) => (value === null ? "-" : `${value - 1 >= 0 ? "+" : ""}${format.fixed(100 * (value - 1), 0)} %`);
  const size = (one) => Math.abs(Math.log(one.cost));
  const drawn = plan.levers.filter((one) => one.cost !== null && size(one) > SMALL).sort((a, b) => size(a) - size(b)).slice(-MOST_BARS);
  const effect = (title, key) => ({ title, number: true, cell: (one) => (one[key] === null ? "-" : figure(`${title}, ${one.change}`, ratio(one[key]))) });
  const made = el("section", { class: "card" }, el("h2", {}, "What one change would do"),
    drawn.length > 0 && chart("Change of the cost by each single change; the table below has the same figures", () => ({
      tooltip: { formatter: (p) => `${p.name}: cost ${ratio(1 + p.value / 100)}` },
      grid: { left: 12, right: 30, top: 8, bottom: 30, containLabel: true },
      xAxis: { type: "value", name: "cost, %", splitNumber: 3 },
      yAxis: { type: "category", data: drawn.map((one) => one.change), axisLabel: { width: 180, overflow: "break", interval: 0, fontSize: 11, lineHeight: 12, hideOverlap: false }, axisTick: { show: false } },
      series: [{ type: "bar", data: drawn.map((one) => ({ value: 100 * (one.cost - 1), itemStyle: { color: palette()[one.cost > 1 ? 1 : 2] } })) }],
    }), { tall: drawn.length > 5, click: (p) => openOrigin(`cost, ${p.name}`, origins) }),
    el("p", { class: "note" }, drawn.length ? "Changes that leave the cost as it is are in the table alone." : "None of them changes the cost."),
    fold("changes", {}, `All ${plan.levers.length} changes`, table("Changes of the best plan", [
      { title: "change", cell: (one) => one.change }, effect("memory", "memory"), effect("time", "seconds"), effect("cost", "cost"),
      { title: "fits", cell: (one) => (one.fits ? "yes" : "no") }, { title: "note", cell: (one) => one.note || "-" },
    ], plan.levers)));
  linkOrigins(made, origins);
  return made;
}
