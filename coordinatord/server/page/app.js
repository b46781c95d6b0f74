// The whole page: passes data from the stream to the list of jobs and to the job that the address names.

import { allow } from "./acts.js";
import { chargedPanel, copyable, drainedPanel, endpoint, quoted } from "./commands.js";
import { h, name, setText, set, show } from "./dom.js";
import { entryPage, hasLink, letIn } from "./entry.js";
import { jobPage } from "./job.js";
import { firstChoice, jobList, jobOf, linkTo } from "./jobs.js";
import { Stream } from "./stream.js";
import { capital, clock, stateOf } from "./format.js";

const TICK_MS = 1_000; // between two updates of ages while no data come
const STALE_S = 1.5; // what is older than that is shown as that much older

const page = {
  body: document.getElementById("body"),
  main: document.getElementById("main"),
  banner: document.getElementById("banner"),
  link: document.getElementById("link"),
  host: document.getElementById("host"),
  jobs: document.getElementById("jobs"),
};
const list = jobList();
const drained = drainedPanel();
const charged = chargedPanel();
const nothing = emptyPage();
const unknown = unknownPage();
const entry = entryPage();
let job = jobPage();

let jobs = null; // the last list
let view = null; // the last data of the selected job, and when they came
let selected = jobOf(location.hash);
let link = { state: "opening", text: "", since: Date.now() };
let version = null; // the release of the coordinator that sent this page

page.jobs.append(list.element);
setText(page.host, location.host);

const stream = new Stream({ viewer: allow, jobs: showJobs, job: showJob, link: showLink });
entry.explain(await letIn());
stream.open(selected);
window.addEventListener("hashchange", follow);
setInterval(tick, TICK_MS);

function showJobs(data) {
  jobs = data.jobs;
  version ??= data.version;
  setText(page.host, [location.host, sharedWords(data.shared), data.insecure ? "open to everybody (--insecure)" : ""].filter(Boolean).join(", "));
  if (version !== data.version) location.reload(); // this page is of another release than the data
  show(page.body, true);
  set(page.body, "data-empty", jobs.length === 0);
  drained.update(data.drained);
  charged.update(data.charged);
  if (selected === null) select(jobOf(location.hash));
  list.update(jobs, selected);
  if (!jobs.length && !view?.data.status) present(nothing);
}

// Which coordinator leads and which stand by, of those that share a store.
function sharedWords(shared) {
  if (!shared) return "";
  const names = shared.standbys.map((standby) => standby.endpoint).join(", ");
  const standbys = shared.problem ? `not known who stands by (${shared.problem})` : names ? `standing by: ${names}` : "no coordinator stands by";
  return `${shared.leader.endpoint} leads, ${standbys}`;
}

// Follow the address: to a job, or to a session by the code of a link.
async function follow() {
  if (hasLink()) {
    entry.explain(await letIn());
    stream.open(selected);
  } else {
    select(jobOf(location.hash));
  }
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

function showJob(data) {
  if (data.job !== selected) return;
  view = { data, at: performance.now() };
  if (data.status) {
    job.update(data, 0);
    present(job);
  } else {
    unknown.update(data.job);
    present(jobs?.length ? unknown : nothing);
  }
  document.title = data.status ? `${data.job}: ${stateOf(data.status)}` : "coordinatord";
}

function present(part) {
  const beside = part === entry ? [] : [drained.element, charged.element];
  if (page.main.firstChild !== part.element) page.main.replaceChildren(part.element, ...beside);
}

function showLink(state, text, sinceMs) {
  if (link.state !== state) link = { state, text, since: Date.now() - sinceMs };
  link.text = text;
  const away = state === "lost" || state === "refused";
  const locked = state === "locked";
  if (locked) {
    present(entry);
    show(page.body, true);
    set(page.body, "data-empty", true);
  }
  set(page.link, "data-state", state);
  setText(page.link.lastChild, { live: "live", lost: "no connection", refused: "refused", paused: "paused", locked: "locked" }[state]);
  show(page.banner, away);
  set(page.body, "data-stale", away);
  if (away) setText(page.banner, bannerText());
}

function bannerText() {
  if (link.state === "refused") return `${capital(link.text)}. This page tries again by itself.`;
  const since = clock((Date.now() - link.since) / 1000);
  return `${link.text} since ${since}. The page shows the state of that time. Workers go on without the coordinator, and this page reconnects by itself.`;
}

function tick() {
  if (link.state !== "live" || !view?.data.status) return;
  const elapsed = (performance.now() - view.at) / 1000;
  if (elapsed > STALE_S) job.update(view.data, elapsed);
}

function emptyPage() {
  const start = copyable();
  start.update(`nodeclient join --coord ${quoted(endpoint())} -- python train.py`);
  return {
    element: h("section", { class: "empty" },
      h("h1", {}, "No jobs yet"),
      h("p", {}, "This coordinator is running. To start a job, type this on each training host:"),
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
      h("p", {}, "It was forgotten, or has not begun. It appears here by itself when a node joins it."),
      line.element),
    update(wanted) {
      setText(title, wanted);
      line.update(`nodeclient join --coord ${quoted(endpoint())} --job-id=${quoted(wanted)} -- python train.py`);
    },
  };
}
