// Commands to type. The page itself only shows: a reader of it need not be allowed to end a job.

import { h, keep, setText, set } from "./dom.js";

const COPIED_MS = 1_500; // long enough to be seen

// The address at which nodes and commands find this coordinator.
export function endpoint() {
  const port = location.port || (location.protocol === "https:" ? "443" : "80");
  return `${location.hostname}:${port}`;
}

// Quote a word for a POSIX shell: names of jobs and nodes may hold anything printable.
export function quoted(word) {
  return /^[\w.,:@%+=/][\w.,:@%+=/-]*$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

export function command(verb, name, rest = "") {
  const separator = name.startsWith("-") ? "-- " : "";
  return `nodeclient ${verb} --coord ${quoted(endpoint())}${rest} ${separator}${quoted(name)}`;
}

// A command to copy.
export function copyable(text = "") {
  const code = h("code", {}, text);
  const button = h("button", { type: "button", class: "copy" }, "Copy");
  const element = h("span", { class: "command" }, code, button);
  let timer = 0;
  button.addEventListener("click", () => {
    setText(button, copy(code) ? "Copied" : "Select and copy");
    clearTimeout(timer);
    timer = setTimeout(() => setText(button, "Copy"), COPIED_MS);
  });
  return {
    element,
    update(wanted) {
      setText(code, wanted);
      set(button, "aria-label", `Copy: ${wanted}`);
    },
  };
}

// It copies a selection, since `navigator.clipboard` exists only where pages come over TLS.
function copy(element) {
  getSelection().selectAllChildren(element);
  return document.execCommand("copy");
}

export function commandsPanel() {
  const list = h("dl", { class: "commands" });
  const element = h("details", { class: "panel" }, h("summary", {}, h("h2", {}, "Act on this job")),
    h("p", { class: "muted" }, "This page only shows. Type these commands where nodeclient is installed; they are recorded in the job's events."), list);
  return {
    element,
    update(job, ended) {
      keep(list, commandsOf(job, ended), (each) => each.what, entry);
    },
  };
}

function commandsOf(job, ended) {
  const always = [
    { what: "What happened, as it happens", text: command("events", job, " --follow") },
    { what: "The last failure in full, with hints", text: command("report", job) },
  ];
  const living = [
    { what: "Begin a new round, as planned: workers save first", text: command("restart", job) },
    { what: "End the job, as planned: workers save first", text: command("stop", job) },
    { what: "Let a node's workers save, and keep the node out of rounds", text: `nodeclient drain --coord ${quoted(endpoint())} NODE` },
  ];
  return ended ? [...always, { what: "Forget the job", text: command("forget", job) }] : [...always, ...living];
}

function entry({ what }) {
  const line = copyable();
  return { element: h("div", {}, h("dt", {}, what), h("dd", {}, line.element)), update: ({ text }) => line.update(text) };
}

// Nodes that an operator keeps out of all jobs.
export function drainedPanel() {
  const list = h("dl", { class: "commands" });
  const element = h("section", { class: "panel", "aria-labelledby": "drained-title" },
    h("header", {}, h("h2", { id: "drained-title" }, "Drained nodes")), list);
  return {
    element,
    update(marks) {
      element.hidden = marks.length === 0;
      keep(list, marks, (mark) => mark.node, mark);
    },
  };
}

function mark() {
  const content = h("dt");
  const line = copyable();
  return {
    element: h("div", {}, content, h("dd", {}, line.element)),
    update({ node, reason }) {
      setText(content, reason || node);
      line.update(command("undrain", node));
    },
  };
}
