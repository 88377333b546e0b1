// Conveniences of the pages: times in the reader's zone, and sections that refresh themselves. Every
// page works without it.
"use strict";

const pause = 5000;
const clock = new Intl.DateTimeFormat(undefined, {
  day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
});

function localise(root) {
  for (const time of root.querySelectorAll("time")) {
    const text = clock.format(new Date(time.dateTime));
    if (time.textContent !== text) time.textContent = text;
  }
}

// busy reports whether somebody reads or writes in a section, so that it must not be refreshed.
function busy(section) {
  const selection = getSelection();
  return section.contains(document.activeElement) || section.querySelector("details[open], input:checked") !== null ||
    (!selection.isCollapsed && section.contains(selection.anchorNode));
}

let tag = "", running = false, timer = 0;
const button = document.getElementById("live");
const followed = document.querySelector("[data-live]") !== null && !document.querySelector("pre.payload");

async function refresh() {
  const answer = await fetch(location.href, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store", credentials: "same-origin" });
  if (answer.status === 304) return;
  if (!answer.ok || answer.redirected) throw new Error(answer.status);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  localise(page);
  let whole = true;
  for (const section of document.querySelectorAll("[data-live]")) {
    const next = page.getElementById(section.id);
    if (!next) continue;
    if (section.outerHTML === next.outerHTML) continue;
    if (busy(section)) whole = false;
    else section.replaceWith(document.adoptNode(next));
  }
  tag = whole ? answer.headers.get("ETag") || "" : "";
}

async function follow() {
  clearTimeout(timer);
  if (!running || document.hidden) return;
  try {
    await refresh();
    say("Live");
  } catch {
    say("Offline");
  }
  timer = setTimeout(follow, pause);
}

function say(text) {
  button.textContent = text;
  button.setAttribute("aria-pressed", String(running));
  button.title = running ? "This page refreshes itself; press to stop" : "Press to refresh this page continuously";
}

localise(document);
if (followed && button) {
  button.hidden = false;
  running = true;
  say("Live");
  button.addEventListener("click", () => {
    running = !running;
    say(running ? "Live" : "Paused");
    follow();
  });
  document.addEventListener("visibilitychange", follow);
  timer = setTimeout(follow, pause);
}

// A form that opens puts the cursor into its first field.
document.addEventListener("toggle", (event) => {
  if (event.target.matches("details.act") && event.target.open) event.target.querySelector("input:not([type=hidden]), textarea").focus();
}, true);

// A box in the head of a list chooses all of its rows.
document.documentElement.classList.add("scripted");
document.addEventListener("change", (event) => {
  if (!event.target.matches("input.all")) return;
  for (const box of event.target.closest("table").querySelectorAll("input[name=chosen]")) box.checked = event.target.checked;
});

// An action that takes several requests continues by itself, unless the reader takes over.
const more = document.querySelector("form[data-continue]");
if (more) setTimeout(() => more.requestSubmit(), 300);
