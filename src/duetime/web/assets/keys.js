// @ts-check
/** Keys. The single letters can be switched off in the settings. */

import { open } from "./dialogs.js";
import { show } from "./palette.js";
import { tickRow, walk } from "./rows.js";

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
    const link = document.querySelector(`.menu [data-letter="${CSS.escape(event.key)}"]`);
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
