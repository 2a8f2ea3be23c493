// Charts: one library, loaded with the first of them; colours of the theme; every chart has its numbers in a table beside it.

import { el } from "./dom.js";

let library = null;
const drawn = new Set();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Colours in order, of the theme that holds now. */
export const palette = () => [colour("--main"), colour("--warm"), colour("--good"), colour("--soft"), colour("--bad"), colour("--edge")];

/** A chart; `option()` gives what the library draws, `click` is told the datum. `label` says what it shows. */
export function chart(label, option, { low = false, click } = {}) {
  const place = el("div", { class: low ? "chart low" : "chart", role: "img", "aria-label": label });
  library ??= import("./vendor/echarts.js");
  library.then((echarts) => {
    let one = null;
    new ResizeObserver(() => { // tells first when the place is there and has a size
      if (one) one.made.resize();
      else if (place.clientWidth) {
        const made = echarts.init(place, null, { renderer: "canvas" });
        one = { place, made, draw: () => made.setOption(themed(option()), true) };
        one.draw();
        if (click) made.on("click", click);
        drawn.add(one);
        place.dataset.drawn = "true";
      }
    }).observe(place);
  });
  return place;
}

function themed(option) {
  const axis = (one) => ({
    nameLocation: "middle", nameGap: 28, nameTextStyle: { color: colour("--soft") },
    axisLine: { lineStyle: { color: colour("--edge") } },
    splitLine: { lineStyle: { color: colour("--line") } }, ...one, axisLabel: { color: colour("--soft"), hideOverlap: true, ...one.axisLabel },
  });
  const many = (axes) => (Array.isArray(axes) ? axes.map(axis) : axes && axis(axes));
  return {
    animation: false, color: palette(), textStyle: { color: colour("--ink"), fontFamily: "system-ui, sans-serif" },
    grid: { left: 12, right: 24, top: 30, bottom: 36, containLabel: true },
    ...option,
    tooltip: { renderMode: "richText", backgroundColor: colour("--paper"), borderColor: colour("--edge"), textStyle: { color: colour("--ink") }, confine: true, ...option.tooltip },
    legend: option.legend && { textStyle: { color: colour("--ink") }, type: "scroll", top: 0, ...option.legend },
    xAxis: many(option.xAxis), yAxis: many(option.yAxis),
  };
}

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

/** One bar of parts, with a line where the capacity is. */
export function stack(label, parts, text, limit = null) {
  const most = Math.max(parts.reduce((sum, part) => sum + part.value, 0), limit?.value ?? 0);
  return chart(label, () => ({
    legend: {}, grid: { left: 12, right: 24, top: 60, bottom: 12, containLabel: true },
    tooltip: { formatter: (p) => `${p.seriesName}: ${text(p.value)}` },
    xAxis: { type: "value", max: most * 1.04, axisLabel: { formatter: text } },
    yAxis: { type: "category", data: [""], axisTick: { show: false } },
    series: parts.map((part, index) => ({
      name: part.name, type: "bar", stack: "all", data: [part.value], barWidth: 36,
      ...(limit && index === 0
        ? { markLine: { symbol: "none", lineStyle: { color: colour("--bad"), width: 2 }, label: { formatter: limit.name, color: colour("--ink") }, data: [{ xAxis: limit.value }] } }
        : {}),
    })),
  }), { low: true });
}
