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

/** A status line: `busy(text, fraction)` shows that work goes on, with a button that calls `stop`; `quiet(text)` that it ended. */
export function statusLine() {
  const line = el("p", { class: "status", role: "status", "aria-live": "polite" });
  const bar = el("progress", { max: "1", "aria-label": "Progress" });
  const busy = (text, fraction = null, stop = null) => {
    line.classList.add("busy");
    if (fraction !== null) bar.value = fraction;
    fill(line, el("span", {}, text), fraction === null ? null : bar, stop && el("button", { type: "button", class: "quiet", onclick: stop }, "Stop"));
  };
  const quiet = (text) => {
    line.classList.remove("busy");
    line.textContent = text;
  };
  return { line, busy, quiet };
}

/** A place that files are dropped on, or chosen for: `take(text)` gets the text of the first. `label`: of the button that chooses. */
export function dropZone(words, { accept, label, note = null }, take) {
  const open = (file) => file?.text().then(take);
  const picker = el("input", { type: "file", accept, class: "noprint", "aria-label": label, onchange: () => open(picker.files[0]) });
  const zone = el("div", {
    class: "drop field", ondragover: (event) => { event.preventDefault(); zone.classList.add("over"); }, ondragleave: () => zone.classList.remove("over"),
    ondrop: (event) => { event.preventDefault(); zone.classList.remove("over"); open(event.dataTransfer.files[0]); },
  }, words, " ", picker, note && el("p", { class: "note" }, note));
  return zone;
}

/** Have the browser keep a file. */
export function download(blob, name) {
  const url = URL.createObjectURL(blob);
  el("a", { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}

/** On a narrow screen, at its lower edge while the form above it is filled in: leads to the answer below. */
export const jump = (answer) => el("button", { type: "button", class: "jump", onclick: () => { answer.scrollIntoView({ block: "start" }); answer.focus({ preventScroll: true }); } }, "To the answer");

/** What stands where an answer will be: its outline. */
export const skeleton = () => el("div", { class: "skeleton", "aria-hidden": "true" },
  el("div", { class: "card" }, el("i", { class: "long" }), el("div", { class: "row" }, [1, 2, 3, 4].map(() => el("b", {})))),
  el("div", { class: "card" }, [1, 2, 3, 4, 5, 6].map(() => el("i", {}))));

/** Resolves once what was changed is on the screen. */
export const painted = () => new Promise((done) => {
  if (document.hidden) return setTimeout(done);
  return requestAnimationFrame(() => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = done;
    port2.postMessage(null);
  });
});

let serial = 0;
/** An id that nothing else has. */
export const fresh = (what = "x") => `${what}-${(serial += 1)}`;

const classes = (column) => [column.number ? "n" : column.kind, column.minor && "minor"].filter(Boolean).join(" ") || null;

/** A table with a caption; `columns`: {title, number?, minor?, cell(row)}, minor ones not on narrow screens; `row` gives the attributes of a row. */
export function table(caption, columns, rows, row = () => ({})) {
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, columns.map((c) => el("th", { scope: "col", class: classes(c), "aria-sort": c.sorted }, c.title)))),
      el("tbody", {}, rows.map((one) => el("tr", row(one), columns.map((c) => el("td", { class: classes(c) }, c.cell(one)))))),
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
    for (const [key, value] of Object.entries({ class: name, x, width, y: 0, height: 8 })) rect.setAttribute(key, value);
    svg.append(rect);
  };
  mark("whole", 0, 100);
  mark("span", (100 * low) / end, (100 * (high - low)) / end);
  mark("at", (100 * value) / end - 0.5, 1);
  return svg;
}

/** Figures as tiles: [name, value, note, band, the name of its provenance]. */
export function tiles(figures) {
  return el("dl", { class: "figures" }, figures.filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value, note, drawn, origin]) => el("div", {}, el("dt", {}, name), el("dd", {}, el("span", { "data-origin": origin }, value), drawn, note && el("small", {}, note)))));
}

/** How a problem is shown: its title, its message, and what to do. `isDrawn`: the answer that says no stands below it, with its verdict. */
export function failed(problem, isDrawn = false) {
  const details = problem.details ?? { title: "a defect of the page", detail: problem.message };
  const hint = { 0: "Start it again and reload.", 401: "Open the link that flopwise web printed: it contains the token.", 503: "Try again in a moment." }[details.status];
  return el("div", { class: details.type?.endsWith(":infeasible") ? "infeasible" : "error", role: "alert" }, el("h2", {}, details.title[0].toUpperCase() + details.title.slice(1)),
    isDrawn && details.document?.verdict ? null : el("p", {}, details.document?.verdict ?? details.detail), hint && el("p", {}, hint), details.reasons?.length ? el("ul", {}, details.reasons.map((r) => el("li", {}, r))) : null);
}

/** Fields of what a message calls unknown. */
const NAMED = { model: ["model", "workload"], accelerator: ["gpu"], provider: ["provider"], instance: ["instance"] };

/** Mark the fields whose options a message names (`--rate: ...`), and no others. */
export function markInvalid(form, message = "") {
  for (const one of form.querySelectorAll("[aria-invalid]")) one.removeAttribute("aria-invalid");
  const names = [...message.matchAll(/--([a-z][a-z-]*)/g)].map(([, name]) => name.replaceAll("-", "_"));
  names.push(...NAMED[/^unknown (\w+)/.exec(message)?.[1]] ?? []);
  for (const name of names) form.elements[name]?.setAttribute?.("aria-invalid", "true");
}
