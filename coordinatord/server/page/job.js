// One whole job: its panels in the order in which questions come up.

import { commandsPanel } from "./commands.js";
import { h } from "./dom.js";
import { failurePanel } from "./failure.js";
import { headline } from "./headline.js";
import { ledgerPanel } from "./ledger.js";
import { nodesOf, nodesPanel } from "./nodes.js";
import { roundsPanel } from "./rounds.js";
import { ENDED } from "./format.js";

export function jobPage() {
  const top = headline();
  const ledger = ledgerPanel();
  const rounds = roundsPanel();
  const failure = failurePanel();
  const nodes = nodesPanel();
  const commands = commandsPanel();
  const parts = [top, ledger, rounds, failure, nodes, commands];
  const element = h("div", { class: "job" }, ...parts.map((part) => part.element));
  return {
    element,
    // `elapsed`: seconds since the view was made, for ages.
    update(data, elapsed) {
      const view = { ...data.status, nodes: nodesOf(data.nodes) };
      top.update(view, elapsed);
      ledger.update(view.ledger);
      rounds.update(view, elapsed);
      failure.update(view.failure, elapsed);
      // A reader of a failed job looks for the failure first.
      const before = view.state === "failed" ? top.element : rounds.element;
      if (failure.element.previousSibling !== before) before.after(failure.element);
      nodes.update(view);
      commands.update(view.job, ENDED.has(view.state));
    },
  };
}
