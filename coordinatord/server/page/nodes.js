// The nodes of a job: filtered, sorted, and only the visible rows, so that ten thousand scroll like ten.

import { badge, h, keep, name, setText, set, show, style } from "./dom.js";
import { filterChip, filtersOf, releaseOf } from "./filters.js";
import { nodeDetail } from "./node.js";
import { stepsCell } from "./steps.js";
import { count, duration, spans, toneOfNode } from "./format.js";

const ROW_PX = 36; // as in style.css
const SPARE_ROWS = 8; // above and below what is seen, so that quick scrolling shows no gap
const FILTER_FROM = 10; // nodes: fewer are seen at a glance
const NOW_S = 2.5; // a node that was seen since then counts as seen now: most report once a second
const NATURAL = new Intl.Collator(undefined, { numeric: true });

const COLUMNS = [
  { key: "node", title: "Node", compare: (a, b) => NATURAL.compare(a.node, b.node) },
  { key: "address", title: "Address", compare: (a, b) => NATURAL.compare(a.address, b.address) },
  { key: "state", title: "State", compare: (a, b) => NATURAL.compare(a.state, b.state) },
  { key: "ranks", title: "Ranks", compare: (a, b) => first(a.ranks) - first(b.ranks) },
  { key: "steps", title: "Step", compare: (a, b) => least(a) - least(b) },
  { key: "seen", title: "Seen", compare: (a, b) => b.last_seen_s - a.last_seen_s },
];

function first(ranks) {
  return ranks.length ? ranks[0] : Number.MAX_SAFE_INTEGER;
}

function least(node) {
  return node.least ?? Number.MAX_SAFE_INTEGER;
}

// Rows of the stream as objects, with derived fields.
export function nodesOf({ columns, rows }) {
  return rows.map((row) => {
    const node = Object.fromEntries(columns.map((column, index) => [column, row[index]]));
    const steps = node.steps.filter((step) => step !== null);
    node.least = steps.length ? Math.min(...steps) : null;
    node.most = steps.length ? Math.max(...steps) : null;
    return node;
  });
}

export function nodesPanel() {
  const filter = h("input", { type: "search", placeholder: "Name, host, address, rank …", "aria-label": "Find nodes" });
  const chips = h("div", { class: "chips", role: "group", "aria-label": "Only nodes that are" });
  const number = h("span", { class: "aside" });
  const headers = COLUMNS.map(header);
  const above = spacer();
  const below = spacer();
  const body = h("tbody", {}, above.element, below.element);
  const table = h("table", {}, h("thead", {}, h("tr", {}, ...headers.map((each) => each.element))), body);
  const scroller = h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Nodes" }, table);
  const none = h("p", { class: "muted" }, "No node matches.");
  const detail = nodeDetail(() => choose(null));
  const element = h("section", { class: "panel nodes", "aria-labelledby": "nodes-title" },
    h("header", {}, h("h2", { id: "nodes-title" }, "Nodes"), number),
    h("div", { class: "tools" }, filter, chips), detail.element, scroller, none);

  const pool = [];
  let last = null; // the job's view
  let view = null; // what the rows need of it
  let found = []; // the nodes that pass the filters, sorted
  let only = null; // the chosen filter
  let sorting = { key: null, down: false };
  let chosen = null;

  const draw = () => {
    const height = Math.max(scroller.clientHeight, innerHeight); // it may be about to grow
    const from = Math.max(0, Math.floor(scroller.scrollTop / ROW_PX) - SPARE_ROWS);
    const upTo = Math.min(found.length, Math.ceil((scroller.scrollTop + height) / ROW_PX) + SPARE_ROWS);
    while (pool.length < upTo - from) pool.push(row(choose));
    const context = { ...view, chosen };
    pool.forEach((each, index) => {
      if (index < upTo - from) {
        if (each.element.parentNode === null) body.insertBefore(each.element, below.element);
        each.update(found[from + index], from + index, context);
      } else {
        each.element.remove();
      }
    });
    above.update(from);
    below.update(found.length - upTo);
  };
  const arrange = () => {
    const words = filter.value.trim().toLowerCase();
    found = view.nodes.filter((node) => (only?.has(node) ?? true) && matches(node, words));
    const column = COLUMNS.find((each) => each.key === sorting.key);
    if (column) found.sort(column.compare);
    else found.sort((a, b) => b.behind - a.behind); // the node that is furthest behind comes first
    if (sorting.down) found.reverse();
    headers.forEach((each) => each.update(sorting));
    setText(number, numberOf(found.length, view.nodes));
    set(table, "aria-rowcount", found.length + 1);
    show(none, found.length === 0 && view.nodes.length > 0);
    show(scroller, found.length > 0);
    detail.update(view.nodes.find((node) => node.node === chosen) ?? null, view);
    draw();
  };
  const choose = (node) => {
    chosen = node === chosen ? null : node;
    arrange();
  };
  headers.forEach((each) => each.element.firstChild.addEventListener("click", () => {
    const same = sorting.key === each.key;
    sorting = same && sorting.down ? { key: null, down: false } : { key: each.key, down: same };
    arrange();
  }));
  filter.addEventListener("input", arrange);
  let drawing = 0;
  scroller.addEventListener("scroll", () => {
    cancelAnimationFrame(drawing);
    drawing = requestAnimationFrame(draw);
  }, { passive: true });

  return {
    element,
    update(job) {
      last = job;
      const reporting = job.nodes.filter((node) => node.most !== null);
      view = {
        job: job.job,
        nodes: job.nodes,
        most: reporting.length ? reporting.reduce((most, node) => Math.max(most, node.most), 0) : null,
        late_s: lateFrom(job.nodes),
      };
      show(element, job.nodes.length > 0);
      show(filter, job.nodes.length >= FILTER_FROM || filter.value !== "");
      const filters = filtersOf(job.nodes);
      only = filters.find((each) => each.key === only?.key) ?? null;
      keep(chips, filters.map((each) => ({ ...each, pressed: each === only })), (each) => each.key, () => filterChip((key) => {
        only = only?.key === key ? null : { key };
        scroller.scrollTop = 0;
        this.update(last);
      }));
      show(chips, filters.length > 0);
      arrange();
    },
  };
}

