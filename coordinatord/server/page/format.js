// Formats numbers and states for people.

const COUNT = new Intl.NumberFormat("en-US");
const ONE_PLACE = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const DAY_AND_CLOCK = new Intl.DateTimeFormat(undefined, {
  month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false,
});

export const NONE = "–";

const SPACE = "\u00a0"; // keeps a number and its unit on one line

export function count(number) {
  return number === null || number === undefined ? NONE : COUNT.format(number);
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)}${SPACE}${number === 1 ? one : many}`;
}

// "3 in place, 1 warm": how workers were begun; null if there is nothing to say of that.
export function begunWords(begun) {
  if (!begun) return null;
  const ways = [[begun.in_place, "in place"], [begun.warm, "warm"], [begun.cold, "cold"]];
  return ways.filter(([number]) => number).map(([number, way]) => `${count(number)} ${way}`).join(", ");
}

// "0.4 s", "12 s", "3 min 20 s", "2 h 5 min", "3 d 4 h": two units at most.
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const whole = Math.round(seconds);
  if (seconds < 9.95) return `${ONE_PLACE.format(Math.max(0, seconds))}${SPACE}s`;
  if (whole < 60) return `${whole}${SPACE}s`;
  if (whole < 3600) return two(Math.floor(whole / 60), "min", whole % 60, "s");
  const minutes = Math.round(seconds / 60);
  if (minutes < 1440) return two(Math.floor(minutes / 60), "h", minutes % 60, "min");
  const hours = Math.round(seconds / 3600);
  return two(Math.floor(hours / 24), "d", hours % 24, "h");
}

function two(large, largeUnit, small, smallUnit) {
  const parts = small ? [large, largeUnit, small, smallUnit] : [large, largeUnit];
  return parts.join(SPACE);
}

// "0.8 ms", "41.2 ms", and from a second on as `duration` has it.
export function milliseconds(seconds) {
  return seconds < 1 ? `${ONE_PLACE.format(1000 * seconds)}${SPACE}ms` : duration(seconds);
}

export function ago(seconds) {
  return seconds < 1 ? "just now" : `${duration(seconds)} ago`;
}

// The time of day so many seconds ago, with the day if that is not today.
export function clock(secondsAgo) {
  return moment(Date.now() / 1000 - secondsAgo);
}

// The same of a time in seconds since 1970.
export function moment(seconds) {
  const then = new Date(seconds * 1000);
  return (then.toDateString() === new Date().toDateString() ? CLOCK : DAY_AND_CLOCK).format(then);
}

// The value is rounded down, since 99.97 % is not all; a small value is not shown as nothing.
export function percent(share) {
  if (share === null || share === undefined) return NONE;
  if (share > 0 && share < 0.001) return `<${SPACE}0.1${SPACE}%`;
  return `${ONE_PLACE.format(Math.floor(share * 1000) / 10)}${SPACE}%`;
}

export function pace(stepsPerSecond) {
  if (stepsPerSecond === null || stepsPerSecond === undefined) return "";
  if (stepsPerSecond >= 10) return `${count(Math.round(stepsPerSecond))} a second`;
  if (stepsPerSecond >= 1 || stepsPerSecond === 0) return `${ONE_PLACE.format(stepsPerSecond)} a second`;
  return `${ONE_PLACE.format(60 * stepsPerSecond)} a minute`;
}

// 1_500_000 as "1.5 MB".
export function bytes(number) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  const power = Math.min(units.length - 1, number < 1 ? 0 : Math.floor(Math.log10(number) / 3));
  return `${ONE_PLACE.format(number / 1000 ** power)}\u00a0${units[power]}`;
}

// [0, 1, 2, 5] as "0–2, 5"; a rank is a name more than a number, and is written like one.
export function spans(numbers) {
  const parts = [];
  for (let i = 0; i < numbers.length; ) {
    let j = i;
    while (j + 1 < numbers.length && numbers[j + 1] === numbers[j] + 1) j += 1;
    parts.push(i === j ? String(numbers[i]) : `${numbers[i]}–${numbers[j]}`);
    i = j + 1;
  }
  return parts.join(", ");
}

export function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

// The colour of each state of a run or a node; the names are the coordinator's.
const TONES = {
  running: "good", succeeded: "good",
  forming: "wait", spare: "wait", arrived: "wait", ready: "wait",
  stalled: "busy", behind: "busy",
  starting: "busy", preparing: "busy", stopping: "busy", assigned: "busy", stale: "busy",
  failed: "bad", silent: "bad", disconnected: "bad",
  stopped: "off", released: "off", left: "off",
};

export function tone(state) {
  return TONES[state] ?? "wait";
}

// A job that is stopped is over. A node that is stopped waits for the others of its round.
export function toneOfNode(state) {
  return state === "stopped" ? "busy" : tone(state);
}

// The shown state of a job: its health, if it is not well.
export function stateOf({ state, health }) {
  return health && health !== "well" ? health : state;
}

// If no node of a job is heard, the coordinator itself may be cut off.
export function toneOf(job) {
  return stateOf(job) === "silent" ? "busy" : tone(stateOf(job));
}

export const ENDED = new Set(["succeeded", "failed", "stopped", "left"]);
