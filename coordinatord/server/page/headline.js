// The top of a job: its state, the reason, and the main figures.

import { badge, h, keep, name, setText, set, show } from "./dom.js";
import { ago, begunWords, count, duration, ENDED, NONE, pace, percent, plural, stateOf, toneOf } from "./format.js";

export function headline() {
  const title = name();
  const state = badge();
  const reason = h("p", { class: "reason" });
  const missing = h("p", { class: "note" });
  const laggard = h("p", { class: "note laggard" });
  const unseen = h("p", { class: "note" });
  const meta = h("p", { class: "meta" });
  const figures = h("dl", { class: "figures" });
  const element = h("section", { class: "headline", "aria-labelledby": "job-title" },
    h("div", { class: "heading" }, h("h1", { id: "job-title" }, title), state.element),
    reason, missing, laggard, unseen, meta, figures);
  return {
    element,
    // `elapsed`: seconds since the view was made.
    update(view, elapsed) {
      setText(title, view.job);
      state.update(stateOf(view), toneOf(view));
      setText(reason, view.reason);
      const lacks = view.missing.count > 0 && !ENDED.has(view.state);
      show(missing, lacks);
      if (lacks) setText(missing, missingText(view.missing));
      show(laggard, view.laggard !== null);
      if (view.laggard !== null) setText(laggard, view.laggard.sentence);
      show(unseen, view.unseen !== "");
      setText(unseen, view.unseen);
      setText(meta, metaText(view, elapsed));
      keep(figures, figuresOf(view), (figure) => figure.label, tile);
    },
  };
}

function missingText({ count: number, nodes }) {
  const more = number > nodes.length ? ` and ${count(number - nodes.length)} more` : "";
  return `Missing ${number === 1 ? "node" : "nodes"}: ${nodes.join(", ")}${more}`;
}

function metaText(view, elapsed) {
  const parts = [`Run ${view.run}`];
  if (view.round) parts.push(isInRound(view) ? `round ${count(view.round)}` : `no round (last: ${count(view.round)})`);
  if (ENDED.has(view.state)) parts.push(`took ${duration(view.opened_s)}`, `ended ${ago(view.state_s + elapsed)}`);
  else parts.push(`opened ${ago(view.opened_s + elapsed)}`, `${view.state} for ${duration(view.state_s + elapsed)}`);
  return parts.join(" · ");
}

function isInRound({ world_size: workers }) {
  return workers > 0;
}

function figuresOf(view) {
  const { used, max } = view.restarts;
  const { step, reached } = view.progress;
  const { goodput } = view.ledger;
  return [
    { label: "Goodput", value: percent(goodput), note: goodputWords(view), main: true, none: !goodput || toneOf(view) !== "good" },
    { label: "Step", value: count(step ?? reached), note: stepWords(view) },
    ...sizesOf(view),
    { label: "Restarts", value: max === null ? count(used) : `${count(used)} of ${count(max)}`, note: restartsWords(used, max) },
    ...keptOf(view),
  ];
}

function stepWords({ health, progress, nodes, kept }) {
  if (progress.step === null) return progress.reached === null ? "none reported" : "none yet in this round";
  if (health === "stalled") return `none for ${duration(progress.idle_s)}`;
  const resumed = kept?.resumed ?? null;
  const behind = nodes.filter((node) => node.behind).length;
  const redone = kept?.redone == null ? "" : `, ${plural(kept.redone, "step")} redone`;
  const lacking = kept?.unkept ? `, without ${kept.unkept}` : "";
  const from = resumed === null ? "" : `resumed at ${count(resumed)} from ${kept.resumed_from || "memory"}${redone}${lacking}`;
  return [pace(progress.steps_per_s), behind ? `${plural(behind, "node")} behind` : "", from].filter(Boolean).join(", ");
}

// The step from which training would go on, and what that outlives.
function keptOf({ kept }) {
  if (!kept) return [];
  const newest = Math.max(kept.step ?? -1, kept.disk_step ?? -1);
  return [{ label: "Kept step", value: newest < 0 ? NONE : count(newest), note: keptWords(kept) }];
}

function keptWords(kept) {
  const parts = kept.unstepped ? [kept.unstepped] : [];
  if (kept.step !== null) parts.push(`${count(kept.step)} in memory`);
  if (kept.copied !== null) parts.push(`${count(kept.copied)} outlives any host`);
  if (kept.disk_step !== null) parts.push(`${count(kept.disk_step)} on the disk`);
  if (kept.disk_writing !== null) parts.push(`${count(kept.disk_writing)} is being written`);
  if (kept.disk_problem) parts.push(`the last step is not on the disk: ${kept.disk_problem}`);
  if (kept.copy_problem) parts.push(`not copied: ${kept.copy_problem}`);
  return parts.join(", ") || "none yet";
}

function goodputWords({ ledger }) {
  if (ledger.goodput !== null) return "of the time went into training";
  return ledger.seconds.running ? "not known: no steps reported" : "no step yet";
}

// The size of the job, or the last size of one that has ended.
function sizesOf(view) {
  const last = view.rounds.at(-1);
  if (ENDED.has(view.state) && last) {
    return [
      { label: "Nodes", value: count(last.nodes), note: "in the last round" },
      { label: "Workers", value: count(last.workers), note: "in the last round" },
    ];
  }
  const inRound = view.nodes.filter((node) => node.group_rank !== null).length;
  const notes = [inRound ? `${count(inRound)} in the round` : "none in a round"];
  if (view.spares) notes.push(plural(view.spares, "spare"));
  return [
    { label: "Nodes", value: count(view.nodes.length), note: notes.join(", ") },
    { label: "Workers", value: view.world_size ? count(view.world_size) : NONE, note: begunWords(view.begun) ?? "in the round" },
  ];
}

function restartsWords(used, max) {
  if (max === null) return "counted by torchrun";
  if (max === 0) return "no failure is survived";
  return used < max ? `${count(max - used)} left` : "none left";
}

function tile({ label }) {
  const value = h("dd", { class: "value" });
  const note = h("dd", { class: "note" });
  const element = h("div", {}, h("dt", {}, label), value, note);
  return {
    element,
    update(figure) {
      setText(value, figure.value);
      setText(note, figure.note);
      set(element, "class", figure.main ? "main" : null);
      set(element, "data-none", figure.none);
    },
  };
}