// From when on a node has not been seen for unusually long: ten thousand nodes report less often than ten.
function lateFrom(nodes) {
  const ages = nodes.map((node) => node.last_seen_s).sort((a, b) => a - b);
  return Math.max(NOW_S, 2.5 * (ages[Math.floor(ages.length / 2)] ?? 0));
}

function numberOf(found, nodes) {
  if (found < nodes.length) return `${count(found)} of ${count(nodes.length)}`;
  const same = nodes.every((node) => releaseOf(node) === releaseOf(nodes[0]));
  return same && found ? `${count(found)}, ${found > 1 ? "all on" : "on"} ${releaseOf(nodes[0])}` : count(found);
}

function matches(node, words) {
  if (!words) return true;
  if (/^\d+$/.test(words) && node.ranks.includes(Number(words))) return true;
  return [node.node, node.host, node.address, node.state, node.reason, node.drained ? "drained" : ""]
    .some((text) => text.toLowerCase().includes(words));
}

function header({ key, title }) {
  const button = h("button", { type: "button" }, title);
  const element = h("th", { scope: "col", class: key }, button);
  return {
    element,
    key,
    update: (sorting) => set(element, "aria-sort", sorting.key !== key ? null : sorting.down ? "descending" : "ascending"),
  };
}

// Holds the place of the rows that are not drawn.
function spacer() {
  const cell = h("td", { colspan: COLUMNS.length });
  const element = h("tr", { class: "spacer", "aria-hidden": "true" }, cell);
  return {
    element,
    update(rows) {
      show(element, rows > 0);
      style(cell, "height", `${rows * ROW_PX}px`);
    },
  };
}

function row(choose) {
  const title = name();
  const button = h("button", { type: "button", class: "node" }, title);
  const drained = h("span", { class: "chip", "data-tone": "busy" }, "drained");
  const address = h("td", { class: "address" });
  const state = badge();
  const reason = h("span", { class: "muted" });
  const ranks = h("td", { class: "ranks number" });
  const steps = stepsCell();
  const seen = h("td", { class: "seen number" });
  const element = h("tr", {},
    h("th", { scope: "row", class: "node" }, button, drained),
    address, h("td", { class: "state" }, state.element, reason), ranks, steps.element, seen);
  let shown = "";
  button.addEventListener("click", () => choose(shown));
  return {
    element,
    update(node, index, { most, late_s: late, chosen }) {
      shown = node.node;
      setText(title, node.node);
      set(button, "title", node.host === node.node ? null : `on host ${node.host}`);
      set(element, "aria-rowindex", index + 2);
      set(element, "data-chosen", node.node === chosen);
      show(drained, Boolean(node.drained));
      setText(address, node.address);
      state.update(node.state, toneOfNode(node.state));
      setText(reason, node.reason);
      set(reason, "title", node.reason);
      setText(ranks, spans(node.ranks));
      steps.update(node, most);
      setText(seen, node.last_seen_s < NOW_S ? "now" : duration(Math.floor(node.last_seen_s)));
      set(seen, "data-late", node.last_seen_s >= late);
    },
  };
}
