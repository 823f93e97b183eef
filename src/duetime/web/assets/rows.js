// @ts-check
/** Lists: selecting rows, walking them by keys, and new rows that wait while somebody is busy with those that are there. */

import { morph } from "./morph.js";

const pill = /** @type {HTMLButtonElement | null} */ (document.querySelector("[data-pill]"));
/** @type {{ old: Element, fresh: Element } | null} */
let waiting = null;

/** @returns {HTMLInputElement[]} */
function boxes() {
  return [.../** @type {NodeListOf<HTMLInputElement>} */ (document.querySelectorAll("tbody input[type=checkbox]"))];
}

function count() {
  const bar = document.querySelector("[data-selection]");
  if (bar === null) return;
  const ticked = boxes().filter((box) => box.checked);
  bar.classList.toggle("some", ticked.length > 0);
  const number = bar.querySelector("[data-count]");
  if (number !== null) number.textContent = String(ticked.length);
  for (const box of boxes()) box.closest("tr")?.classList.toggle("chosen", box.checked);
  const all = document.querySelector("[data-all]");
  if (all instanceof HTMLInputElement) all.checked = ticked.length > 0 && ticked.length === boxes().length;
}

/**
 * Return whether new rows of a list must wait: something is selected, focused or under the pointer. Known rows are updated all the same.
 * @param {Element} old
 * @param {Element} fresh
 */
export function hold(old, fresh) {
  const list = old.querySelector("[data-rows] tbody");
  const rows = fresh.querySelector("[data-rows] tbody");
  if (list === null || rows === null || pill === null) return false;
  const busy = boxes().some((box) => box.checked) || list.matches(":hover") || list.contains(document.activeElement);
  const known = new Set([...list.children].map((row) => row.getAttribute("data-key")));
  const added = [...rows.children].filter((row) => !known.has(row.getAttribute("data-key")));
  if (!busy || added.length === 0) {
    release();
    return false;
  }
  for (const row of rows.children) {
    const there = list.querySelector(`:scope > [data-key="${CSS.escape(row.getAttribute("data-key") ?? "")}"]`);
    if (there !== null) morph(there, row);
  }
  waiting = { old, fresh };
  pill.hidden = false;
  pill.textContent = added.length === rows.children.length ? `${added.length} or more new` : `${added.length} new`;
  return true;
}

function release() {
  waiting = null;
  if (pill !== null) pill.hidden = true;
}

pill?.addEventListener("click", () => {
  if (waiting !== null) morph(waiting.old, waiting.fresh);
  release();
});

document.addEventListener("change", (event) => {
  if (event.target instanceof HTMLInputElement && event.target.matches("[data-all]")) {
    for (const box of boxes()) box.checked = event.target.checked;
  }
  count();
});
document.addEventListener("duetime:selection", count);
document.addEventListener("click", (event) => {
  if (event.target instanceof Element && event.target.closest("[data-clear]") !== null) {
    for (const box of boxes()) box.checked = false;
    count();
  }
});

/**
 * Move the focus to the next or the previous row.
 * @param {number} by
 */
export function walk(by) {
  const links = [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-row]"))];
  const here = links.findIndex((link) => link === document.activeElement || link.closest("tr")?.contains(document.activeElement));
  links[Math.max(0, Math.min(links.length - 1, here < 0 ? 0 : here + by))]?.focus();
}

/** Tick the box of the focused row. */
export function tickRow() {
  const box = document.activeElement?.closest("tr")?.querySelector("input[type=checkbox]");
  if (box instanceof HTMLInputElement) {
    box.checked = !box.checked;
    count();
  }
}
