// Requests to the coordinator, and what is said where none of its answers came.

const SHOWN_MAX = 120; // characters of what somebody else has answered: enough to see who that is

export const UNREACHABLE = "the coordinator cannot be reached";

// Ask the coordinator. Return `{ answer }`, or `{ why, heard }`: `heard` says whether the coordinator has refused it itself.
export async function ask(path, { headers, ...options } = {}) {
  try {
    const came = await fetch(path, { ...options, headers: { ...headers, Accept: "application/json" } });
    const text = await came.text();
    const answer = parse(text);
    return came.ok && answer !== null ? { answer } : refusal(came, text);
  } catch {
    return { why: UNREACHABLE, heard: false };
  }
}

// Ask the coordinator to do something, as `ask` does.
export function post(path, body) {
  return ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

// Why there is no answer: in the coordinator's own words, or by what a proxy, say, has sent in its place.
export function refusal({ ok, status, headers }, text) {
  const message = ok ? null : parse(text)?.message;
  if (typeof message === "string") return { why: message, heard: true };
  const kind = headers.get("Content-Type")?.split(";")[0] || "of no type";
  const words = text.replace(/<(style|script)\b.*?<\/\1>|<[^>]*>/gis, " ").replace(/\s+/g, " ").trim();
  const shown = words.length > SHOWN_MAX ? `${words.slice(0, SHOWN_MAX)} …` : words;
  return { why: `what came is no answer of a coordinator, but HTTP ${status}, ${kind}: ${shown ? `“${shown}”` : "nothing to read"}`, heard: false };
}

// Return the JSON object of a text; null if it is none.
function parse(text) {
  try {
    const found = JSON.parse(text);
    return typeof found === "object" ? found : null;
  } catch {
    return null;
  }
}
