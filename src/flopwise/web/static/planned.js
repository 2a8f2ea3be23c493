// What a whole plan is drawn with: the front of cost and time, and what single changes do.

import { chart, palette, timesAxis } from "./charts.js";
import { el, table } from "./dom.js";
import * as format from "./format.js";

const AXES = { ttft: "TTFT", tpot: "TPOT" };

/** Cost against time: each ranked plan a point, the front a line; a point that is clicked is shown. */
export function front(plan, select) {
  const named = Object.keys(plan.fronts);
  const target = named[0];
  const of = (c) => (target ? c.figures[`${target}_s`] : c.seconds);
  const points = (some) => some.filter((c) => of(c) > 0 && c.cost_usd > 0).map((c) => ({ value: [of(c), c.cost_usd], row: c }));
  const line = points(target ? plan.fronts[target] : plan.front).sort((a, b) => a.value[0] - b.value[0]);
  const lower = line.filter((p, i) => line.slice(0, i).every((q) => q.value[1] > p.value[1]));
  const all = points(plan.plans);
  if (all.length + lower.length < 2) return null;
  const title = target ? `Cost against ${AXES[target] ?? target}` : "Cost against time";
  const told = (row) => `${row.num_instances} x ${row.provider} ${row.instance}\n${row.num_gpus} x ${row.gpu}\n${format.seconds(of(row))}, ${format.usd(row.cost_usd)}`;
  return el("section", { class: "card" }, el("h2", {}, title),
    chart(`${title}: ${all.length} plans and the cheapest at each time; the table of plans holds the same figures`, () => ({
      legend: {},
      tooltip: { formatter: (p) => told(p.data.row) },
      xAxis: { ...timesAxis([...all, ...lower].map((one) => one.value[0])), name: target ? AXES[target] ?? target : "time" },
      yAxis: { type: "log", axisLabel: { formatter: (v) => `$${format.count(v).replace(" ", "")}` } },
      series: [
        { name: "cheapest at each time", type: "line", data: lower, symbolSize: 7, lineStyle: { width: 2 } },
        { name: "plans", type: "scatter", data: all, symbolSize: (v, p) => (p.data.row.rank === 1 ? 16 : 9), itemStyle: { opacity: 0.75 } },
      ],
    }), { click: (p) => { if (plan.plans.includes(p.data.row)) select(p.data.row); } }));
}

/** Single changes of the best plan as a tornado of cost, with the table of all that they do. */
export function levers(plan) {
  const rows = plan.levers.filter((one) => one.cost !== null);
  if (!rows.length) return null;
  const ratio = (value) => (value === null ? "-" : `${value - 1 >= 0 ? "+" : ""}${format.fixed(100 * (value - 1), 0)} %`);
  const drawn = [...rows].sort((a, b) => Math.abs(Math.log(a.cost)) - Math.abs(Math.log(b.cost))).slice(-10);
  return el("section", { class: "card" }, el("h2", {}, "What one change would do"),
    chart("Change of the cost by each single change; the table below holds the same figures", () => ({
      tooltip: { formatter: (p) => `${p.name}: cost ${ratio(1 + p.value / 100)}` },
      grid: { left: 12, right: 30, top: 8, bottom: 30, containLabel: true },
      xAxis: { type: "value", name: "cost, %", splitNumber: 4 },
      yAxis: { type: "category", data: drawn.map((one) => one.change), axisLabel: { width: 180, overflow: "break", interval: 0, fontSize: 11, lineHeight: 12, hideOverlap: false }, axisTick: { show: false } },
      series: [{ type: "bar", data: drawn.map((one) => ({ value: 100 * (one.cost - 1), itemStyle: { color: palette()[one.cost > 1 ? 1 : 2] } })) }],
    }), { tall: true }),
    el("details", {}, el("summary", {}, `All ${plan.levers.length} changes`), table("Changes of the best plan", [
      { title: "change", cell: (one) => one.change }, { title: "memory", number: true, cell: (one) => ratio(one.memory) },
      { title: "time", number: true, cell: (one) => ratio(one.seconds) }, { title: "cost", number: true, cell: (one) => ratio(one.cost) },
      { title: "fits", cell: (one) => (one.fits ? "yes" : "no") }, { title: "note", cell: (one) => one.note || "-" },
    ], plan.levers)));
}
