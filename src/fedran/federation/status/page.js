"use strict";
// Fetches the sections every two seconds and replaces those that changed; times become ages.
const EVERY = 2000;
const main = document.querySelector("main");
const lost = document.getElementById("lost");
const sources = new Map([...main.children].map((s) => [s.id, s.outerHTML]));
let skew = 0; // the server's clock minus the browser's, in milliseconds
let heard = new Date();

function span(seconds) {
  const steps = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const [size, unit] = steps.find(([size]) => seconds >= size) ?? steps[3];
  return `${Math.floor(seconds / size)} ${unit}`;
}

function tick() {
  const now = (Date.now() + skew) / 1000;
  for (const time of main.querySelectorAll("time[data-at]")) {
    time.title = new Date(1000 * time.dataset.at).toLocaleString();
    time.textContent = `${span(Math.max(0, now - time.dataset.at))} ago`;
  }
  for (const time of main.querySelectorAll("time[data-until]")) {
    const left = time.dataset.until - now;
    time.title = new Date(1000 * time.dataset.until).toLocaleString();
    time.textContent = left > 0 ? `${span(left)} left.` : "Its time is up.";
  }
}

function place(html) {
  const fresh = [...new DOMParser().parseFromString(html, "text/html").body.children];
  const wanted = new Set(fresh.map((s) => s.id));
  for (const old of [...main.children]) if (!wanted.has(old.id)) old.remove();
  fresh.forEach((section, place) => {
    const source = section.outerHTML;
    const here = document.getElementById(section.id);
    if (!here) {
      main.insertBefore(section, main.children[place] ?? null);
    } else if (sources.get(section.id) !== source) {
      const sideways = [...here.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
      here.replaceWith(section);
      section.querySelectorAll(".scroll").forEach((box, i) => (box.scrollLeft = sideways[i] ?? 0));
    }
    sources.set(section.id, source);
  });
}

async function refresh() {
  try {
    const reply = await fetch("sections", { cache: "no-store", signal: AbortSignal.timeout(10000) });
    const html = await reply.text();
    if (!reply.ok) throw new Error(html);
    heard = new Date();
    const apart = Date.parse(reply.headers.get("Date")) - heard;
    skew = Math.abs(apart) > 5000 ? apart : 0; // the header has whole seconds only
    place(html);
    lost.hidden = true;
  } catch (reason) {
    const told = reason instanceof TypeError ? "" : ` (${String(reason.message).slice(0, 300)})`;
    lost.textContent = `Server not answering since ${heard.toLocaleTimeString()}${told}: what you see is from then.`;
    lost.hidden = false;
  }
  tick();
  setTimeout(refresh, EVERY);
}

setInterval(tick, 1000);
refresh();
