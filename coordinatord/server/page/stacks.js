// Where the workers of a job stand, read at a click: workers with equal stacks are shown once, the largest group first.

import { ask } from "./answers.js";
import { command, copyable } from "./commands.js";
import { h, keep, set, setText, show } from "./dom.js";
import { capital, count, duration, plural } from "./format.js";

const RANKS_MAX = 8; // spans of ranks that are named; the others are counted

const GROUPS_MAX = 40; // places that are shown: nobody reads more, and the command has all

export function stacksPanel() {
  const button = h("button", { type: "button", class: "ask" }, "Ask them now");
  const line = copyable();
  const verdict = h("p", { class: "verdict" });
  const failed = h("p", { class: "failed", role: "alert" });
  const groups = h("div", { class: "stacks", "aria-live": "polite" });
  const element = h("details", { class: "panel" }, h("summary", {}, h("h2", {}, "Where the workers stand")),
    h("p", { class: "muted" }, "Each worker says which code it is in, and how far its collectives are. That does not disturb the training."),
    h("p", { class: "tools" }, button, line.element), failed, verdict, groups);
  let job = null;
  const draw = ({ answer = null, why = "" } = {}) => {
    setText(failed, why && `${capital(why)}.`);
    show(failed, why !== "");
    setText(verdict, answer === null ? "" : verdictOf(answer));
    show(verdict, answer !== null);
    keep(groups, answer === null ? [] : answer.groups.slice(0, GROUPS_MAX).map(groupOf), (each) => each.who, group);
  };
  button.addEventListener("click", async () => {
    const requested = job;
    set(button, "disabled", true);
    const found = await ask(`/v1/jobs/${encodeURIComponent(requested)}/stacks`);
    set(button, "disabled", false);
    if (requested === job) draw(found);
  });
  draw();
  return {
    element,
    update(name, lives) {
      if (name !== job) draw(); // clear what was shown of another job
      job = name;
      show(element, lives);
      line.update(command("stacks", job));
    },
  };
}

function verdictOf({ round, verdict, groups, notes }) {
  const finding = verdict === null ? "Nobody holds up all others, as far as is seen." : `${verdict.kind}: ${verdict.sentence}`;
  const more = groups.length > GROUPS_MAX ? [`The ${GROUPS_MAX} places with the most workers, of ${count(groups.length)}:`] : [];
  return [`Round ${count(round)}. ${finding}`, ...notes, ...more].join("\n");
}

// What is shown of workers with equal stacks.
function groupOf({ workers, threads, problem }) {
  const hosts = [...new Set(workers.map((worker) => worker.host))];
  const frames = threads.flatMap(({ name, frames }, number) => [...(number ? [name] : []), ...frames.map((frame) => `  ${frame}`)]);
  const pids = workers.map((worker) => worker.pid).filter(Boolean);
  const at = workers.find((worker) => worker.collective)?.collective;
  return {
    who: `${ranksOf(workers)} on ${hosts.slice(0, RANKS_MAX).join(", ")}${hosts.length > RANKS_MAX ? ` and ${count(hosts.length - RANKS_MAX)} more` : ""}`,
    how: [...(pids.length ? [`PID ${pids.slice(0, RANKS_MAX).join(", ")}${pids.length > RANKS_MAX ? " …" : ""}`] : []), stateOf(workers[0]), ...(at ? [placeOf(at)] : []), ...(problem ? [`no stack: ${problem}`] : [])].join(" · "),
    frames: frames.join("\n"),
  };
}

function ranksOf(workers) {
  const spans = [];
  for (const { rank } of workers) {
    if (spans.length && rank === spans.at(-1)[1] + 1) spans.at(-1)[1] = rank;
    else spans.push([rank, rank]);
  }
  const named = spans.slice(0, RANKS_MAX).map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`));
  const more = spans.length > RANKS_MAX ? ` … ${plural(workers.length, "worker")}` : "";
  return `${workers.length === 1 ? "rank" : "ranks"} ${named.join(", ")}${more}`;
}

function stateOf({ state, waits_in: waits, cpus }) {
  return `${state || "state not known"}${waits ? ` in ${waits}` : ""}, ${cpus.toFixed(1)} CPUs`;
}

function placeOf({ operation, number, group: of, shape, state, age_s: age }) {
  const place = `${operation} ${count(number)} of ${of}${shape ? ` (${shape})` : ""}`;
  if (state === "waits") return `waits in ${place} for ${duration(age)}`;
  return state === "moves" ? `gets on: collective ${count(number)}` : `last collective: ${place}`;
}

function group() {
  const who = h("h3");
  const how = h("p", { class: "muted" });
  const frames = h("pre", { tabindex: "0", "aria-label": "Their stack, the innermost frame first" });
  return {
    element: h("div", {}, who, how, frames),
    update(each) {
      setText(who, each.who);
      setText(how, each.how);
      setText(frames, each.frames);
      show(frames, each.frames !== "");
    },
  };
}
