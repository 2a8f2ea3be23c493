// Fields that hold options: their state is the address, so that a link shows the same view.

import { el, fresh } from "./dom.js";

/** From the last change to the question; one that still runs is stopped, so asking early costs little. */
export const PAUSE_MS = 40;

/** What the address says of a page beside its question: what is unfolded (`-name`: folded), whether all rows are listed, a filter of the instances without a plan. */
export const PAGE_STATE = ["open", "all", "among"];

/** The options of the address, by name; one that stands there several times is a list. */
export function fromAddress(lists) {
  const found = {};
  const query = new URLSearchParams(location.search);
  for (const key of new Set(query.keys())) {
    if (PAGE_STATE.includes(key)) continue;
    const all = query.getAll(key).filter((value) => value !== "");
    if (all.length) found[key] = lists.has(key) ? all : all.at(-1);
  }
  return found;
}

/** Write the options into the address, in place of those that it has. */
export function toAddress(state) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== "" && one !== undefined) query.append(key, one);
  }
  for (const key of PAGE_STATE) if (inAddress(key)) query.set(key, inAddress(key));
  write(query);
}

/** Write one option into the address, beside what it says; "" takes it out. */
export function oneToAddress(key, value) {
  const query = new URLSearchParams(location.search);
  if (value === "") query.delete(key);
  else query.set(key, value);
  write(query);
}

/** One thing that the address says; "" where it is silent. */
export const inAddress = (key) => new URLSearchParams(location.search).get(key) ?? "";

/** Something folded, or unfolded where `isOpen`, until somebody changes that, which the address keeps by `name`. */
export function fold(name, { isOpen = false, ...attributes }, summary, ...children) {
  const words = () => inAddress("open").split(" ").filter(Boolean);
  const changed = isOpen ? `-${name}` : name;
  const made = el("details", { ...attributes, open: words().includes(changed) !== isOpen }, el("summary", {}, summary), children);
  made.addEventListener("toggle", () => {
    if (made.dataset.folded !== undefined) return; // opened for paper
    const rest = words().filter((one) => one !== changed);
    oneToAddress("open", [...rest, ...(made.open === isOpen ? [] : [changed])].join(" "));
  });
  return made;
}

/** The same for what `make()` gives, once it is unfolded. */
export function foldOf(name, summary, make) {
  const place = el("div");
  const made = fold(name, { ontoggle: () => { if (made.open && !place.children.length) place.append(make()); } }, summary, place);
  return made;
}

function write(query) {
  const text = query.toString();
  const address = location.pathname + (text ? `?${text}` : "") + location.hash;
  if (address !== location.pathname + location.search + location.hash) history.replaceState(null, "", address); // asks the browser's own process: slow
}

function labelled(field, id, ...content) {
  return el("div", { class: "field" }, el("label", { for: id }, field.label), content, field.hint && el("small", { id: `${id}-hint` }, field.hint));
}

/** A field: text (with a slider where it has `range`), choice, check, or list of text. `change(key, value)` tells. */
export function input(field, state, change) {
  const id = fresh(field.key);
  const value = state[field.key];
  const described = field.hint ? `${id}-hint` : null;
  if (field.choices) {
    const select = el("select", { id, name: field.key, "aria-describedby": described, onchange: () => change(field.key, select.value) },
      field.choices.map(([key, text]) => el("option", { value: key, selected: String(value ?? "") === key }, text)));
    return labelled(field, id, select);
  }
  if (field.check) {
    const on = value === undefined ? field.check === "on" : value === "true";
    const box = el("input", { type: "checkbox", id, name: field.key, checked: on, onchange: () => change(field.key, String(box.checked)) });
    return el("div", { class: "field" }, el("label", { class: "check", for: id }, box, field.label), field.hint && el("small", { id: `${id}-hint` }, field.hint));
  }
  const shown = Array.isArray(value) ? value.join(", ") : value ?? "";
  const entered = () => (field.list ? text.value.split(",").map((one) => one.trim()).filter(Boolean) : text.value.trim());
  const list = field.suggestions ? `${id}-list` : null;
  const text = el("input", {
    type: "text", id, name: field.key, value: shown, placeholder: field.placeholder ?? "", list, autocomplete: "off", spellcheck: "false",
    "aria-describedby": described, oninput: () => { place(); change(field.key, entered()); }, onfocus: () => suggest(),
  });
  const suggestions = el("datalist", { id: list ?? "" });
  const suggest = () => { // asked when somebody is about to type: the question itself comes first
    if (field.suggestions && !suggestions.children.length) field.suggestions().then((names) => suggestions.replaceChildren(...names.map((name) => el("option", { value: name }))), () => {});
  };
  let slider = null;
  const { low, high, write } = field.range ?? {};
  const place = () => {
    const number = slider && field.range.read(text.value);
    slider?.classList.toggle("unset", !(number > 0));
    if (number > 0) slider.value = String(Math.round(1000 * Math.log(number / low) / Math.log(high / low)));
  };
  if (field.range) {
    slider = el("input", {
      type: "range", min: "0", max: "1000", step: "1", "aria-label": `${field.label}, by slider`,
      oninput: () => {
        text.value = write(low * (high / low) ** (Number(slider.value) / 1000));
        slider.setAttribute("aria-valuetext", text.value);
        slider.classList.remove("unset");
        change(field.key, entered());
      },
    });
    place();
  }
  return labelled(field, id, text, slider, list && suggestions);
}

