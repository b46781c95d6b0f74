// One whole job: its panels in the order in which questions come up.

import { chartsPanel } from "./charts.js";
import { commandsPanel } from "./commands.js";
import { h } from "./dom.js";
import { eventsPanel } from "./events.js";
import { failurePanel } from "./failure.js";
import { headline } from "./headline.js";
import { ledgerPanel } from "./ledger.js";
import { nodesOf, nodesPanel } from "./nodes.js";
import { earlierPanel, lostPanel } from "./past.js";
import { roundsPanel } from "./rounds.js";
import { stacksPanel } from "./stacks.js";
import { ENDED } from "./format.js";

const RECENT_S = 600; // a failure comes first for so long, while people come to see what happened

export function jobPage() {
  const top = headline();
  const stacks = stacksPanel();
  const charts = chartsPanel();
  const ledger = ledgerPanel();
  const nodes = nodesPanel();
  const lost = lostPanel();
  const rounds = roundsPanel();
  const failure = failurePanel();
  const events = eventsPanel();
  const earlier = earlierPanel();
  const commands = commandsPanel();
  const parts = [top, stacks, charts, ledger, nodes, lost, rounds, failure, events, earlier, commands];
  const element = h("div", { class: "job" }, ...parts.map((part) => part.element));
  return {
    element,
    // `elapsed`: seconds since the view was made, for ages.
    update(data, elapsed) {
      const view = { ...data.status, nodes: nodesOf(data.nodes) };
      top.update(view, elapsed);
      stacks.update(view.job, view.world_size > 0 && !ENDED.has(view.state));
      charts.update(view, data.series, elapsed);
      ledger.update(view.ledger);
      nodes.update(view);
      lost.update(view, elapsed);
      rounds.update(view, elapsed);
      failure.update(view, elapsed);
      const before = isUrgent(view, elapsed) ? top.element : rounds.element;
      if (failure.element.previousSibling !== before) before.after(failure.element);
      events.update(view, data.revision);
      earlier.update(view, elapsed);
      commands.update(view.job, ENDED.has(view.state));
    },
  };
}

function isUrgent({ state, failure }, elapsed) {
  return failure !== null && (state === "failed" || failure.age_s + elapsed < RECENT_S);
}
