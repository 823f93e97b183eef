// @ts-check
/** Opens and closes dialogs; the focus returns to what opened them. */

/** @param {string} id */
export function open(id) {
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
