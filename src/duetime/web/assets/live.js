// @ts-check
/** Keeps a page live: asks its own address for what has changed, and sends forms without leaving the page. */

import "./controls.js";
import "./rows.js";
import { morph, parse } from "./morph.js";
import { hold } from "./rows.js";

const LONGEST = 30;
const dot = /** @type {HTMLButtonElement | null} */ (document.querySelector("[data-live]"));
const banner = /** @type {HTMLElement} */ (document.getElementById("banner"));
let every = Number(document.body.dataset.every ?? 0);
let paused = false;
let failures = 0;
let timer = 0;
let asking = false;
let heardAt = Date.now();
let offset = 0;

document.documentElement.classList.add("scripted");
remember_zone();

/** The server writes instants in the zone of the browser, which it learns from this cookie. */
function remember_zone() {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (!zone || /(?:^|; )duetime-zone=/.test(document.cookie)) return;
  document.cookie = `duetime-zone=${zone}; path=${document.body.dataset.start}/; max-age=31536000; samesite=strict`;
}

/** @returns {string} */
function known() {
  const parts = [...document.querySelectorAll("[data-part]")];
  return parts.map((part) => `${part.getAttribute("data-part")}=${part.getAttribute("data-tag")}`).join(",") || "none";
}

/** @param {Response} response */
async function take(response) {
  const go = response.headers.get("duetime-go");
  if (go !== null) {
    location.assign(go);
    return;
  }
  const now = Number(response.headers.get("duetime-now"));
  if (now) offset = now - Date.now();
  if (response.headers.has("duetime-next")) every = Number(response.headers.get("duetime-next"));
  if (response.status === 200) {
    for (const fresh of parse(await response.text())) {
      const old = document.querySelector(`[data-part="${CSS.escape(fresh.getAttribute("data-part") ?? "")}"]`);
      if (old === null || hold(old, fresh)) continue;
      const read = scrolled_up(old);
      morph(old, fresh);
      for (const log of old.querySelectorAll("[data-follow]")) if (!read.has(log)) log.scrollTop = log.scrollHeight;
    }
  }
  const said = response.headers.get("duetime-said");
  if (said !== null) say(decodeURIComponent(said), response.headers.get("duetime-good") !== "no");
}

/**
 * Return the logs of a part in which somebody reads further up; the others are followed.
 * @param {Element} part
 */
function scrolled_up(part) {
  const logs = [...part.querySelectorAll("[data-follow]")];
  return new Set(logs.filter((log) => log.scrollTop + log.clientHeight < log.scrollHeight - 4));
}

async function ask() {
  if (asking || paused || document.hidden) return;
  asking = true;
  try {
    const response = await fetch(location.href, { headers: { "duetime-parts": known() }, redirect: "manual", cache: "no-store" });
    if (!response.ok && response.status !== 401) throw new Error(await response.text());
    await take(response);
    heard(response);
  } catch (error) {
    failures += 1;
    const why = error instanceof TypeError ? "the server does not answer" : String(error instanceof Error ? error.message : error);
    if (failures >= 2) stale(why, Math.round((Date.now() - heardAt) / 1000));
  } finally {
    asking = false;
    plan();
  }
}

/**
 * Show that the page is live; or, if the server answers with what it read last because the store does not answer, how old that is.
 * @param {Response} response
 */
function heard(response) {
  failures = 0;
  const [age, ...why] = (response.headers.get("duetime-trouble") ?? "").split(" ");
  if (age) {
    stale(decodeURIComponent(why.join(" ")), Number(age));
    return;
  }
  heardAt = Date.now();
  banner.hidden = true;
  for (const part of document.querySelectorAll("[data-part].old")) part.classList.remove("old");
  show("on", "live");
}

/**
 * @param {string} why
 * @param {number} seconds
 */
function stale(why, seconds) {
  banner.textContent = `Not refreshed for ${seconds} s: ${why.slice(0, 300)}. Trying again.`;
  banner.hidden = false;
  for (const part of document.querySelectorAll("[data-part]")) part.classList.add("old");
  show("stale", `${seconds} s old`);
}

/**
 * @param {string} state
 * @param {string} word
 */
function show(state, word) {
  if (dot === null) return;
  dot.dataset.state = state;
  const text = /** @type {HTMLElement} */ (dot.querySelector("span"));
  if (text.textContent !== word) text.textContent = word;
}

