// The connection to the coordinator: receives states, and notices when none come. It does not interpret them.

import { refusal, UNREACHABLE } from "./answers.js";
import { capital } from "./format.js";

const SILENT_MS = 15_000; // the coordinator sends at least every 5 s, so the connection is dead
const REFUSED_MS = 2_000; // the pause after the coordinator has refused an attempt
const HIDDEN_MS = 60_000; // a page in the background disconnects: browsers grant a host six connections for all their pages

export class Stream {
  #source = null;
  #job = null;
  #receivedAt = 0;
  #timer = 0;
  #hiding = 0;
  #handlers;

  // `handlers` has `viewer(data)`, `jobs(data)`, `job(data)` and `link(state, text, sinceMs)`: the state is "live", "lost", "refused",
  // "locked" or "paused", and `sinceMs` is how long it has lasted already. Nothing more is tried once it is locked.
  constructor(handlers) {
    this.#handlers = handlers;
    setInterval(() => this.#watch(), 1_000);
    document.addEventListener("visibilitychange", () => this.#turn());
    window.addEventListener("pagehide", () => this.#close());
    window.addEventListener("pageshow", (event) => event.persisted && this.open(this.#job));
  }

  // Receive the list of jobs, and one job unless it is null.
  open(job) {
    this.#close();
    this.#job = job;
    this.#receivedAt = performance.now();
    const source = new EventSource(job === null ? "/v1/stream" : `/v1/stream?job=${encodeURIComponent(job)}`);
    this.#source = source;
    for (const kind of ["viewer", "jobs", "job", "alive"]) {
      source.addEventListener(kind, (event) => {
        if (source !== this.#source) return;
        this.#receivedAt = performance.now();
        this.#handlers.link("live", "", 0);
        if (kind !== "alive") this.#handlers[kind](JSON.parse(event.data));
      });
    }
    source.addEventListener("error", () => source === this.#source && this.#fail(source));
  }

  #close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  #fail(source) {
    if (source.readyState === EventSource.CLOSED) this.#explain();
    else this.#handlers.link("lost", capital(UNREACHABLE), 0); // the browser tries again by itself
  }

  // The browser does not show why a stream was refused: send the request once more, and read the answer.
  async #explain() {
    this.#close();
    this.#timer = setTimeout(() => this.open(this.#job), REFUSED_MS);
    const attempt = new AbortController();
    try {
      const answer = await fetch("/v1/stream", { headers: { Accept: "application/json" }, signal: attempt.signal });
      if (answer.ok) return;
      const { why, refused } = refusal(answer, await answer.text());
      const locked = refused && answer.status === 401;
      if (locked) clearTimeout(this.#timer);
      this.#handlers.link(locked ? "locked" : "refused", why, 0);
    } catch {
      this.#handlers.link("lost", capital(UNREACHABLE), 0);
    } finally {
      attempt.abort();
    }
  }

  #watch() {
    const silentMs = performance.now() - this.#receivedAt;
    if (this.#source === null || silentMs < SILENT_MS) return;
    this.#handlers.link("lost", "The coordinator is silent", silentMs);
    this.open(this.#job);
  }

  #turn() {
    clearTimeout(this.#hiding);
    if (document.hidden) {
      this.#hiding = setTimeout(() => {
        this.#close();
        this.#handlers.link("paused", "", 0);
      }, HIDDEN_MS);
    } else if (this.#source === null) {
      this.open(this.#job);
    }
  }
}
