// What a job had: the nodes that it lost lately, and its earlier runs.

import { badge, h, keep, name, set, setText, show } from "./dom.js";
import { ago, clock, count, duration, percent, plural, tone } from "./format.js";

export function lostPanel() {
  const list = h("ol", { class: "past" });
  const number = h("span", { class: "aside" });
  const element = h("section", { class: "panel lost", "aria-labelledby": "lost-title" },
    h("header", {}, h("h2", { id: "lost-title" }, "Lost nodes"), number), list);
  return {
    element,
    update({ lost }, elapsed) {
      show(element, lost.length > 0);
      setText(number, `${plural(lost.length, "node")} within the last hour, not back yet`);
      keep(list, lost.map((node) => ({ ...node, elapsed })), (node) => node.node, lostNode);
    },
  };
}

function lostNode() {
  const title = name();
  const when = h("span", { class: "when" });
  const reason = h("p");
  return {
    element: h("li", {}, h("div", { class: "row" }, h("h3", {}, title), when), reason),
    update({ node, host, reason: why, round, lost_s: lostFor, elapsed }) {
      setText(title, node);
      set(title, "title", host === node ? null : `on host ${host}`);
      setText(when, `${round ? `round ${count(round)} · ` : ""}${ago(lostFor + elapsed)}`);
      set(when, "title", clock(lostFor + elapsed));
      setText(reason, why);
    },
  };
}

export function earlierPanel() {
  const list = h("ol", { class: "past" });
  const element = h("section", { class: "panel earlier", "aria-labelledby": "earlier-title" },
    h("header", {}, h("h2", { id: "earlier-title" }, "Earlier runs")), list);
  return {
    element,
    update({ earlier }, elapsed) {
      show(element, earlier.length > 0);
      keep(list, earlier.map((run) => ({ ...run, elapsed })), (run) => run.run, earlierRun);
    },
  };
}

function earlierRun() {
  const title = name();
  const state = badge();
  const when = h("span", { class: "when" });
  const reason = h("p");
  const facts = h("p", { class: "muted" });
  return {
    element: h("li", {}, h("div", { class: "row" }, h("h3", {}, title), state.element, when), reason, facts),
    update(run) {
      setText(title, run.run);
      state.update(run.state, tone(run.state));
      setText(when, `ended ${ago(run.ended_s + run.elapsed)}`);
      set(when, "title", clock(run.ended_s + run.elapsed));
      setText(reason, run.reason);
      setText(facts, factsOf(run).join(" · "));
    },
  };
}

function factsOf({ step, opened_s: took, goodput }) {
  const facts = [`took ${duration(took)}`, step === null ? "no step reported" : `last at step ${count(step)}`];
  return goodput === null ? facts : [...facts, `${percent(goodput)} goodput`];
}
