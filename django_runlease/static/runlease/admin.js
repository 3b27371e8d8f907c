// Counts down what expires, and refreshes the page every few seconds. Everything works without it.
(() => {
  "use strict";
  const GIVE_UP = 60000;
  const KEY = "runlease.refresh";

  // In the reader's words: those of two units, of days, hours, minutes and seconds, with {} for
  // each number.
  function shown(seconds, [two, ...units]) {
    const parts = [];
    let rest = Math.max(0, Math.floor(seconds));
    [86400, 3600, 60, 1].forEach((size, index) => {
      const count = Math.floor(rest / size);
      rest %= size;
      if (count || parts.length) parts.push([count, units[index]]);
    });
    const said = parts
      .slice(0, 2)
      .filter(([count]) => count)
      .map(([count, unit]) => unit.replace("{}", () => count));
    if (!said.length) return units[3].replace("{}", "0");
    return said.length < 2 ? said[0] : said.reduce((text, part) => text.replace("{}", () => part), two);
  }

  const ends = new WeakMap();

  function countDown() {
    const now = performance.now() / 1000;
    for (const element of document.querySelectorAll("[data-runlease-left]")) {
      if (!ends.has(element)) ends.set(element, now + Number(element.dataset.runleaseLeft));
      const left = ends.get(element) - now;
      element.textContent = shown(left, JSON.parse(element.dataset.runleaseUnits));
      const bar = element.parentElement.querySelector("[data-runlease-of]");
      if (bar) {
        const share = Math.min(1, Math.max(0, left / Number(bar.dataset.runleaseOf)));
        bar.querySelector(".runlease-fill").setAttribute("width", `${100 * share}%`);
      }
    }
  }

  const controls = document.querySelector("[data-runlease-controls]");
  const parts = () => document.querySelectorAll("[data-runlease-refresh]");
  const period = 1000 * Number(controls?.dataset.runleasePeriod);
  let busy = false;
  let failed = false;
  let waits = false;
  let asked = Date.now();
  let read = Date.now();
  let paused = sessionStorage.getItem(KEY) === "off";

  // The state is read out when it changes; the age, which changes all the time, is not.
  function tell() {
    const button = controls.querySelector("[data-runlease-toggle]");
    const state = controls.querySelector("[data-runlease-state]");
    const age = controls.querySelector("[data-runlease-age]");
    button.textContent = paused ? button.dataset.runleaseResume : button.dataset.runleasePause;
    const { runleaseOn, runleaseOff, runleaseFailed, runleaseWaits } = state.dataset;
    const text = paused ? runleaseOff : failed ? runleaseFailed : waits ? runleaseWaits : runleaseOn;
    if (state.textContent !== text) state.textContent = text;
    controls.classList.toggle("runlease-failed", failed && !paused);
    const since = shown((Date.now() - read) / 1000, JSON.parse(age.dataset.runleaseUnits));
    age.textContent = paused || failed || waits ? `(${since})` : "";
  }

  // A text that the reader is marking must not be taken away.
  function isMarked(part) {
    const selection = getSelection();
    return selection && !selection.isCollapsed && selection.containsNode(part, true);
  }

  const FOCUSED = "a[href], summary, [tabindex]";
  const SCROLLED = "pre, .runlease-scroll";
  const all = (root, selector) => [...root.querySelectorAll(selector)];

  // What *each* of the old part is in the fresh one: by what it is, as there may be others before
  // it now; nothing if it is gone.
  function same(each, part, fresh) {
    const name = (one) => [one.localName, one.getAttribute("href"), one.getAttribute("aria-label")].join(" ");
    const alike = (root) => all(root, FOCUSED).filter((one) => name(one) === name(each));
    return alike(fresh)[alike(part).indexOf(each)];
  }

  // As the parts came, before anything was opened or counted down in them.
  const sources = new WeakMap();

  // A fresh part takes the place of an old one: what was open stays open, what was scrolled stays
  // where it was, and the focus stays on the same thing, or in the part if that is gone.
  function exchange(part, fresh) {
    const focused = part.contains(document.activeElement);
    const next = focused ? same(document.activeElement, part, fresh) ?? fresh : null;
    const open = all(part, "details").map((details) => details.open);
    const places = all(part, SCROLLED).map((box) => [box.scrollLeft, box.scrollTop]);
    sources.set(fresh, fresh.outerHTML);
    part.replaceWith(document.adoptNode(fresh));
    all(fresh, "details").forEach((details, n) => { details.open = open[n] ?? false; });
    all(fresh, SCROLLED).forEach((box, n) => { [box.scrollLeft, box.scrollTop] = places[n] ?? [0, 0]; });
    if (next === fresh) fresh.tabIndex = -1;
    next?.focus({ preventScroll: true });
  }

  // Whether all of the page is what *page* has now.
  function renew(page) {
    let isAll = true;
    for (const part of parts()) {
      const name = CSS.escape(part.dataset.runleaseRefresh);
      const fresh = page.querySelector(`[data-runlease-refresh="${name}"]`);
      if (!fresh || fresh.outerHTML === sources.get(part)) continue;
      if (isMarked(part)) isAll = false;
      else exchange(part, fresh);
    }
    countDown();
    return isAll;
  }

  async function refresh() {
    if (paused || busy || document.hidden) return;
    busy = true;
    asked = Date.now();
    const stop = new AbortController();
    const timer = setTimeout(() => stop.abort(), GIVE_UP);
    try {
      const headers = { "Runlease-Refresh": "1" };
      const answer = await fetch(location.href, { headers, redirect: "manual", signal: stop.signal });
      if (!answer.ok) throw new Error(answer.statusText);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (paused) return;
      waits = !renew(page);
      failed = false;
      if (!waits) read = Date.now();
    } catch {
      failed = true;
    } finally {
      clearTimeout(timer);
      busy = false;
      tell();
    }
  }

  // A server that does not answer tells no more than one that cannot be reached.
  function judge() {
    if (busy && Date.now() - asked > 2 * period) failed = true;
    tell();
  }

  for (const part of parts()) sources.set(part, part.outerHTML);
  countDown();
  setInterval(countDown, 1000);
  if (controls && parts().length) {
    controls.hidden = false;
    controls.querySelector("[data-runlease-toggle]").addEventListener("click", () => {
      paused = !paused;
      sessionStorage.setItem(KEY, paused ? "off" : "on");
      tell();
      refresh();
    });
    tell();
    setInterval(judge, 1000);
    setInterval(refresh, period);
    document.addEventListener("visibilitychange", refresh);
  }
})();
