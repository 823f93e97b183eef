// @ts-check
/** Finds pages, handlers, schedules, workers and tasks by what is typed. */

import { morph, parse } from "./morph.js";

const dialog = /** @type {HTMLDialogElement | null} */ (document.getElementById("palette"));
const input = dialog?.querySelector("input") ?? null;
const list = dialog?.querySelector("ul") ?? null;
let timer = 0;
let asked = 0;

export function show() {
  if (dialog === null || dialog.open) return;
  dialog.showModal();
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
  clearTimeout(timer);
  timer = setTimeout(find, 120);
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
