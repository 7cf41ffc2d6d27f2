// Keeps a page current: replaces elements by id with markup that the server rendered, and appends to logs.
// Without this script the pages show the same numbers, as of when they were loaded.
"use strict";

(() => {
  const RETRY_MS = 3000;
  const MAX_LOG_CHARS = 400_000;
  const linkState = document.getElementById("link-state");

  function setLost(isLost) {
    if (linkState) linkState.hidden = !isLost;
    document.body.classList.toggle("lost", isLost);
  }

  // The element under the keyboard, by the id of its fragment and its place in it.
  function focused(element) {
    const active = document.activeElement;
    if (!active || !element.contains(active)) return null;
    return [...element.querySelectorAll("a, button, input, summary, [tabindex]")].indexOf(active);
  }

  function replace(id, markup) {
    const element = document.getElementById(id);
    if (!element) return;
    const template = document.createElement("template");
    template.innerHTML = markup;
    const fresh = template.content.firstElementChild;
    if (!fresh) return;
    const place = focused(element);
    const scrolls = [...element.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
    const open = [...element.querySelectorAll("details")].map((details) => details.open);
    element.replaceWith(fresh);
    [...fresh.querySelectorAll(".scroll")].forEach((box, i) => {
      if (scrolls[i]) [box.scrollLeft, box.scrollTop] = scrolls[i];
    });
    [...fresh.querySelectorAll("details")].forEach((details, i) => { if (open[i]) details.open = true; });
    if (place !== null && place >= 0) {
      const again = fresh.querySelectorAll("a, button, input, summary, [tabindex]")[place];
      if (again) again.focus({ preventScroll: true });
    }
  }

  function append(log, message) {
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    if (message.restart) log.textContent = "";
    log.append(message.text);
    if (log.textContent.length > MAX_LOG_CHARS) log.textContent = log.textContent.slice(-MAX_LOG_CHARS / 2);
    if (atEnd) log.scrollTop = log.scrollHeight;
  }

  // Browsers give up on some errors (readyState CLOSED): then this opens the stream again.
  function follow(url, handlers, onState) {
    let source = null;
    let timer = null;
    function open() {
      source = new EventSource(url);
      source.onopen = () => onState(false);
      source.onerror = () => {
        onState(true);
        if (source.readyState === EventSource.CLOSED && timer === null) {
          timer = setTimeout(() => { timer = null; open(); }, RETRY_MS);
        }
      };
      source.addEventListener("gone", () => { source.close(); location.reload(); });
      source.addEventListener("reload", () => { source.close(); location.reload(); });
      source.addEventListener("end", () => { source.close(); onState(false); });
      for (const [name, handle] of Object.entries(handlers)) {
        source.addEventListener(name, (message) => handle(JSON.parse(message.data)));
      }
    }
    open();
    addEventListener("pagehide", () => source.close());
    addEventListener("pageshow", (shown) => { if (shown.persisted) location.reload(); });
  }

  for (const box of document.querySelectorAll(".scroll.end")) box.scrollLeft = box.scrollWidth;
  const live = document.body.dataset.live;
  if (live) {
    follow(live, {
      update: (parts) => { for (const [id, markup] of Object.entries(parts)) replace(id, markup); },
    }, setLost);
  }
  for (const log of document.querySelectorAll("[data-log]")) {
    log.scrollTop = log.scrollHeight;
    follow(log.dataset.log, { text: (message) => append(log, message) }, live ? () => {} : setLost);
  }
})();
