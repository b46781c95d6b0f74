// The list of all jobs; each is a link, so that pages can be shared and the back button works.

import { badge, h, keep, name, setText, set, show } from "./dom.js";
import { count, ENDED, percent, plural, stateOf, toneOf } from "./format.js";

const FILTER_FROM = 12; // jobs: fewer are seen at a glance

export function linkTo(job) {
  return `#job=${encodeURIComponent(job)}`;
}

// The job that the address names; null if it names none.
export function jobOf(hash) {
  try {
    return hash.startsWith("#job=") ? decodeURIComponent(hash.slice("#job=".length)) : null;
  } catch {
    return null; // not a link of ours
  }
}

// The job to show if the address names none: the youngest that lives, or the youngest.
export function firstChoice(jobs) {
  return (jobs.findLast((job) => !ENDED.has(job.state)) ?? jobs.at(-1))?.job ?? null;
}

export function jobList() {
  const filter = h("input", { type: "search", placeholder: "Find a job", "aria-label": "Find a job" });
  const live = section("Jobs");
  const ended = section("Ended");
  const element = h("div", {}, filter, live.element, ended.element);
  let last = null;
  const update = (jobs, selected) => {
    last = [jobs, selected];
    const wanted = filter.value.toLowerCase();
    show(filter, jobs.length >= FILTER_FROM);
    const found = jobs.filter((job) => job.job.toLowerCase().includes(wanted)).reverse();
    live.update(found.filter((job) => !ENDED.has(job.state)), selected);
    ended.update(found.filter((job) => ENDED.has(job.state)), selected);
  };
  filter.addEventListener("input", () => last && update(...last));
  return { element, update };
}

function section(title) {
  const number = h("span", { class: "count" });
  const list = h("ul");
  const element = h("section", {}, h("h2", {}, `${title} `, number), list);
  return {
    element,
    update(jobs, selected) {
      show(element, jobs.length > 0);
      setText(number, count(jobs.length));
      const items = jobs.map((job) => ({ job, current: job.job === selected }));
      keep(list, items, (item) => item.job.job, entry);
    },
  };
}

function entry() {
  const title = name();
  const state = badge();
  const facts = h("span", { class: "facts" });
  const link = h("a", {}, h("span", { class: "title" }, title), state.element, facts);
  const element = h("li", {}, link);
  return {
    element,
    update({ job, current }) {
      const chosen = current && !link.hasAttribute("aria-current");
      if (chosen) requestAnimationFrame(() => element.scrollIntoView({ block: "nearest", inline: "nearest" }));
      setText(title, job.job);
      set(link, "aria-current", current ? "page" : null);
      set(link, "href", linkTo(job.job));
      state.update(stateOf(job), toneOf(job));
      setText(facts, factsOf(job).join(" · "));
    },
  };
}

function factsOf(job) {
  const facts = [];
  if (job.nodes) facts.push(plural(job.nodes, "node"));
  if (job.progress.step !== null) facts.push(`step\u00a0${count(job.progress.step)}`);
  if (job.goodput) facts.push(`${percent(job.goodput)}\u00a0goodput`);
  return facts.length ? facts : [job.round ? plural(job.round, "round") : "no round yet"];
}
