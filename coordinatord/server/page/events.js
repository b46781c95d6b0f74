// The events of a job, newest first, filtered by kind and by words. They are fetched when something was recorded.

import { ask } from "./answers.js";
import { h, keep, name, set, setText, show } from "./dom.js";
import { count, moment } from "./format.js";

const SHOWN_MAX = 200; // `nodeclient events` has all
const ANSWER_MAX = 1_000; // events in one answer of the coordinator

// The coordinator filters by kind, so that the newest of a kind are found behind ten thousand others.
const GROUPS = [
  { name: "All", kinds: [] },
  {
    name: "Interruptions",
    kinds: ["RoundStopped", "RoundEnded", "RunEnded", "NodeLost", "NodeLeftBehind", "NodesSilent", "FirstStepOverdue", "TrainingStalled", "BusyWorkerAwaited", "ExitOverdue", "WorkersUnseen", "ReplicasDiverged", "JobStopAsked"],
  },
  {
    name: "Rounds",
    kinds: [
      "RunOpened", "RoundFormed", "RoundStarted", "TrainingBegan", "FirstStepOverdue", "TrainingCaughtUp", "TrainingStalled",
      "BusyWorkerAwaited", "ExitOverdue", "WorkersUnseen", "ReplicasDiverged", "TrainingResumed", "RoundStopped", "RoundEnded", "RoundsMissed", "RunEnded",
    ],
  },
  { name: "Nodes", kinds: ["NodeJoined", "NodeLost", "NodeReleased", "NodeSucceeded", "NodeLeftBehind", "NodesSilent", "NodesHeard", "PreflightBegan", "PreflightEnded"] },
];

export function eventsPanel() {
  const words = h("input", { type: "search", placeholder: "Node, reason, kind …", "aria-label": "Find events" });
  const number = h("span", { class: "aside" });
  const list = h("ol", { class: "events", reversed: true, tabindex: "0", "aria-label": "Events, newest first" });
  const none = h("p", { class: "muted" }, "No event matches.");
  const failed = h("p", { class: "note" });
  const chips = GROUPS.map((each) => groupChip(each, choose));
  const element = h("section", { class: "panel", "aria-labelledby": "events-title" },
    h("header", {}, h("h2", { id: "events-title" }, "Events"), number),
    h("div", { class: "tools" }, words, h("div", { class: "chips", role: "group", "aria-label": "Only events about" }, ...chips.map((each) => each.element))),
    failed, list, none);

  let job = null;
  let state = ""; // the run and revision whose events are wanted
  let group = GROUPS[0];
  let known = { state: null, upto: null, events: [] };
  let loading = false;

  const draw = () => {
    const wanted = words.value.trim().toLowerCase();
    const found = known.events.filter((event) => matches(event, wanted));
    keep(list, found, (event) => event.id, entry);
    const many = known.events.length === SHOWN_MAX ? `newest ${count(SHOWN_MAX)}` : count(known.events.length);
    setText(number, found.length === known.events.length ? many : `${count(found.length)} of ${many}`);
    show(none, known.state !== null && found.length === 0);
    show(list, found.length > 0);
    chips.forEach((each) => each.update(group));
  };
  const load = async () => {
    if (loading || known.state === state) return;
    loading = true;
    const before = known;
    const as_of = state;
    try {
      const found = await read(job, group, before);
      if (before === known) known = { ...found, state: as_of };
      show(failed, false);
    } catch (error) {
      setText(failed, `The events cannot be read: ${error.message}`);
      show(failed, true);
      if (before === known) known = { ...known, state: as_of }; // the next event tries again
    } finally {
      loading = false;
    }
    draw();
    load(); // what was recorded meanwhile, or another group
  };
  function choose(wanted) {
    group = wanted;
    known = { state: null, upto: null, events: [] };
    draw();
    load();
  }
  words.addEventListener("input", draw);
  show(failed, false);
  return {
    element,
    // A `revision` other than the last one means that there may be new events.
    update(view, revision) {
      job = view.job;
      state = `${view.run} ${revision}`;
      load();
    },
  };
}

// The newest events of a group, beginning with those that are `known`.
async function read(job, { kinds }, known) {
  const query = new URLSearchParams(known.upto === null ? { last: SHOWN_MAX } : { after: known.upto });
  if (kinds.length) query.set("kind", kinds.join(","));
  const { answer: body, why } = await ask(`/v1/jobs/${encodeURIComponent(job)}/events?${query}`);
  if (!body) throw new Error(why);
  if (body.events.length === ANSWER_MAX) return read(job, { kinds }, { upto: null, events: [] });
  return { upto: body.upto, events: [...body.events.reverse(), ...known.events].slice(0, SHOWN_MAX) };
}

function matches(event, words) {
  if (!words) return true;
  const round = event.round === null ? "" : `round ${event.round}`;
  return [event.what, event.reason, event.node ?? "", round].some((text) => text.toLowerCase().includes(words));
}

// Whether a text names a node: first, or as a node or host. A node "a" is not in "replaced by a younger nodeclient".
function names(text, node) {
  const letters = node.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return new RegExp(`(^|\\b(node|host) )${letters}(?![\\w-])`).test(text);
}

function groupChip(group, choose) {
  const element = h("button", { type: "button", class: "chip" }, group.name);
  element.addEventListener("click", () => choose(group));
  return { element, update: (chosen) => set(element, "aria-pressed", chosen === group ? "true" : "false") };
}

function entry() {
  const when = h("time");
  const kind = h("b");
  const node = name();
  const reason = h("span");
  return {
    element: h("li", {}, when, kind, h("span", { class: "what" }, node, reason)),
    update(event) {
      setText(when, moment(event.at));
      set(when, "datetime", new Date(event.at * 1000).toISOString());
      setText(kind, event.kind.startsWith("Round") && event.round !== null ? `${event.what} (${count(event.round)})` : event.what);
      setText(node, event.node === null || names(event.reason, event.node) ? "" : event.node);
      setText(reason, event.reason);
    },
  };
}
