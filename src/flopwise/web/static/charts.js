// Charts: one library, loaded with the first of them; colours of the theme; every chart has its numbers in a table beside it.

import { el } from "./dom.js";
import { seconds } from "./format.js";

let library = null;
const drawn = new Set();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Colours in order, of the theme that holds now. */
export const palette = () => Array.from({ length: 8 }, (_, index) => colour(`--hue-${index}`));

/** Load the library ahead of the first chart, while an answer is computed. */
export const prepare = () => { library ??= import("./vendor/echarts.js"); };

/** A chart; `option()` gives what the library draws, `click` is told the datum. `label` says what it shows. */
export function chart(label, option, { low = false, tall = false, click } = {}) {
  const place = el("div", { class: low ? "chart low" : tall ? "chart tall" : "chart", role: "img", "aria-label": label });
  prepare();
  library.then((echarts) => {
    let one = null;
    new ResizeObserver(() => { // tells first when the place is there and has a size
      if (one) fit(one.made);
      else if (place.clientWidth) {
        one = { place, made: null };
        setTimeout(begin); // after what is read: tables stand a frame before the pictures
      }
    }).observe(place);

    function fit(made) { // paper scales what the screen has
      if (made && !matchMedia("print").matches && (made.getWidth() !== place.clientWidth || made.getHeight() !== place.clientHeight)) made.resize();
    }

    function begin() {
      if (!place.isConnected) return;
      const made = echarts.init(place, null, { renderer: "canvas" });
      Object.assign(one, { made, draw: () => made.setOption(themed(option()), true) });
      one.draw();
      if (click) made.on("click", click);
      drawn.add(one);
      place.dataset.drawn = "true";
    }
  });
  return place;
}

/** A number at an axis: no unit at zero, no zeros behind the point. */
const brief = (value, text) => (value === 0 ? "0" : text(value).replace(/\.0+(?=\D|$)/, "").replace(/(\.\d*[1-9])0+(?=\D|$)/, "$1"));

function themed(option) {
  const axis = (one) => ({
    nameLocation: "middle", nameGap: 28, nameTextStyle: { color: colour("--soft") },
    axisLine: { lineStyle: { color: colour("--edge") } },
    splitLine: { lineStyle: { color: colour("--line") } }, ...one,
    axisLabel: { color: colour("--soft"), hideOverlap: true, padding: [0, 4], ...one.axisLabel, formatter: one.axisLabel?.formatter && ((value) => brief(value, one.axisLabel.formatter)) },
  });
  const across = (one) => ({ ...one, axisLabel: { alignMinLabel: "left", alignMaxLabel: "right", ...one.axisLabel } });
  const ends = (axes) => (Array.isArray(axes) ? axes.map(across) : axes && across(axes));
  const many = (axes) => (Array.isArray(axes) ? axes.map(axis) : axes && axis(axes));
  return {
    animation: false, color: palette(), textStyle: { color: colour("--ink"), fontFamily: "system-ui, sans-serif" },
    grid: { left: 12, right: 24, top: 30, bottom: 36, containLabel: true },
    ...option,
    tooltip: { renderMode: "richText", backgroundColor: colour("--paper"), borderColor: colour("--edge"), textStyle: { color: colour("--ink") }, confine: true, ...option.tooltip },
    legend: option.legend && { textStyle: { color: colour("--ink") }, type: "scroll", top: 0, itemWidth: 14, itemGap: 8, ...option.legend },
    xAxis: many(ends(option.xAxis)), yAxis: many(option.yAxis),
  };
}

/** Times that people count in, in seconds: what a mark of an axis may be. */
const COUNTED_S = [...[1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1].flatMap((unit) => [unit, 2 * unit, 5 * unit]), 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 43200, 86400,
  ...[86400, 864000, 8640000, 86400000].flatMap((unit) => [2 * unit, 5 * unit, 10 * unit])];
const MARKS = 6; // on one axis, at most
/** From how many times its least value on an axis is logarithmic. */
const DECADES = 30;

