// The step of each rank of a node, beside the step of the rank that is furthest.

import { h, keep, setText, set, style } from "./dom.js";
import { count } from "./format.js";

const RANKS_MAX = 16; // bars in one cell; a host with more workers shows its first ones

// The number of steps behind the furthest from which a rank stands out. Nodes report once a second and not at the same
// time, so the last reports of two are up to two seconds apart.
export function stragglerFrom(stepsPerSecond) {
  return 2 + 2 * (stepsPerSecond ?? 0);
}

export function stepsCell() {
  const bars = h("span", { class: "ranks-bars", "aria-hidden": "true" });
  const content = h("span");
  const behind = h("span", { class: "behind" });
  const element = h("td", { class: "steps number" }, content, behind, bars);
  return {
    element,
    update(node, most, slack) {
      const steps = node.steps.slice(0, RANKS_MAX);
      const lag = node.least === null ? 0 : most - node.least;
      setText(content, node.least === null ? "" : count(node.least));
      setText(behind, lag > slack ? `−${count(lag)}` : "");
      set(element, "title", titleOf(node, lag));
      keep(bars, steps.map((step, index) => ({ step, index, most, slack })), (rank) => rank.index, rankBar);
    },
  };
}

function titleOf(node, lag) {
  if (node.least === null) return null;
  const age = node.step_age_s === null ? "" : `; last step ${Math.round(node.step_age_s)} s ago`;
  return `${lag ? `${count(lag)} behind the furthest rank` : "as far as any rank"}${age}`;
}

function rankBar() {
  const level = h("i");
  const element = h("span", {}, level);
  return {
    element,
    update({ step, most, slack }) {
      const lag = step === null ? null : most - step;
      set(element, "data-late", lag !== null && lag > slack);
      style(level, "height", lag === null ? "0" : `${Math.round(100 * Math.max(0.15, 1 - lag / (4 * Math.max(1, slack))))}%`);
    },
  };
}
