// The run's seconds by activity: one bar, and the same in figures.

import { bar, ACTIVITIES, swatch } from "./activities.js";
import { h, setText, set, show } from "./dom.js";
import { duration, percent } from "./format.js";

export function ledgerPanel() {
  const stack = bar({ class: "bar tall", role: "img" });
  const entries = ACTIVITIES.map(entry);
  const whole = h("span", { class: "aside" });
  const element = h("section", { class: "panel", "aria-labelledby": "ledger-title" },
    h("header", {}, h("h2", { id: "ledger-title" }, "Where the time went"), whole),
    stack.element,
    h("dl", { class: "legend" }, ...entries.map((each) => each.element)));
  return {
    element,
    update(ledger) {
      setText(whole, `${duration(ledger.total)} in all`);
      stack.update(ledger.seconds);
      set(stack.element, "aria-label", ACTIVITIES.filter(({ key }) => ledger.seconds[key] > 0)
        .map(({ key, label }) => `${label} ${percent(share(ledger, key))}`).join(", "));
      for (const each of entries) each.update(ledger);
    },
  };
}

function entry({ key, label, means }) {
  const part = h("dd", { class: "share" });
  const seconds = h("dd", { class: "muted" });
  const element = h("div", { title: `${label}: ${means}` }, h("dt", {}, swatch(key), label), part, seconds);
  return {
    element,
    update(ledger) {
      const spent = ledger.seconds[key] ?? 0;
      show(element, spent > 0);
      setText(part, percent(share(ledger, key)));
      setText(seconds, duration(spent));
    },
  };
}

function share(ledger, key) {
  return ledger.total > 0 ? (ledger.seconds[key] ?? 0) / ledger.total : 0;
}
