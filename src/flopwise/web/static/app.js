// The shell: pages by their paths, the theme, the token of a printed link.

import { facts, keepToken } from "./api.js";
import { redraw } from "./charts.js";
import { PAGE_STATE } from "./form.js";

const THEMES = ["system", "light", "dark"];

keepToken();
addEventListener("hashchange", () => { keepToken(); location.reload(); }); // another link: what stands behind its # is read as a page is opened

if (/^\/(plan|estimate|serve|fleet)/.test(location.pathname)) facts("openapi.json").catch(() => {}); // which options there are: asked beside the modules

const main = document.getElementById("main");
document.querySelector(".skip").addEventListener("click", (event) => { // what the link holds behind its # stays
  event.preventDefault();
  main.focus();
});
const name = location.pathname.slice(1) || "plan";
const theme = document.getElementById("theme");

function applyTheme(chosen) {
  document.documentElement.toggleAttribute("data-theme", chosen !== "system");
  if (chosen !== "system") document.documentElement.dataset.theme = chosen;
  theme.textContent = `Theme: ${chosen}`;
  redraw();
}
let chosen = THEMES.includes(localStorage.getItem("flopwise-theme")) ? localStorage.getItem("flopwise-theme") : "system";
theme.addEventListener("click", () => {
  chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
  localStorage.setItem("flopwise-theme", chosen);
  applyTheme(chosen);
});
applyTheme(chosen);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("beforeprint", () => { // paper is light, and says what was asked
  document.documentElement.dataset.theme = "light";
  redraw();
  for (const one of main.querySelectorAll("details:not([open]):not(.noprint)")) { // paper cannot be opened
    if (!one.querySelector("table") || one.closest("form")) continue;
    one.dataset.folded = "";
    one.open = true;
  }
  const options = [...new URLSearchParams(location.search)].filter(([key]) => !PAGE_STATE.includes(key)).map(([key, value]) => `${key.replaceAll("_", " ")} ${value}`);
  main.dataset.question = `flopwise, ${[here.textContent, ...options].join(", ")}`;
});
addEventListener("afterprint", () => {
  for (const one of main.querySelectorAll("details[data-folded]")) {
    delete one.dataset.folded;
    one.open = false;
  }
  applyTheme(chosen);
});

const here = document.querySelector(`#pages a[href="/${name}"]`);
here.setAttribute("aria-current", "page");
document.title = `${here.textContent} · flopwise`;
const page = await import(`./${name}.js`);
page.show(main);
