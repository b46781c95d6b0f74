// The last failure: the worker that failed first, its error, and the consequences.

import { command, copyable } from "./commands.js";
import { h, keep, setProse, setText, show } from "./dom.js";
import { ago, clock, count } from "./format.js";

const RANKS_NAMED_MAX = 4; // the finding counts the others

export function failurePanel() {
  const facts = h("dl", { class: "facts" });
  const lines = h("pre", { tabindex: "0", "aria-label": "The worker's last lines" });
  const logs = copyable();
  const title = h("h2", { id: "failure-title" });
  const when = h("span", { class: "aside" });
  const element = h("section", { class: "panel failure", "aria-labelledby": "failure-title" },
    h("header", {}, title, when), facts, logs.element, lines);
  return {
    element,
    update({ job, failure }, elapsed) {
      show(element, failure !== null);
      if (failure === null) return;
      setText(title, `Round ${count(failure.round)} ${verbOf(failure)}: ${whoOf(failure)}`);
      setText(when, ago(failure.age_s + elapsed));
      when.title = clock(failure.age_s + elapsed);
      keep(facts, factsOf(failure), (fact) => fact.label, fact);
      show(logs.element, Boolean(failure.log));
      const { rank } = failure.left_early ? failure.early[0] : failure;
      logs.update(command("logs", job, ` --rank ${rank} --round ${failure.round}`));
      show(lines, linesOf(failure).length > 0);
      setText(lines, linesOf(failure).join("\n"));
    },
  };
}

function verbOf(failure) {
  if (failure.cause === "divergence") return "diverged";
  return failure.hang ? "hung" : "failed";
}

function whoOf(failure) {
  if (failure.cause === "divergence") return "replicas are not alike";
  if (failure.hang === "network") return "a collective completes for none";
  if (failure.left_early) return `rank ${failure.early[0].rank} on ${failure.early[0].node} left early`;
  if (failure.shared_by) return failure.shared_by;
  return failure.hang_ranks.length ? ranksOf(failure) : `rank ${failure.rank} on ${failure.host}`;
}

function ranksOf(failure) {
  const named = failure.hang_ranks.slice(0, RANKS_NAMED_MAX).join(", ");
  return `ranks ${named}${failure.hang_ranks.length > RANKS_NAMED_MAX ? " and more" : ""}`;
}

function causeOf(failure) {
  if (failure.cause === "divergence") return "ranks that should have the same state, and do not";
  if (failure.hang === "network") return "no single rank: they wait in collectives that complete for none";
  if (failure.left_early) return failure.left_early;
  if (failure.hang_ranks.length) {
    return ranksOf(failure) + (failure.hang === "mismatched" ? ", which wait in different collectives" : "");
  }
  const one = `rank ${failure.rank} (local rank ${failure.local_rank}) of node ${failure.node}, host ${failure.host}`;
  return failure.shared_by ? `${failure.shared_by}, with the same error; shown is that of ${one}` : one;
}

function factsOf(failure) {
  const process = failure.pid === null ? "" : `, process ${failure.pid}`;
  const whose = failure.left_early || failure.shared_by ? `rank ${failure.rank}: ` : "";
  const facts = [
    { label: failure.excused_by ? "Failed" : "Root cause", text: causeOf(failure) },
    { label: "How", text: `${whose}${failure.how}${process}` },
    { label: "Error", text: failure.error },
    { label: "Cause", text: failure.cause === "unknown" ? "" : failure.cause.replace("_", " ") },
    { label: "Finding", text: failure.message },
    { label: "Before", text: failure.before },
    { label: "Behind", text: failure.behind },
    { label: "Then", text: failure.then },
    { label: "Not charged", text: failure.excused_by && `lost node ${failure.excused_by} may have caused this failure` },
    { label: "Log", text: logOf(failure) },
    { label: "Hint", text: failure.hint },
  ];
  return facts.filter((each) => each.text);
}

function logOf(failure) {
  if (failure.left_early && failure.early_log) {
    const [left] = failure.early;
    return `${failure.early_log} (of rank ${left.rank}, on node ${left.node})`;
  }
  return failure.log ? `${failure.log} (on ${failure.host})` : "";
}

// What the worker that failed wrote last; where it failed for lack of another one, what that one wrote too, if known.
function linesOf(failure) {
  if (!failure.left_early) return failure.last_lines;
  const [left] = failure.early;
  const needed = `(rank ${failure.rank} on ${failure.node}, which still needed rank ${left.rank}, wrote this to stderr)`;
  if (failure.early_lines === null) return [needed, ...failure.last_lines];
  const said = failure.early_lines.length ? failure.early_lines : ["(nothing)"];
  const exited = `(rank ${left.rank} on ${left.node}, which exited with 0, wrote this to stderr last)`;
  return [needed, ...failure.last_lines, exited, ...said];
}

function fact({ label }) {
  const content = h("dd");
  const element = h("div", {}, h("dt", {}, label), content);
  const write = label === "Hint" ? setProse : setText;
  return { element, update: ({ text }) => write(content, text) };
}