const short = (value) => String(Number(value.toPrecision(2)));
const SUFFIX = { k: 1e3, M: 1e6, B: 1e9, T: 1e12 };
const UNITS = { ms: 1e-3, s: 1, min: 60, h: 3600, d: 86400, day: 86400, days: 86400 };

/** Counts with suffixes: 20M. */
export const counts = (low, high) => ({
  low, high,
  write: (value) => {
    const [suffix, size] = Object.entries(SUFFIX).reverse().find(([, one]) => value >= one * 0.9999) ?? ["", 1];
    return short(value / size) + suffix;
  },
  read: (text) => {
    const found = /^\$?\s*([\d.]+)\s*([kMBT]?)$/.exec(text.trim());
    return found ? Number(found[1]) * (SUFFIX[found[2]] ?? 1) : NaN;
  },
});

/** Times with units: 500ms, 30d. */
export const times = (low, high) => ({
  low, high,
  write: (value) => {
    const [unit, size] = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1], ["ms", 1e-3]].find(([, one]) => value >= one * 0.9999) ?? ["ms", 1e-3];
    return short(value / size) + unit;
  },
  read: (text) => {
    const found = /^(?:p\d+=)?([\d.]+)\s*([a-z]+)$/.exec(text.trim());
    return found && UNITS[found[2]] ? Number(found[1]) * UNITS[found[2]] : NaN;
  },
});

/** The field of an option, from its declaration; `label` instead of its key. */
export function declared(key, schema, label = key.replaceAll("_", " ")) {
  const field = { key, label, hint: schema.description, list: schema.type === "array", placeholder: schema["x-takes"] ?? "" };
  const names = schema.enum ?? schema.items?.enum;
  if (schema.type === "boolean") field.choices = [["", schema.default ? "yes, as usual" : "as usual"], ["true", "yes"], ["false", "no"]];
  else if (names && !field.list) field.choices = [["", "as usual"], ...names.map((name) => [name, name])];
  return field;
}

/** Every other option of a noun, from its declaration, with a field to search them. */
export function others(schemas, without, state, change) {
  const fields = Object.entries(schemas).filter(([key]) => !without.has(key) && key !== "files")
    .map(([key, schema]) => ({ text: `${key} ${schema.description}`.toLowerCase(), element: input(declared(key, schema), state, change), isSet: key in state }));
  const id = fresh("find");
  const search = el("input", {
    type: "search", id, oninput: () => {
      const wanted = search.value.trim().toLowerCase();
      for (const one of fields) one.element.hidden = Boolean(wanted) && !one.text.includes(wanted);
    },
  });
  return fold("options", { isOpen: fields.some((one) => one.isSet) }, `All options (${fields.length})`,
    el("div", { class: "field" }, el("label", { for: id }, "Find an option"), search), fields.map((one) => one.element));
}

/** The words of a printed command line as a question: what the line asks, by the same names. */
export function questionOf(line) {
  const words = [...line.matchAll(/'((?:[^'])*)'|"((?:[^"])*)"|(\S+)/g)].map((m) => m[1] ?? m[2] ?? m[3]);
  const [, noun, ...rest] = words;
  const question = {};
  for (let i = 0; i < rest.length; i += 1) {
    const word = rest[i];
    if (!word.startsWith("--")) {
      question.model = word;
      continue;
    }
    const key = word.slice(2).replaceAll("-", "_");
    const flag = i + 1 >= rest.length || rest[i + 1].startsWith("--");
    const value = flag ? true : rest[(i += 1)];
    question[key] = key in question ? [question[key], value].flat() : value;
  }
  return { noun, question };
}
