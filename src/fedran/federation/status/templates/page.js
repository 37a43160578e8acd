"use strict";
// Fetches the sections every two seconds, replaces those that changed, and turns times into ages.
const EVERY = 2000;
const main = document.querySelector("main");
const lost = document.getElementById("lost");
const sources = new Map([...main.children].map((s) => [s.id, s.outerHTML]));
let skew = 0; // the server's clock minus the browser's, in milliseconds
let lastAnswer = new Date();

function duration(seconds) {
  const steps = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const [size, unit] = steps.find(([size]) => seconds >= size) ?? steps[3];
  return `${Math.floor(seconds / size)} ${unit}`;
}

function updateTimes() {
  const now = (Date.now() + skew) / 1000;
  for (const time of main.querySelectorAll("time[data-at]")) {
    time.title = new Date(1000 * time.dataset.at).toLocaleString();
    time.textContent = `${duration(Math.max(0, now - time.dataset.at))} ago`;
  }
  for (const time of main.querySelectorAll("time[data-until]")) {
    const left = time.dataset.until - now;
    time.title = new Date(1000 * time.dataset.until).toLocaleString();
    time.textContent = left > 0 ? `${duration(left)} left.` : "The deadline has passed.";
  }
}

function replaceSections(html) {
  const fresh = [...new DOMParser().parseFromString(html, "text/html").body.children];
  const wanted = new Set(fresh.map((s) => s.id));
  for (const old of [...main.children]) if (!wanted.has(old.id)) old.remove();
  fresh.forEach((section, position) => {
    const source = section.outerHTML;
    const shown = document.getElementById(section.id);
    if (!shown) {
      main.insertBefore(section, main.children[position] ?? null);
    } else if (sources.get(section.id) !== source) {
      const scrolled = [...shown.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
      shown.replaceWith(section);
      section.querySelectorAll(".scroll").forEach((box, i) => (box.scrollLeft = scrolled[i] ?? 0));
    }
    sources.set(section.id, source);
  });
}

async function refresh() {
  try {
    const reply = await fetch("sections", { cache: "no-store", signal: AbortSignal.timeout(10000) });
    const html = await reply.text();
    if (!reply.ok) throw new Error(html);
    lastAnswer = new Date();
    const difference = Date.parse(reply.headers.get("Date")) - lastAnswer;
    skew = Math.abs(difference) > 5000 ? difference : 0; // the header has whole seconds only
    replaceSections(html);
    lost.hidden = true;
  } catch (error) {
    // A TypeError means that there was no answer at all.
    const reason = error instanceof TypeError ? "" : ` (${String(error.message).slice(0, 300)})`;
    const since = lastAnswer.toLocaleTimeString();
    lost.textContent = `No status since ${since}${reason}. This page shows the state at that time.`;
    lost.hidden = false;
  }
  updateTimes();
  setTimeout(refresh, EVERY);
}

setInterval(updateTimes, 1000);
refresh();
