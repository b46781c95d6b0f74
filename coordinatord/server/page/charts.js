// The run over time: steps a second, goodput and restarts, as charts over one axis.
//
// Each point is a span of the run and is drawn as a step, since it is a mean and no measurement at one moment.

import { h, s, set, setText, show } from "./dom.js";
import { clock, count, duration, ENDED, NONE, pace, percent, plural } from "./format.js";

const WIDTH = 1000; // units of the drawing, which is stretched to the chart's size
const HEIGHT = 100;

const CHARTS = [
  {
    title: "Steps a second",
    values: (series) => series.steps_per_s,
    most: (values) => roundUp(Math.max(...values.map((value) => value ?? 0))),
    scale: (most) => (most >= 1 ? count(most) : pace(most)),
    words: (value) => pace(value) || NONE,
    needsSteps: true,
  },
  {
    title: "Goodput",
    values: (series) => shares(series),
    most: () => 1,
    scale: () => "100\u00a0%",
    words: (value) => percent(value),
    needsSteps: true,
  },
  {
    title: "Restarts",
    values: (series) => series.restarts,
    most: (values) => roundUp(Math.max(2, values.at(-1))),
    scale: (most) => count(most),
    words: (value) => plural(value, "restart"),
    needsSteps: false,
  },
];

export function chartsPanel() {
  const charts = CHARTS.map((kind) => chart(kind, (share) => {
    pointed = share;
    if (last) draw(...last);
  }));
  const row = h("div", { class: "charts" }, ...charts.map((each) => each.element));
  const about = h("span", { class: "aside" });
  const element = h("section", { class: "panel", "aria-labelledby": "charts-title" },
    h("header", {}, h("h2", { id: "charts-title" }, "Over time"), about), row);
  let pointed = null; // where the reader points, as a share of the axis
  let last = null;
  const draw = (series, axis) => charts.forEach((each) => each.update(series, axis, pointed));
  return {
    element,
    update(view, series, elapsed) {
      const stepped = series.steps_per_s.some((value) => value !== null) || view.ledger.seconds.training > 0;
      show(element, series.upto_s > 0 && (stepped || series.restarts.at(-1) > 0));
      charts.forEach((each) => show(each.element, stepped || !each.kind.needsSteps));
      setText(about, `each point is a mean over ${series.span_s < 10 ? `${series.span_s} s` : duration(series.span_s)}`);
      const ended = ENDED.has(view.state);
      last = [series, { since: elapsed + (ended ? view.state_s : 0), ended }];
      draw(...last);
    },
  };
}

// Ends of the points in seconds of the run.
function ends(series) {
  return series.restarts.map((_, index) => Math.min((index + 1) * series.span_s, series.upto_s));
}

// The share of each point that went into training.
function shares(series) {
  let [began, trained] = [0, 0];
  return ends(series).map((end, index) => {
    const share = end > began ? (series.training_s[index] - trained) / (end - began) : null;
    [began, trained] = [end, series.training_s[index]];
    return share === null ? null : Math.min(1, Math.max(0, share));
  });
}

// The next of 1, 2, 3, 5, 10, 20 ..., so that the scale does not change with every step.
function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 5, 10].map((factor) => factor * power).find((round) => round >= value);
}

function chart(kind, point) {
  const reading = h("span", { class: "reading" });
  const when = h("span", { class: "when" });
  const most = h("span", { class: "most", "aria-hidden": "true" });
  const area = s("path", { class: "area" });
  const line = s("path", { class: "line" });
  const cursor = s("path", { class: "cursor" });
  const grid = s("path", { class: "grid", d: `M0 0H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT}H${WIDTH}` });
  const drawing = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, grid, area, line, cursor);
  const plot = h("div", { class: "plot" }, drawing);
  const from = h("span");
  const until = h("span");
  const element = h("figure", { class: "chart" },
    h("figcaption", {}, h("span", {}, kind.title), reading, most),
    plot, h("div", { class: "axis", "aria-hidden": "true" }, from, when, until));
  plot.addEventListener("pointermove", (event) => {
    const { left, width } = plot.getBoundingClientRect();
    point(Math.min(1, Math.max(0, (event.clientX - left) / width)));
  });
  plot.addEventListener("pointerleave", () => point(null));
  return {
    element,
    kind,
    update(series, { since, ended }, pointed) {
      const values = kind.values(series);
      const until_s = ends(series);
      const top = kind.most(values);
      const outline = steps(values, until_s, series.upto_s, top);
      set(line, "d", outline.line);
      set(area, "d", outline.area);
      setText(most, `0 to ${kind.scale(top)}`);
      setText(from, clock(since + series.upto_s));
      setText(until, ended ? clock(since) : "now");
      const index = pointed === null ? values.length - 1 : until_s.findIndex((end) => end >= pointed * series.upto_s);
      setText(reading, values[index] === null ? "not known" : kind.words(values[index]));
      setText(when, pointed === null ? "" : `at ${clock(since + series.upto_s - until_s[index])}`);
      set(cursor, "d", pointed === null ? "" : `M${WIDTH * pointed} 0V${HEIGHT}`);
      set(drawing, "aria-label", `${kind.title}: ${summary(values, kind.words)}`);
    },
  };
}

function summary(values, words) {
  const known = values.filter((value) => value !== null);
  if (!known.length) return "not known";
  return `${words(known.at(-1))} at last, between ${words(Math.min(...known))} and ${words(Math.max(...known))}`;
}

// The line over the points and the area beneath it; unknown values leave a gap.
function steps(values, until_s, upto_s, most) {
  const parts = { line: "", area: "" };
  let began = 0;
  let height = null;
  values.forEach((value, index) => {
    const end = Math.round((WIDTH * until_s[index]) / upto_s * 10) / 10;
    if (value === null) {
      if (height !== null) parts.area += `V${HEIGHT}Z`;
      height = null;
    } else {
      const next = Math.round(HEIGHT * (1 - value / most) * 10) / 10;
      parts.line += height === null ? `M${began} ${next}H${end}` : `V${next}H${end}`;
      parts.area += height === null ? `M${began} ${HEIGHT}V${next}H${end}` : `V${next}H${end}`;
      height = next;
    }
    began = end;
  });
  if (height !== null) parts.area += `V${HEIGHT}Z`;
  return parts;
}
