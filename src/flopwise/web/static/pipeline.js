// The schedule of a pipeline: which stage works on which micro-batch when, as 1F1B orders them.

import { chart, palette, timeAxis } from "./charts.js";
import { el, table } from "./dom.js";
import { fold } from "./form.js";
import * as format from "./format.js";
import { derivedFrom, figure, own } from "./origins.js";

const MOST = 12; // micro-batches that are drawn: more are alike

/**
 * Passes of `stages` over `count` micro-batches in the order of 1F1B: {stage, batch, back, start, end}.
 * Stage s runs stages - 1 - s forward passes ahead, then one forward and one backward in turn, then the rest backward
 * (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1). Each waits for the stage before it, or behind it.
 */
export function passes(stages, count, forward, backward) {
  const orders = Array.from({ length: stages }, (_, stage) => {
    const ahead = Math.min(stages - 1 - stage, count);
    const order = Array.from({ length: ahead }, (_, batch) => [batch, false]);
    for (let batch = ahead; batch < count; batch += 1) order.push([batch, false], [batch - ahead, true]);
    for (let batch = count - ahead; batch < count; batch += 1) order.push([batch, true]);
    return order;
  });
  const ends = new Map();
  const free = new Array(stages).fill(0);
  const next = new Array(stages).fill(0);
  const found = [];
  for (let moved = true; moved;) {
    moved = false;
    for (let stage = 0; stage < stages; stage += 1) {
      for (; next[stage] < orders[stage].length; next[stage] += 1) {
        const [batch, back] = orders[stage][next[stage]];
        const awaited = back ? (stage === stages - 1 ? `${stage} ${batch} false` : `${stage + 1} ${batch} true`) : stage ? `${stage - 1} ${batch} false` : null;
        if (awaited !== null && !ends.has(awaited)) break;
        const start = Math.max(free[stage], awaited === null ? 0 : ends.get(awaited));
        const end = start + (back ? backward : forward);
        free[stage] = end;
        ends.set(`${stage} ${batch} ${back}`, end);
        found.push({ stage, batch, back, start, end });
        moved = true;
      }
    }
  }
  return found;
}

/** The schedule of a layout with pipeline stages as a chart; nothing without. `found`: the document of `train`; `origins` asks for its provenance. */
export function schedule(found, origins) {
  const { pp, dp, micro_batch: size, interleave, schedule: name } = found.layout;
  if (!(pp > 1)) return null;
  const count = Math.max(1, Math.round(found.global_batch / (dp * size)));
  const drawn = Math.min(count, Math.max(MOST, pp));
  const seconds = Object.fromEntries(found.breakdown.map((part) => [part.name, part.seconds]));
  const forward = seconds.forward / count;
  const backward = (seconds.backward + (seconds.recompute ?? 0)) / count;
  const all = passes(pp, drawn, forward, backward);
  const whole = Math.max(...all.map((pass) => pass.end));
  const waiting = seconds.pipeline_bubble;
  const step = found.breakdown.reduce((sum, part) => sum + part.seconds, 0);
  const [ahead, behind] = palette();
  const notes = [
    interleave > 1 ? `Drawn without its ${interleave} chunks of layers a stage.` : "",
    name !== "1f1b" ? `Drawn as 1F1B; ${name} fills part of what is idle here.` : "",
  ];
  const moment = (word, stage, value) => {
    const name = `${word} of stage ${stage}`;
    return own(name, value, () => derivedFrom(origins, { name, value, formula: `passes of ${drawn} micro-batches in the order of 1F1B, each once its input is there: ${format.seconds(forward)} forward, ${format.seconds(backward)} backward (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1)`, of: "forward" }));
  };
  const idle = ["A stage is idle for ", figure("pipeline bubble", waiting ? format.seconds(waiting) : "0 s"), ` of a step, ${format.percent(waiting / step)} of it. `];
  return el("section", { class: "card" }, el("h2", {}, `Pipeline of ${pp} stages`),
    chart(`Forward and backward passes of each stage over time; the table shows when each stage works`, () => ({
      tooltip: { formatter: ({ data }) => `stage ${data.value[0]}, micro-batch ${data.value[3]}, ${data.value[4] ? "backward" : "forward"}\n${format.seconds(data.value[1])} to ${format.seconds(data.value[2])}` },
      xAxis: { ...timeAxis(whole), max: whole },
      yAxis: { type: "category", inverse: true, data: Array.from({ length: pp }, (_, stage) => `stage ${stage}`) },
      series: [{
        type: "custom", encode: { x: [1, 2], y: 0 },
        data: all.map((pass) => ({ value: [pass.stage, pass.start, pass.end, pass.batch, pass.back ? 1 : 0] })),
        renderItem: (_, api) => {
          const [left, middle] = api.coord([api.value(1), api.value(0)]);
          const [right] = api.coord([api.value(2), api.value(0)]);
          const height = api.size([0, 1])[1] * 0.7;
          return { type: "rect", shape: { x: left, y: middle - height / 2, width: Math.max(right - left - 1, 1), height }, style: { fill: api.value(4) ? behind : ahead } };
        },
      }],
    })),
    el("p", { class: "note" }, el("i", { class: "swatch s0", "aria-hidden": "true" }), "forward ", el("i", { class: "swatch s1", "aria-hidden": "true" }), "backward. ", drawn < count ? `The first ${drawn} of ${format.fixed(count, 0)} micro-batches of a step; the others are alike. ` : `${format.fixed(count, 0)} micro-batches of a step. `, idle, notes.filter(Boolean).join(" ")),
    fold("stages", {}, "When each stage works", table("Stages", [
      { title: "stage", cell: (stage) => stage }, { title: "begins", number: true, cell: (stage) => moment("begin", stage, start(all, stage)) },
      { title: "ends", number: true, cell: (stage) => moment("end", stage, format.seconds(Math.max(...all.filter((pass) => pass.stage === stage).map((pass) => pass.end)))) },
    ], Array.from({ length: pp }, (_, stage) => stage))));
}

function start(all, stage) {
  const first = Math.min(...all.filter((pass) => pass.stage === stage).map((pass) => pass.start));
  return first ? format.seconds(first) : "0 s";
}
