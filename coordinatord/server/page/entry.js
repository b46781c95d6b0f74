// Lets a browser in by a link that works once, or shows how to get one.

import { post } from "./answers.js";
import { copyable, endpoint, quoted } from "./commands.js";
import { h, setText, show } from "./dom.js";
import { capital } from "./format.js";

const LINK = "#enter=";

export function hasLink() {
  return location.hash.startsWith(LINK);
}

// Send the code of the link in the address, if there is one. Return why it was refused; empty if all is well.
export async function letIn() {
  if (!hasLink()) return "";
  const code = location.hash.slice(LINK.length);
  history.replaceState(null, "", location.pathname); // no history keeps the code
  const { why = "" } = await post("/v1/page/session", { code });
  return why;
}

export function entryPage() {
  const why = h("p", { class: "note", hidden: true });
  const line = copyable();
  line.update(`nodeclient page --coord ${quoted(endpoint())}`);
  return {
    element: h("section", { class: "empty" },
      h("h1", {}, "This page wants a token"),
      why,
      h("p", {}, "Where you have one, as on the coordinator's host, type this, and open the link that it prints:"),
      line.element,
      h("p", { class: "muted" }, "The link works once, in any browser. It lets this one in for twelve hours.")),
    explain(text) {
      setText(why, text && `${capital(text)}.`);
      show(why, text !== "");
    },
  };
}
