// Commands to type, and beside them buttons that do the same, for viewers who may act.

import { actButton } from "./acts.js";
import { h, keep, setText, set, show } from "./dom.js";
import { ago } from "./format.js";

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

// Copy a selection, since `navigator.clipboard` exists only where pages come over TLS.
function copy(element) {
  getSelection().selectAllChildren(element);
  return document.execCommand("copy");
}

export function commandsPanel() {
  const list = h("dl", { class: "commands" });
  const element = h("details", { class: "panel" }, h("summary", {}, h("h2", {}, "Act on this job")),
    h("p", { class: "muted" }, "Type these commands where nodeclient is installed; what they do is recorded in the job's events."), list);
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
    { what: "Where the workers stand, and which of them all others wait for", text: command("stacks", job) },
    { what: "Begin a new round, as planned: workers save first", text: command("restart", job), act: restart(job) },
    { what: "End the job, as planned: workers save first", text: command("stop", job), act: stop(job) },
    { what: "Let a node's workers save, and keep the node out of rounds", text: `nodeclient drain --coord ${quoted(endpoint())} NODE` },
  ];
  return ended ? [...always, { what: "Forget the job", text: command("forget", job) }] : [...always, ...living];
}

function restart(job) {
  return {
    path: `/v1/jobs/${encodeURIComponent(job)}/restart`,
    title: `Restart ${job}?`,
    about: "Its workers save their state and end, and a new round begins. No restart of its budget is used.",
    verb: "Restart",
  };
}

function stop(job) {
  return {
    path: `/v1/jobs/${encodeURIComponent(job)}/stop`,
    title: `Stop ${job}?`,
    about: "Its workers save their state and end, and so does the job. Nodes that join again begin a new run.",
    verb: "Stop",
  };
}

export function drain(node) {
  return {
    path: `/v1/nodes/${encodeURIComponent(node)}/drain`,
    title: `Drain ${node}?`,
    about: "Its workers save their state, it leaves its job, and it is in no round until it is let in again.",
    verb: "Drain",
  };
}

export function undrain(node) {
  return {
    path: `/v1/nodes/${encodeURIComponent(node)}/undrain`,
    title: `Let ${node} in again?`,
    about: "It may join jobs again. A job that it joins may begin a new round.",
    verb: "Undrain",
  };
}

function entry({ what, act }) {
  const line = copyable();
  const button = act ? actButton() : null;
  return {
    element: h("div", {}, h("dt", {}, what), h("dd", {}, line.element, ...(button ? [button.element] : []))),
    update(wanted) {
      line.update(wanted.text);
      button?.update(wanted.act);
    },
  };
}

function pardon(host) {
  return {
    path: `/v1/nodes/${encodeURIComponent(host)}/pardon`,
    title: `Pardon ${host}?`,
    about: "Its charges and its quarantine are dropped, and the next round may have it. Its next health check counts again.",
    verb: "Pardon",
  };
}

// Nodes that an operator keeps out of all jobs.
export function drainedPanel() {
  return namesPanel("Drained nodes", ({ node, reason }) => ({ name: node, text: reason || node, act: undrain(node) }));
}

// Hosts that rounds do without if they can, and those that may be next.
export function chargedPanel() {
  return namesPanel("Charged and quarantined hosts", (host) => ({ name: host.host, text: chargesOf(host), act: pardon(host.host) }));
}

function chargesOf({ host, quarantined, weight, charges }) {
  const each = charges.map(({ fault, error, age_s: age }) => `${fault}${error && ` (${error})`} ${ago(age)}`);
  return `${host}: ${[quarantined, each.length ? `charged with ${each.join(", ")}, which weighs ${Number(weight.toPrecision(2))} by now` : ""].filter(Boolean).join("; ")}`;
}

// A panel of names, each with the act that ends what its text says.
function namesPanel(title, markOf) {
  const list = h("dl", { class: "commands" });
  const element = h("section", { class: "panel", "aria-label": title }, h("header", {}, h("h2", {}, title)), list);
  return {
    element,
    update(marks) {
      show(element, marks.length > 0);
      keep(list, marks.map(markOf), (each) => each.name, mark);
    },
  };
}

function mark() {
  const content = h("dt");
  const line = copyable();
  const button = actButton();
  return {
    element: h("div", {}, content, h("dd", {}, line.element, button.element)),
    update({ name, text, act }) {
      setText(content, text);
      line.update(command(act.verb.toLowerCase(), name));
      button.update(act);
    },
  };
}
