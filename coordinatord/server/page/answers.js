// Requests to the coordinator, and what is shown where no answer of its came.

const SHOWN_MAX = 120; // characters of an answer that is not the coordinator's: enough to see whose it is

export const UNREACHABLE = "the coordinator cannot be reached";

// Send a request. Return `{ answer }`, or `{ why, refused }`: `refused` is true if the coordinator itself has refused it.
export async function ask(path, { headers, ...options } = {}) {
  try {
    const came = await fetch(path, { ...options, headers: { ...headers, Accept: "application/json" } });
    const text = await came.text();
    const answer = parse(text);
    return came.ok && answer !== null ? { answer } : refusal(came, text);
  } catch {
    return { why: UNREACHABLE, refused: false };
  }
}

// Send a request with a body, as `ask` does.
export function post(path, body) {
  return ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

// Return why there is no answer: the coordinator's message, or a description of what came in its place, such as a proxy's page.
export function refusal({ ok, status, headers }, text) {
  const message = ok ? null : parse(text)?.message;
  if (typeof message === "string") return { why: message, refused: true };
  const kind = headers.get("Content-Type")?.split(";")[0] || "of no type";
  const plain = text.replace(/<(style|script)\b.*?<\/\1>|<[^>]*>/gis, " ").replace(/\s+/g, " ").trim();
  const shown = plain.length > SHOWN_MAX ? `${plain.slice(0, SHOWN_MAX)} …` : plain;
  return { why: `what came is no answer of a coordinator, but HTTP ${status}, ${kind}: ${shown ? `“${shown}”` : "nothing to read"}`, refused: false };
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
