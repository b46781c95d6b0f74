// One node, chosen in the table: all that is known of it, and what to type to act on it.

import { command, copyable } from "./commands.js";
import { badge, h, keep, name, say, show } from "./dom.js";
import { count, duration, toneOfNode } from "./words.js";

const RANKS_MAX = 64; // named one by one; more are left to `nodeclient status --json`

export function nodeDetail(close) {
  const title = name();
  const state = badge();
  const facts = h("dl", { class: "facts" });
  const drain = copyable();
  const button = h("button", { type: "button", class: "quiet" }, "Close");
  button.addEventListener("click", close);
  const element = h("section", { class: "detail", "aria-label": "The chosen node" },
    h("div", { class: "row" }, h("h3", {}, title), state.element, button), facts, drain.element);
  return {
    element,
    update(node, most) {
      show(element, node !== null);
      if (node === null) return;
      say(title, node.node);
      state.update(node.state, toneOfNode(node.state));
      keep(facts, factsOf(node, most), (each) => each.label, fact);
      drain.update(command(node.drained ? "undrain" : "drain", node.node));
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
    { label: "Steps", text: stepsOf(node, most) },
    { label: "Version", text: node.release ?? (node.protocol === null ? "" : `protocol ${node.protocol}`) },
  ];
  return facts.filter((each) => each.text);
}

function stepsOf(node, most) {
  const steps = node.steps.slice(0, RANKS_MAX);
  if (node.least === null) return node.ranks.length ? "none reported by its workers" : "";
  const told = steps.map((step, index) => {
    const behind = step !== null && step < most ? ` (−${count(most - step)})` : "";
    return `rank ${node.ranks[index] ?? `local ${index}`}: ${step === null ? "none" : count(step)}${behind}`;
  });
  return told.join(" · ");
}

function fact({ label }) {
  const words = h("dd");
  return { element: h("div", {}, h("dt", {}, label), words), update: ({ text }) => say(words, text) };
}
