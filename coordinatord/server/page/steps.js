// The step of each rank of a node, beside the step of the rank that is furthest.

import { h, keep, setText, set, style } from "./dom.js";
import { count, duration } from "./format.js";

const RANKS_MAX = 16; // bars in one cell; a host with more workers shows its first ones

export function stepsCell() {
  const bars = h("span", { class: "ranks-bars", "aria-hidden": "true" });
  const content = h("span");
  const behind = h("span", { class: "behind" });
  const element = h("td", { class: "steps number" }, content, behind, bars);
  return {
    element,
    update(node, most) {
      const steps = node.steps.slice(0, RANKS_MAX);
      setText(content, node.least === null ? "" : count(node.least));
      setText(behind, node.behind ? `−${count(node.behind)}` : "");
      set(element, "title", titleOf(node));
      keep(bars, steps.map((step, index) => ({ step, index, lag: most - step, behind: node.behind })), (rank) => rank.index, rankBar);
    },
  };
}

function titleOf(node) {
  if (node.least === null) return null;
  const age = node.step_age_s === null ? "" : `; last step ${duration(node.step_age_s)} ago`;
  return `${node.behind ? `${count(node.behind)} behind the furthest rank` : "as far as any rank"}${age}`;
}

// A bar for each rank; of a node that is behind, those that are nearly as far behind as its last one stand out.
function rankBar() {
  const level = h("i");
  const element = h("span", {}, level);
  return {
    element,
    update({ step, lag, behind }) {
      const late = step !== null && behind > 0 && 2 * lag >= behind;
      set(element, "data-late", late);
      style(level, "height", step === null ? "0" : late ? "35%" : "100%");
    },
  };
}
