// @ts-check
/** Dialogs, the palette and keys. One file: each costs a request, and the first load shall need few. */

import { morph, parse } from "./morph.js";
import { tickRow, walk } from "./rows.js";

// ---- dialogs: the focus returns to what opened them ----

/** @param {string} id */
function open(id) {
  const dialog = document.getElementById(id);
  if (dialog instanceof HTMLDialogElement && !dialog.open) dialog.showModal();
}

document.addEventListener("click", (event) => {
  if (!(event.target instanceof Element)) return;
  const opener = event.target.closest("[data-open]");
  if (opener instanceof HTMLElement) {
    fill(opener);
    open(opener.dataset.open ?? "");
  }
  const closer = event.target.closest("[data-close]");
  if (closer !== null) closer.closest("dialog")?.close();
  if (event.target instanceof HTMLDialogElement && outside(event, event.target)) event.target.close();
});

/**
 * A button may fill fields of the dialog that it opens: data-fill-NAME="value".
 * @param {HTMLElement} opener
 */
function fill(opener) {
  const dialog = document.getElementById(opener.dataset.open ?? "");
  for (const { name, value } of [...opener.attributes]) {
    if (!name.startsWith("data-fill-") || dialog === null) continue;
    const wanted = name.slice("data-fill-".length);
    for (const field of dialog.querySelectorAll(`[name="${CSS.escape(wanted)}"], [data-show="${CSS.escape(wanted)}"]`)) {
      if (field instanceof HTMLInputElement || field instanceof HTMLTextAreaElement || field instanceof HTMLSelectElement) field.value = value;
      else field.textContent = value;
    }
  }
}

/**
 * @param {MouseEvent} event
 * @param {Element} dialog
 */
function outside(event, dialog) {
  const box = dialog.getBoundingClientRect();
  return event.clientX < box.left || event.clientX > box.right || event.clientY < box.top || event.clientY > box.bottom;
}

// ---- menus: a click elsewhere and Escape close them ----

/** @param {EventTarget | null} kept */
function fold(kept) {
  for (const menu of document.querySelectorAll("header details[open]")) {
    if (!(kept instanceof Node && menu.contains(kept))) menu.removeAttribute("open");
  }
}

document.addEventListener("click", (event) => fold(event.target));
document.addEventListener("keydown", (event) => {
  const menu = event.key === "Escape" && document.activeElement?.closest("header details[open]");
  if (event.key === "Escape") fold(null);
  if (menu) menu.querySelector("summary")?.focus();
});

// ---- the palette: finds pages, handlers, schedules, workers and tasks by what is typed ----

const palette = /** @type {HTMLDialogElement | null} */ (document.getElementById("palette"));
const input = palette?.querySelector("input") ?? null;
const list = palette?.querySelector("ul") ?? null;
let finding = 0;
let asked = 0;

function show() {
  if (palette === null || palette.open) return;
  palette.showModal();
  input?.select();
  void find();
}

async function find() {
  if (input === null || list === null) return;
  const mine = ++asked;
  const response = await fetch(`${document.body.dataset.start}/find?q=${encodeURIComponent(input.value)}`, {
    headers: { "duetime-parts": "none" },
  }).catch(() => null);
  if (response === null || response.status !== 200 || mine !== asked) return;
  const found = parse(await response.text())[0]?.querySelector("ul");
  if (found) morph(list, found);
  choose(0);
}

/** @param {number} index */
function choose(index) {
  const links = [...(list?.querySelectorAll("a") ?? [])];
  links.forEach((link, number) => link.setAttribute("aria-selected", String(number === index)));
  links[index]?.scrollIntoView({ block: "nearest" });
}

input?.addEventListener("input", () => {
  clearTimeout(finding);
  finding = setTimeout(find, 120);
});
input?.addEventListener("keydown", (event) => {
  const links = [...(list?.querySelectorAll("a") ?? [])];
  const here = links.findIndex((link) => link.getAttribute("aria-selected") === "true");
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    choose(Math.max(0, Math.min(links.length - 1, here + (event.key === "ArrowDown" ? 1 : -1))));
  } else if (event.key === "Enter" && links[here]) {
    event.preventDefault();
    links[here].click();
  }
});
document.addEventListener("click", (event) => {
  if (event.target instanceof Element && event.target.closest("[data-open=palette]") !== null) void find();
});
for (const button of document.querySelectorAll("[data-open=palette]")) /** @type {HTMLElement} */ (button).hidden = false;

