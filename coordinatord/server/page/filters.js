// Filters of the nodes of a job: by state, by a worker that is behind, and by release where there are several.

import { h, set, setText, show } from "./dom.js";
import { count, toneOfNode } from "./format.js";

// The filters that make a difference, each with the number of its nodes.
export function filtersOf(nodes) {
  const states = groups(nodes, (node) => node.state).map(([state, number]) => ({
    key: `state ${state}`, text: `${count(number)} ${state}`, tone: toneOfNode(state), has: (node) => node.state === state,
  }));
  const behind = nodes.filter(isBehind).length;
  const late = behind ? [{ key: "behind", text: `${count(behind)} behind`, tone: "busy", has: isBehind }] : [];
  const releases = groups(nodes, releaseOf).map(([release, number]) => ({
    key: `release ${release}`, text: `${count(number)} on ${release}`, tone: null, has: (node) => releaseOf(node) === release,
  }));
  const found = [...states, ...late, ...(releases.length > 1 ? releases : [])];
  return found.length > 1 ? found : [];
}

function isBehind(node) {
  return node.behind > 0;
}

function groups(nodes, keyOf) {
  const counts = new Map();
  for (const node of nodes) counts.set(keyOf(node), (counts.get(keyOf(node)) ?? 0) + 1);
  return [...counts];
}

// The release of a node's program, or what else is known of its age.
export function releaseOf({ release, protocol }) {
  return release ?? (protocol === null ? "an unknown version" : `protocol ${protocol}`);
}

export function filterChip(choose) {
  const shape = h("i");
  const content = h("span");
  const element = h("button", { type: "button", class: "chip" }, shape, content);
  let key = "";
  element.addEventListener("click", () => choose(key));
  return {
    element,
    update(filter) {
      key = filter.key;
      setText(content, filter.text);
      set(element, "data-tone", filter.tone);
      show(shape, filter.tone !== null);
      set(element, "aria-pressed", filter.pressed ? "true" : "false");
    },
  };
}
