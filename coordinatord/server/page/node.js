// One node, chosen in the table: all that is known of it, and the commands for it.

import { actButton } from "./acts.js";
import { command, copyable, drain, quoted, undrain } from "./commands.js";
import { badge, h, keep, name, setText, show } from "./dom.js";
import { releaseOf } from "./filters.js";
import { bytes, count, duration, milliseconds, percent, plural, toneOfNode } from "./format.js";

const RANKS_MAX = 64; // they are named one by one; `nodeclient status --json` has more

export function nodeDetail(close) {
  const title = name();
  const state = badge();
  const facts = h("dl", { class: "facts" });
  const logs = copyable();
  const line = copyable();
  const act = actButton();
  const button = h("button", { type: "button", class: "quiet" }, "Close");
  button.addEventListener("click", close);
  const element = h("section", { class: "detail", "aria-label": "The chosen node" },
    h("div", { class: "row" }, h("h3", {}, title), state.element, button), facts, logs.element, h("div", { class: "row" }, line.element, act.element));
  return {
    element,
    update(node, { job, most }) {
      show(element, node !== null);
      if (node === null) return;
      setText(title, node.node);
      state.update(node.state, toneOfNode(node.state));
      keep(facts, factsOf(node, most), (each) => each.label, fact);
      show(logs.element, node.log_dir !== null);
      logs.update(command("logs", job, ` --node=${quoted(node.node)}`));
      line.update(command(node.drained ? "undrain" : "drain", node.node));
      act.update(node.drained ? undrain(node.node) : drain(node.node));
    },
  };
}

function factsOf(node, most) {
  const facts = [
    { label: "Why", text: node.reason },
    { label: "Host", text: node.host },
    { label: "Address", text: node.address },
    { label: "Last seen", text: `${duration(node.last_seen_s)} ago` },
    { label: "Group rank", text: node.group_rank === null ? "" : count(node.group_rank) },
    { label: "PIDs", text: pidsOf(node) },
    { label: "Steps", text: stepsOf(node, most) },
    { label: "Lateness", text: latenessOf(node) },
    { label: "Kept state", text: keptOf(node) },
    { label: "Version", text: releaseOf(node) },
    { label: "Logs", text: node.log_dir === null ? "" : `${node.log_dir} (on ${node.host})` },
  ];
  return facts.filter((each) => each.text);
}

function pidsOf({ pids, ranks }) {
  return pids.slice(0, RANKS_MAX).map((pid, index) => `${rankOf(ranks, index)}: ${pid || "has ended"}`).join(" · ");
}

function rankOf(ranks, index) {
  return `rank ${ranks[index] ?? `local ${index}`}`;
}

function stepsOf(node, most) {
  const steps = node.steps.slice(0, RANKS_MAX);
  if (node.least === null) return node.ranks.length ? "none reported by its workers" : "";
  const data = steps.map((step, index) => {
    const behind = step !== null && step < most ? ` (−${count(most - step)})` : "";
    return `${rankOf(node.ranks, index)}: ${step === null ? "none" : count(step)}${behind}`;
  });
  return data.join(" · ");
}

// How its latest worker comes to collectives.
function latenessOf({ late }) {
  return late ? `rank ${late.rank} is last in ${percent(late.last)} of collectives, usually by ${milliseconds(late.late_s)}` : "";
}

// What the node keeps of its workers' state, and what that costs.
function keptOf({ kept }) {
  if (!kept) return "";
  const limit = kept.limit_bytes === null ? "" : ` of ${bytes(kept.limit_bytes)}`;
  const parts = [`${bytes(kept.used_bytes)}${limit}`];
  if (kept.interval_steps !== null) parts.push(`saved every ${plural(kept.interval_steps, "step")}`);
  if (kept.save_s !== null) parts.push(`the last save took ${duration(kept.save_s)}`);
  if (kept.copied_to) parts.push(`step ${count(kept.copied_step)} is copied to ${kept.copied_to}`);
  if (kept.skipped) parts.push(`${plural(kept.skipped, "save")} left out`);
  if (kept.problem) parts.push(kept.problem);
  return parts.join(" · ");
}

function fact({ label }) {
  const content = h("dd");
  return { element: h("div", {}, h("dt", {}, label), content), update: ({ text }) => setText(content, text) };
}
