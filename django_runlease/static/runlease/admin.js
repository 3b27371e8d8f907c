// Counts down what expires, and refreshes the page every few seconds. Everything works without it.
(() => {
  "use strict";
  const PERIOD = 5000;
  const OLD = 3 * PERIOD;
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
  let busy = false;
  let failed = false;
  let read = Date.now();
  let paused = sessionStorage.getItem(KEY) === "off";

  // The state is read out when it changes; the age, which changes all the time, is not.
  function tell() {
    const button = controls.querySelector("[data-runlease-toggle]");
    const state = controls.querySelector("[data-runlease-state]");
    const age = controls.querySelector("[data-runlease-age]");
    button.textContent = paused ? button.dataset.runleaseResume : button.dataset.runleasePause;
    button.setAttribute("aria-pressed", String(paused));
    const { runleaseOn, runleaseOff, runleaseFailed } = state.dataset;
    const text = paused ? runleaseOff : failed ? runleaseFailed : runleaseOn;
    if (state.textContent !== text) state.textContent = text;
    controls.classList.toggle("runlease-failed", failed && !paused);
    const since = shown((Date.now() - read) / 1000, JSON.parse(age.dataset.runleaseUnits));
    age.textContent = paused || failed ? `(${since})` : "";
  }

  // A text that the reader is marking must not be taken away.
  function isMarked(part) {
    const selection = getSelection();
    return selection && !selection.isCollapsed && selection.containsNode(part, true);
  }

  const CONTROLS = "a, button, input, select, summary, [tabindex]";
  const SCROLLED = "pre, .runlease-scroll";

  // A fresh part takes the place of an old one: what was open stays open, what was scrolled stays
  // where it was, and the focus stays on the same link.
  function exchange(part, fresh) {
    const all = (root, selector) => [...root.querySelectorAll(selector)];
    const focus = all(part, CONTROLS).indexOf(document.activeElement);
    const href = document.activeElement?.getAttribute("href");
    const open = all(part, "details").map((details) => details.open);
    const places = all(part, SCROLLED).map((box) => [box.scrollLeft, box.scrollTop]);
    part.replaceWith(document.adoptNode(fresh));
    all(fresh, "details").forEach((details, n) => { details.open = open[n] ?? false; });
    all(fresh, SCROLLED).forEach((box, n) => { [box.scrollLeft, box.scrollTop] = places[n] ?? [0, 0]; });
    if (focus >= 0) {
      const controls = all(fresh, CONTROLS);
      const same = href ? controls.find((each) => each.getAttribute("href") === href) : controls[focus];
      (same ?? controls[focus])?.focus({ preventScroll: true });
    }
  }

  async function refresh() {
    if (paused || busy || document.hidden) return;
    busy = true;
    const stop = new AbortController();
    const timer = setTimeout(() => stop.abort(), GIVE_UP);
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", signal: stop.signal });
      if (!answer.ok || answer.redirected) throw new Error(answer.statusText);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (paused) return;
      for (const part of parts()) {
        const name = CSS.escape(part.dataset.runleaseRefresh);
        const fresh = page.querySelector(`[data-runlease-refresh="${name}"]`);
        if (fresh && !isMarked(part)) exchange(part, fresh);
      }
      countDown();
      failed = false;
      read = Date.now();
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
    if (busy && Date.now() - read > OLD) failed = true;
    tell();
  }

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
    setInterval(refresh, PERIOD);
    document.addEventListener("visibilitychange", refresh);
  }
})();