/** A few of `all` marks that lie between `low` and `high`, evenly in their order. */
function fewMarks(all, low, high) {
  const within = all.filter((mark) => mark >= low && mark <= high);
  const step = Math.ceil(within.length / MARKS);
  return within.filter((_, i) => (within.length - 1 - i) % step === 0);
}

/** An axis of times from zero on, or from `begin`: its marks are seconds, minutes, hours or days that people count in. */
export function timeAxis(end, begin = 0) {
  const interval = COUNTED_S.find((step) => (end - begin) / step <= MARKS - 1);
  return { type: "value", min: begin, interval, axisLabel: { formatter: (value) => (value ? seconds(value) : "0 s") } };
}

/** An axis for times of which none is zero: logarithmic where they lie far apart, with marks that people count in. */
export function timesAxis(values) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  if (most < DECADES * least) {
    const interval = COUNTED_S.find((step) => (most - (most > 2 * least ? 0 : least)) / step <= MARKS - 1);
    const begin = most > 2 * least ? 0 : Math.max(0, Math.floor(least / interval) * interval - (least % interval ? 0 : interval));
    return { ...timeAxis(most, begin), max: Math.ceil(most / interval) * interval, interval };
  }
  const [min, max] = [least / 1.3, most * 1.3];
  const marks = fewMarks(COUNTED_S, min, max);
  return { type: "log", min, max, axisTick: { customValues: marks }, splitLine: { show: false }, axisLabel: { customValues: marks, formatter: seconds, alignMinLabel: "center", alignMaxLabel: "center" } };
}

/** An axis for numbers of which none is zero: logarithmic where they lie far apart. */
export const numbersAxis = (values, text) => ({ type: Math.max(...values) > DECADES * Math.min(...values) ? "log" : "value", axisLabel: { formatter: text } });

/** Draw all charts again, in the colours that hold now; those that are gone are let go. */
export function redraw() {
  for (const one of drawn) {
    if (one.place.isConnected) one.draw();
    else {
      one.made.dispose();
      drawn.delete(one);
    }
  }
}

/** One bar of parts in the order of the table below it, whose rows name their colours; with a line where the capacity is. */
export const stack = (label, parts, text, limit = null, unit = 1) => stacks(label, [{ name: "", parts }], text, limit, unit);

/** A bar for each of `bars`, {name, parts}; parts of one name have one colour, that of their place in `partNames(bars)`. */
export function stacks(label, bars, text, limit = null, unit = 1) {
  const most = Math.max(...bars.map((bar) => bar.parts.reduce((sum, part) => sum + part.value, 0)), 1.04 * (limit?.value ?? 0));
  const several = bars.length > 1;
  return chart(label, () => ({
    grid: { left: 12, right: 24, top: limit ? 26 : 8, bottom: 8, containLabel: true },
    tooltip: { formatter: (p) => `${p.name ? `${p.name}\n` : ""}${p.seriesName}: ${text(p.value * unit)}` },
    xAxis: { type: "value", max: most / unit, axisLabel: { formatter: (value) => text(value * unit) }, splitNumber: 4 },
    yAxis: { type: "category", inverse: true, data: bars.map((bar) => bar.name), axisTick: { show: false }, axisLine: { show: false }, axisLabel: { width: 90, overflow: "break" } },
    series: partNames(bars).map((name, index) => ({
      name, type: "bar", stack: "all", data: bars.map((bar) => (bar.parts.find((part) => part.name === name)?.value ?? 0) / unit), barWidth: several ? 26 : 40,
      itemStyle: { color: palette()[index % 8], opacity: index < 8 ? 1 : 0.5, borderColor: colour("--paper"), borderWidth: 1 },
      ...(limit && index === 0
        ? { markLine: { symbol: "none", lineStyle: { color: colour("--bad"), width: 2 }, label: { formatter: limit.name, position: "start", color: colour("--ink"), align: limit.value > most / 2 ? "right" : "left", distance: [0, 4] }, data: [{ xAxis: limit.value / unit }] } }
        : {}),
    })),
  }), { low: !several });
}

/** The names of the parts of all bars, each once. */
export const partNames = (bars) => [...new Set(bars.flatMap((bar) => bar.parts.map((part) => part.name)))];
