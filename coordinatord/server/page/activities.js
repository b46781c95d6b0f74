// The activities that a run's time goes to, in the order of a round; bar, legend and timeline share them.

import { h, keep, set, style } from "./dom.js";

export const ACTIVITIES = [
  { key: "training", label: "Training", means: "all workers of a round were running, and reported their steps" },
  { key: "running", label: "Running", means: "all workers were running; whether they trained is not known, as no step was reported" },
  { key: "redone", label: "Redone", means: "steps were done that an earlier round had done already" },
  { key: "stalled", label: "Stalled", means: "no worker did a step for much longer than is usual" },
  { key: "silent", label: "Silent", means: "no node of the round could be heard" },
  { key: "waiting", label: "Waiting for nodes", means: "fewer nodes than the job needs had joined" },
  { key: "rendezvous", label: "Rendezvous", means: "enough nodes were there, and a round was being formed" },
  { key: "starting", label: "Starting", means: "workers were coming up, or nodes imported modules for them (--preload)" },
  { key: "detecting", label: "Detecting", means: "something had failed, and was not known yet" },
  { key: "stopping", label: "Stopping", means: "the workers of a round were being ended" },
];

export const IN_A_ROUND = [
  "waiting", "rendezvous", "starting", "running", "redone", "training", "stalled", "silent", "detecting", "stopping",
];

export function total(seconds) {
  return ACTIVITIES.reduce((sum, { key }) => sum + (seconds[key] ?? 0), 0);
}

// A bar of the activities, each as wide as it took long: `inOrder` of a round, or else training first.
export function bar(attributes = {}, inOrder = false) {
  const element = h("div", { class: "bar", ...attributes });
  const keys = inOrder ? IN_A_ROUND : ACTIVITIES.map((activity) => activity.key);
  return {
    element,
    update(seconds) {
      const parts = keys.filter((key) => seconds[key] > 0).map((key) => ({ key, seconds: seconds[key] }));
      keep(element, parts, (part) => part.key, segment);
    },
  };
}

function segment({ key }) {
  const element = h("i", { "data-cause": key });
  return { element, update: (part) => style(element, "flexGrow", String(Number(part.seconds.toPrecision(4)))) };
}

export function swatch(key) {
  const element = h("i", { class: "swatch", "aria-hidden": "true" });
  set(element, "data-cause", key);
  return element;
}
