// Requests that change something, if the reader may send them: each is explained and confirmed, and has a reason, which the events keep.

import { post } from "./answers.js";
import { capital } from "./format.js";
import { h, set, setText, show } from "./dom.js";

const REASON_MAX = 500; // characters; as many as anybody reads

// Note what the viewer may do; the style sheet hides the buttons from viewers who may do nothing.
export function allow(viewer) {
  set(document.body, "data-may-act", viewer.may_act);
}

// A button for an act, `{ path, title, about, verb }`, where `about` describes what will happen.
export function actButton() {
  const button = h("button", { type: "button", class: "act" });
  let act = null;
  button.addEventListener("click", () => confirmation().ask(act));
  return {
    element: button,
    update(wanted) {
      act = wanted;
      setText(button, `${act.verb} …`);
      set(button, "aria-label", act.title);
    },
  };
}

let only = null; // there is one dialog, for one act at a time

function confirmation() {
  only ??= dialog();
  return only;
}

function dialog() {
  const title = h("h2", { id: "act-title" });
  const about = h("p");
  const reason = h("input", { id: "act-reason", maxlength: REASON_MAX, autocomplete: "off" });
  const failure = h("p", { class: "failed", role: "alert", hidden: true });
  const cancel = h("button", { type: "button", class: "quiet" }, "Cancel");
  const confirm = h("button", { type: "button", class: "act" });
  const element = h("dialog", { class: "confirm", "aria-labelledby": "act-title" },
    title, about, h("label", { for: "act-reason" }, "Reason, for the events"), reason, failure,
    h("div", { class: "row" }, cancel, confirm));
  let act = null;
  const enable = () => set(confirm, "disabled", reason.value.trim() === "");
  const carryOut = async () => {
    set(confirm, "disabled", true);
    const why = await send(act.path, reason.value.trim());
    if (why === "") element.close();
    setText(failure, why);
    show(failure, why !== "");
    enable();
  };
  reason.addEventListener("input", enable);
  reason.addEventListener("keydown", (event) => event.key === "Enter" && !confirm.disabled && carryOut());
  cancel.addEventListener("click", () => element.close());
  confirm.addEventListener("click", carryOut);
  document.body.append(element);
  return {
    ask(wanted) {
      act = wanted;
      setText(title, act.title);
      setText(about, act.about);
      setText(confirm, act.verb);
      reason.value = "";
      show(failure, false);
      enable();
      element.showModal();
      reason.focus();
    },
  };
}

// Return why an act was not done, or that this is not known; empty if it was done.
async function send(path, reason) {
  const { answer, why, refused } = await post(path, { by: "the page", reason });
  if (answer) return "";
  return `${capital(why)}.${refused ? "" : " So it is not known whether this was done: see the events."}`;
}
