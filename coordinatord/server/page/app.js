// The page put together: what comes from the stream goes to the list of jobs and to the job that the address names.

import { copyable, drainedPanel, endpoint, quoted } from "./commands.js";
import { h, name, say, set, show } from "./dom.js";
import { jobPage } from "./job.js";
import { firstChoice, jobList, jobOf, linkTo } from "./jobs.js";
import { Stream } from "./stream.js";
import { capital, clock, stateOf } from "./words.js";

const TICK_MS = 1_000; // between two looks at what grows older without news
const STALE_S = 1.5; // what is older than that is shown as that much older

const page = {
  body: document.getElementById("body"),
  main: document.getElementById("main"),
  banner: document.getElementById("banner"),
  link: document.getElementById("link"),
};
const list = jobList();
const drained = drainedPanel();
const nothing = emptyPage();
const unknown = unknownPage();
let job = jobPage();

let jobs = null; // the last list
let view = null; // the last of the selected job, and when it came
let selected = jobOf(location.hash);
let link = { state: "opening", words: "", since: Date.now() };
let version = null; // of the coordinator that this page came from

document.getElementById("jobs").append(list.element);
say(document.getElementById("host"), location.host);

const stream = new Stream({ jobs: showJobs, job: showJob, link: showLink });
stream.open(selected);
window.addEventListener("hashchange", () => select(jobOf(location.hash)));
setInterval(tick, TICK_MS);

function showJobs(told) {
  jobs = told.jobs;
  version ??= told.version;
  if (version !== told.version) location.reload(); // the page of another release does not know what is told now
  show(page.body, true);
  set(page.body, "data-empty", jobs.length === 0);
  drained.update(told.drained);
  if (selected === null) select(jobOf(location.hash));
  list.update(jobs, selected);
  if (!jobs.length && (view === null || view.told.unknown)) present(nothing);
}

function select(wanted) {
  if (wanted === null && jobs?.length) {
    history.replaceState(null, "", linkTo(firstChoice(jobs)));
    wanted = jobOf(location.hash);
  }
  if (wanted === selected) return;
  selected = wanted;
  view = null;
  job = jobPage(); // another job begins at its top, without filters of the last one
  page.main.replaceChildren();
  if (jobs) list.update(jobs, selected);
  stream.open(selected);
}

function showJob(told) {
  if (told.job !== selected) return;
  view = { told, at: performance.now() };
  if (told.unknown) {
    unknown.update(told.job);
    present(jobs?.length ? unknown : nothing);
  } else {
    job.update(told, 0);
    present(job);
  }
  document.title = told.unknown ? "coordinatord" : `${told.job}: ${stateOf(told)}`;
}

function present(part) {
  if (page.main.firstChild !== part.element) page.main.replaceChildren(part.element, drained.element);
}

function showLink(state, words, sinceMs) {
  if (link.state !== state) link = { state, words, since: Date.now() - sinceMs };
  link.words = words;
  const away = state === "lost" || state === "refused";
  set(page.link, "data-state", state);
  say(page.link.lastChild, { live: "live", lost: "no connection", refused: "refused", paused: "paused" }[state]);
  show(page.banner, away);
  set(page.body, "data-stale", away);
  if (away) say(page.banner, bannerWords());
}

function bannerWords() {
  if (link.state === "refused") return `${capital(link.words)}. This page tries again by itself.`;
  const since = clock((Date.now() - link.since) / 1000);
  return `${link.words} since ${since}. What is shown is from then; workers go on without it, and this page comes back by itself.`;
}

function tick() {
  if (link.state !== "live" || !view || view.told.unknown) return;
  const elapsed = (performance.now() - view.at) / 1000;
  if (elapsed > STALE_S) job.update(view.told, elapsed);
}

function emptyPage() {
  const start = copyable();
  start.update(`nodeclient join --coord ${quoted(endpoint())} -- python train.py`);
  return {
    element: h("section", { class: "empty" },
      h("h1", {}, "No jobs yet"),
      h("p", {}, "This coordinator is up and waits. Start a job by typing this on each training host:"),
      start.element,
      h("p", { class: "muted" }, "Nodes with the same --job-id train together. The job appears here by itself.")),
  };
}

function unknownPage() {
  const title = name();
  const line = copyable();
  return {
    element: h("section", { class: "empty" },
      h("h1", {}, "No job ", title, " is known here"),
      h("p", {}, "It may have been forgotten, or not have begun. Should a node join it, it appears here by itself."),
      line.element),
    update(wanted) {
      say(title, wanted);
      line.update(`nodeclient join --coord ${quoted(endpoint())} --job-id=${quoted(wanted)} -- python train.py`);
    },
  };
}
