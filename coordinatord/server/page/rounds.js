// The history of a run: a band in proportion to time, and beneath it each round with the reasons of its changes.

import { bar, IN_A_ROUND, swatch, total } from "./activities.js";
import { h, keep, setText, set, show, style } from "./dom.js";
import { ago, begunWords, clock, count, duration, ENDED, plural } from "./format.js";

const FEW = 5; // rounds that are listed until the reader opens the rest

export function roundsPanel() {
  const band = h("div", { class: "band", role: "img" });
  const from = h("span");
  const until = h("span");
  const list = h("ol", { class: "rounds", reversed: true });
  const all = h("button", { type: "button", class: "quiet", "aria-expanded": "false" });
  const number = h("span", { class: "aside" });
  const element = h("section", { class: "panel", "aria-labelledby": "rounds-title" },
    h("header", {}, h("h2", { id: "rounds-title" }, "Rounds"), number),
    band, h("div", { class: "axis", "aria-hidden": "true" }, from, until), list, all);
  let again = () => {};
  all.addEventListener("click", () => {
    set(all, "aria-expanded", all.getAttribute("aria-expanded") !== "true");
    again();
  });
  return {
    element,
    update(view, elapsed) {
      const { rounds } = view;
      show(element, rounds.length > 0);
      if (!rounds.length) return;
      const parts = bandOf(view);
      const span = parts.reduce((sum, part) => sum + total(part.seconds), 0);
      const ended = ENDED.has(view.state);
      const since = elapsed + (ended ? view.state_s : 0);
      keep(band, parts, (part) => part.key, piece);
      set(band, "aria-label", `${plural(rounds.length, "round")} in ${duration(span)}; each is described below`);
      setText(from, clock(span + since));
      setText(until, ended ? clock(since) : "now");
      setText(number, rounds[0].round > 1 ? `the last ${count(rounds.length)}` : plural(rounds.length, "round"));
      again = () => {
        const open = all.getAttribute("aria-expanded") === "true";
        const newest = rounds.toReversed();
        keep(list, (open ? newest : newest.slice(0, FEW)).map((round) => ({ round, elapsed })), (item) => item.round.round, entry);
        show(all, rounds.length > FEW);
        setText(all, open ? "Show fewer" : `Show all ${count(rounds.length)}`);
      };
      again();
    },
  };
}

// The rounds, and at the end the time since the last one.
function bandOf(view) {
  const parts = view.rounds.map((round) => ({ key: round.round, label: count(round.round), seconds: round.seconds }));
  const shown = parts.reduce((sum, part) => sum + total(part.seconds), 0);
  const whole = view.rounds[0].round === 1 ? view.ledger.total : null;
  const last = view.rounds.at(-1);
  const since = whole !== null ? whole - shown : ENDED.has(view.state) ? 0 : last.ended_s ?? 0;
  if (since > 0.05) parts.push({ key: "since", label: "", seconds: { waiting: since } });
  return parts;
}

function piece({ label }) {
  const causes = bar({ class: "bar" }, true);
  const element = h("div", {}, causes.element, h("span", { "aria-hidden": "true" }, label));
  return {
    element,
    update(part) {
      const seconds = total(part.seconds);
      style(element, "flexGrow", String(Number(seconds.toPrecision(4))));
      causes.update(part.seconds);
      set(element, "title", part.label ? `Round ${part.label}: ${duration(seconds)}` : `Since then: ${duration(seconds)}`);
    },
  };
}

function entry() {
  const title = h("h3");
  const size = h("span", { class: "size" });
  const planned = h("span", { class: "chip" }, "planned");
  const charged = h("span", { class: "chip", "data-tone": "bad" }, "cost a restart");
  const when = h("span", { class: "when" });
  const formed = line("formed");
  const begun = line("begun");
  const stopped = line("stopped");
  const ended = line("ended");
  const causes = bar({ class: "bar thin", "aria-hidden": "true" }, true);
  const spent = h("p", { class: "spent" });
  const element = h("li", {},
    h("div", { class: "row" }, title, size, planned, charged, when),
    causes.element, formed.element, begun.element, stopped.element, ended.element, spent);
  return {
    element,
    update({ round, elapsed }) {
      setText(title, `Round ${count(round.round)}`);
      setText(size, `${plural(round.nodes, "node")} · ${plural(round.workers, "worker")}`);
      show(planned, Boolean(round.planned));
      show(charged, Boolean(round.charged));
      setText(when, `formed ${ago(round.formed_s + elapsed)}`);
      set(when, "title", clock(round.formed_s + elapsed));
      formed.update(round.formed);
      begun.update(begunText(round.begun));
      stopped.update(round.stopped === round.ended ? null : round.stopped);
      ended.update(round.ended);
      causes.update(round.seconds);
      keep(spent, spentOf(round.seconds), (part) => part.key, sum);
    },
  };
}

function begunText(begun) {
  if (!begun) return null;
  const whyNot = begun.why_not ? `; not in place on ${begun.why_not}` : "";
  return begunWords(begun) + whyNot + (begun.why_cold ? `; cold on ${begun.why_cold}` : "");
}

function line(label) {
  const content = h("span");
  const element = h("p", { class: "why" }, h("b", {}, label), content);
  return {
    element,
    update(text) {
      show(element, Boolean(text));
      if (text) setText(content, text);
    },
  };
}

function spentOf(seconds) {
  return IN_A_ROUND.filter((key) => seconds[key] >= 0.05).map((key) => ({ key, seconds: seconds[key] }));
}

function sum({ key }) {
  const content = h("span");
  const element = h("span", { class: "part" }, swatch(key), content);
  return { element, update: (part) => setText(content, `${key} ${duration(part.seconds)}`) };
}