// ---- charts: what a step had, by pointer and by arrow keys ----

/** @type {{ chart: SVGSVGElement, step: number } | null} */
let reading = null;

/**
 * Show the values of a step beside the pointer.
 * @param {SVGSVGElement} chart
 * @param {number} step
 */
function read(chart, step) {
  const times = (chart.dataset.times ?? "").split("|");
  const [left, right] = (chart.dataset.span ?? "0 1").split(" ").map(Number);
  const at = Math.max(0, Math.min(times.length - 1, step));
  const lines = (chart.dataset.lines ?? "").split(";").map((line) => line.split("|"));
  const x = left + ((right - left) * at) / Math.max(1, times.length - 1);
  const mark = chart.querySelector(".reading") ?? chart.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "line"));
  for (const [name, value] of Object.entries({ class: "reading", x1: x, x2: x, y1: 6, y2: 168 })) mark.setAttribute(name, String(value));
  let words = chart.parentElement?.querySelector("output");
  if (!words) {
    words = document.createElement("output");
    chart.after(words);
  }
  words.textContent = `${times[at]}  ${lines.map(([name, ...values]) => `${name} ${values[at]}`).join(", ")}`;
  reading = { chart, step: at };
}

function readNothing() {
  reading?.chart.querySelector(".reading")?.remove();
  reading?.chart.parentElement?.querySelector("output")?.remove();
  reading = null;
}

document.addEventListener("pointermove", (event) => {
  const chart = event.target instanceof Element ? event.target.closest("svg.chart") : null;
  if (!(chart instanceof SVGSVGElement)) {
    if (reading !== null && document.activeElement !== reading.chart) readNothing();
    return;
  }
  if (reading !== null && reading.chart !== chart) readNothing();
  const box = chart.getBoundingClientRect();
  const [left, right] = (chart.dataset.span ?? "0 1").split(" ").map(Number);
  const share = (((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width - left) / (right - left);
  read(chart, Math.round(share * ((chart.dataset.times ?? "").split("|").length - 1)));
});
document.addEventListener("focusout", (event) => {
  if (reading !== null && event.target === reading.chart) readNothing();
});
document.addEventListener("keydown", (event) => {
  const chart = document.activeElement;
  if (!(chart instanceof SVGSVGElement) || !chart.matches(".chart") || (event.key !== "ArrowLeft" && event.key !== "ArrowRight")) return;
  event.preventDefault();
  const last = (chart.dataset.times ?? "").split("|").length - 1;
  read(chart, reading?.chart === chart ? reading.step + (event.key === "ArrowRight" ? 1 : -1) : last);
});

// ---- keys: the single letters can be switched off in the settings ----

let afterG = false;

/** @type {Record<string, () => void>} */
const KEYS = {
  "/": () => /** @type {HTMLElement | null} */ (document.querySelector("[data-search]"))?.focus(),
  "?": () => open("help"),
  j: () => walk(1),
  k: () => walk(-1),
  x: tickRow,
  l: () => document.dispatchEvent(new CustomEvent("duetime:toggle")),
  c: () => press("c"),
  r: () => press("r"),
  e: () => press("e"),
  p: () => press("p"),
};

/**
 * Press the page's button for a key, or that of the selection.
 * @param {string} key
 */
function press(key) {
  const verb = { c: "cancel", r: "retry" }[key];
  const button = document.querySelector(`[data-key-action="${key}"]`) ?? (verb && document.querySelector(`.selection.some [value="${verb}"]`));
  if (button instanceof HTMLElement) button.click();
}

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    show();
    return;
  }
  const typing = event.target instanceof Element && event.target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]") !== null;
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.body.dataset.keys === "off") return;
  if (document.querySelector("dialog[open]") !== null) return;
  if (afterG) {
    afterG = false;
    const link = document.querySelector(`.menus [data-letter="${CSS.escape(event.key)}"]`);
    if (link instanceof HTMLAnchorElement) {
      event.preventDefault();
      link.click();
    }
    return;
  }
  if (event.key === "g") {
    afterG = true;
    setTimeout(() => (afterG = false), 1500);
    return;
  }
  const act = KEYS[event.key];
  if (act !== undefined) {
    event.preventDefault();
    act();
  }
});
