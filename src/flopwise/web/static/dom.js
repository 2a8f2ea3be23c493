// Elements from code: text is always text, never markup.

/** An element with attributes (`on...` are listeners, `class`, `data`), and children: elements, text, lists, null. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Put `children` in place of what an element holds. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

let serial = 0;
/** An id that nothing else has. */
export const fresh = (what = "x") => `${what}-${(serial += 1)}`;

/** A table with a caption; `columns`: {title, number?, cell(row)}; `row` gives the attributes of a row. */
export function table(caption, columns, rows, row = () => ({})) {
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, columns.map((c) => el("th", { scope: "col", class: c.number && "n", "aria-sort": c.sorted }, c.title)))),
      el("tbody", {}, rows.map((one) => el("tr", row(one), columns.map((c) => el("td", { class: c.number && "n" }, c.cell(one)))))),
    ));
}

const SVG = "http://www.w3.org/2000/svg";
/** An interval as a band, with the estimate as a line in it. */
export function band(low, value, high) {
  if (low === null || high === null || !(high > low)) return null;
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 100 8");
  svg.setAttribute("class", "band");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("preserveAspectRatio", "none");
  const end = high * 1.1;
  const mark = (name, x, width) => {
    const rect = document.createElementNS(SVG, "rect");
    for (const [key, held] of Object.entries({ class: name, x, width, y: 0, height: 8 })) rect.setAttribute(key, held);
    svg.append(rect);
  };
  mark("whole", 0, 100);
  mark("span", (100 * low) / end, (100 * (high - low)) / end);
  mark("at", (100 * value) / end - 0.5, 1);
  return svg;
}

/** Figures as tiles: [name, value, note, band]. */
export function tiles(figures) {
  return el("dl", { class: "figures" }, figures.filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value, note, drawn]) => el("div", {}, el("dt", {}, name), el("dd", {}, value, drawn, note && el("small", {}, note)))));
}
