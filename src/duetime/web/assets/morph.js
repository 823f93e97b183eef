// @ts-check
/** Puts new markup into place, changing only what differs: focus, selection, open details, ticked boxes and scroll stay. */

/** @type {{ createPolicy(name: string, rules: { createHTML(text: string): string }): { createHTML(text: string): unknown } } | undefined} */
const types = Reflect.get(globalThis, "trustedTypes");
const policy = types?.createPolicy("duetime", { createHTML: (text) => text });

/**
 * Parse what the server sent. Its text is trusted because the server escapes everything.
 * @param {string} text
 * @returns {Element[]}
 */
export function parse(text) {
  const html = policy ? policy.createHTML(text) : text;
  const found = new DOMParser().parseFromString(/** @type {string} */ (/** @type {unknown} */ (html)), "text/html");
  return [...found.body.children];
}

/**
 * Make `old` like `fresh`.
 * @param {Element} old
 * @param {Element} fresh
 */
export function morph(old, fresh) {
  if (old instanceof HTMLDialogElement && old.open) return;
  attributes(old, fresh);
  if (old instanceof HTMLTextAreaElement || old instanceof HTMLInputElement) return;
  children(old, fresh);
}

/**
 * @param {Element} old
 * @param {Element} fresh
 */
function attributes(old, fresh) {
  for (const { name, value } of [...fresh.attributes]) {
    if (name === "open" && old instanceof HTMLDetailsElement) continue;
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (fresh.hasAttribute(name) || name === "class" || (name === "open" && old instanceof HTMLDetailsElement)) continue;
    old.removeAttribute(name);
  }
}

/** @param {Node} node */
function keyOf(node) {
  return node instanceof Element ? (node.getAttribute("data-key") ?? (node.id || null)) : null;
}

/**
 * @param {Element} old
 * @param {Element} fresh
 */
function children(old, fresh) {
  /** @type {Map<string, Element>} */
  const keyed = new Map();
  for (const child of [...old.children]) {
    const key = keyOf(child);
    if (key !== null) keyed.set(key, child);
  }
  /** @type {ChildNode | null} */
  let at = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const key = keyOf(next);
    /** @type {ChildNode | undefined} */
    let match = key === null ? undefined : keyed.get(key);
    if (match === undefined && key === null && at !== null && keyOf(at) === null && at.nodeName === next.nodeName) match = at;
    if (match === undefined) {
      old.insertBefore(document.importNode(next, true), at);
      continue;
    }
    if (match === at) at = at.nextSibling;
    else old.insertBefore(match, at);
    if (match instanceof Element && next instanceof Element) morph(match, next);
    else if (match.nodeValue !== next.nodeValue) match.nodeValue = next.nodeValue;
  }
  while (at !== null) {
    const gone = at;
    at = at.nextSibling;
    if (!(gone instanceof HTMLDialogElement && gone.open)) gone.remove();
  }
}