/** Set the time of the next request: after the last has ended, so that they never pile up. */
function plan() {
  clearTimeout(timer);
  if (paused || document.hidden || every <= 0) return;
  // after the first failure soon, to know; after others more and more seldom
  timer = setTimeout(ask, 1000 * (failures === 1 ? Math.min(every, 1) : Math.min(LONGEST, every * 2 ** Math.max(0, failures - 1))));
}

export function toggle() {
  paused = !paused;
  show(paused ? "paused" : "on", paused ? "paused" : "live");
  dot?.setAttribute("aria-pressed", String(paused));
  if (paused) clearTimeout(timer);
  else void ask();
}

/**
 * Say what an action did. Errors stay until they are closed.
 * @param {string} text
 * @param {boolean} good
 */
export function say(text, good) {
  const toast = document.createElement("p");
  toast.className = good ? "toast" : "toast bad";
  const words = document.createElement("span");
  words.textContent = text;
  const close = document.createElement("button");
  close.type = "button";
  close.textContent = "×";
  close.setAttribute("aria-label", "Close");
  close.addEventListener("click", () => toast.remove());
  toast.append(words, close);
  document.getElementById("said")?.append(toast);
  if (good) setTimeout(() => toast.remove(), 6000);
}

/**
 * Send a form and show its effect.
 * @param {HTMLFormElement} form
 * @param {HTMLElement | null} button
 */
async function send(form, button) {
  const data = new URLSearchParams();
  for (const [name, value] of new FormData(form)) data.append(name, String(value));
  if (button instanceof HTMLButtonElement && button.name) data.append(button.name, button.value);
  button?.classList.add("busy");
  button?.setAttribute("aria-busy", "true");
  try {
    const response = await fetch(form.getAttribute("action") ?? location.href, {
      method: "POST",
      body: data,
      headers: { "duetime-parts": known() },
      redirect: "manual",
    });
    if (!response.ok && response.status !== 401) {
      say((await response.text()) || `refused (${response.status})`, false);
      return;
    }
    const dialog = form.closest("dialog");
    if (dialog instanceof HTMLDialogElement && dialog.open) dialog.close();
    if (form.hasAttribute("data-select")) form.reset();
    document.dispatchEvent(new CustomEvent("duetime:selection"));
    await take(response);
    heard(response);
  } catch {
    say("The server does not answer. It is not known whether this was done; look before you try again.", false);
  } finally {
    button?.classList.remove("busy");
    button?.removeAttribute("aria-busy");
    plan();
  }
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!(form instanceof HTMLFormElement) || form.method !== "post" || form.hasAttribute("data-plain")) return;
  event.preventDefault();
  void send(form, event.submitter);
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else void ask();
});

document.addEventListener("click", (event) => {
  const target = event.target instanceof Element ? event.target.closest("[data-copy]") : null;
  if (target instanceof HTMLElement && getSelection()?.isCollapsed !== false) {
    void navigator.clipboard?.writeText(target.dataset.copy ?? "").then(() => say("Copied.", true));
  }
});

/** Keep relative instants right between answers; the same words as duetime/web/words.py. */
function tick() {
  if (document.hidden) return;
  const now = Date.now() + offset;
  for (const element of document.querySelectorAll("time[data-rel]")) {
    const text = relative((Date.parse(element.getAttribute("datetime") ?? "") - now) / 1000);
    if (text !== null && element.textContent !== text) element.textContent = text;
  }
}

/**
 * @param {number} delta
 * @returns {string | null}
 */
export function relative(delta) {
  const seconds = Math.abs(delta);
  if (!Number.isFinite(seconds) || seconds >= 86400) return null;
  if (seconds < 1) return "now";
  let size = `${Math.floor(seconds)} s`;
  if (seconds >= 60) {
    const minutes = Math.floor(seconds / 60);
    const hours = Math.floor(minutes / 60);
    size = hours ? `${hours} h${minutes % 60 ? ` ${minutes % 60} min` : ""}` : `${minutes} min`;
  }
  return delta > 0 ? `in ${size}` : `${size} ago`;
}

if (dot !== null && every > 0) {
  dot.hidden = false;
  dot.addEventListener("click", toggle);
  show("on", "live");
}
if (!banner.hidden) for (const part of document.querySelectorAll("[data-part]")) part.classList.add("old");
for (const log of document.querySelectorAll("[data-follow]")) log.scrollTop = log.scrollHeight;
document.addEventListener("duetime:toggle", toggle);
document.addEventListener("duetime:ask", () => void ask());
setInterval(tick, 1000);
plan();
