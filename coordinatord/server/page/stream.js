// The connection to the coordinator: states come in, and whether they still do. Knows nothing of what they say.

const SILENT_MS = 15_000; // the coordinator speaks at least every 5 s: then the connection leads nowhere
const REFUSED_MS = 2_000; // before another attempt, where the coordinator has refused one
const HIDDEN_MS = 60_000; // a page in the background lets go: browsers grant a host six connections for all their pages

export class Stream {
  #source = null;
  #job = null;
  #heardAt = 0;
  #timer = 0;
  #hiding = 0;
  #told;

  // `told.jobs(view)`, `told.job(view)`; `told.link(state, words, sinceMs)` with the states "live", "lost", "refused" and
  // "paused", and for how long it has been so already.
  constructor(told) {
    this.#told = told;
    setInterval(() => this.#watch(), 1_000);
    document.addEventListener("visibilitychange", () => this.#turn());
    window.addEventListener("pagehide", () => this.#close());
    window.addEventListener("pageshow", (event) => event.persisted && this.open(this.#job));
  }

  // Listen to the list of jobs, and to one job unless it is null.
  open(job) {
    this.#close();
    this.#job = job;
    this.#heardAt = performance.now();
    const source = new EventSource(job === null ? "/v1/stream" : `/v1/stream?job=${encodeURIComponent(job)}`);
    this.#source = source;
    for (const kind of ["jobs", "job", "alive"]) {
      source.addEventListener(kind, (event) => {
        if (source !== this.#source) return;
        this.#heardAt = performance.now();
        this.#told.link("live", "", 0);
        if (kind !== "alive") this.#told[kind](JSON.parse(event.data));
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
    else this.#told.link("lost", "The coordinator cannot be reached", 0); // the browser tries again by itself
  }

  // The browser does not say why it was refused: ask once more, and look at the answer.
  async #explain() {
    this.#close();
    this.#timer = setTimeout(() => this.open(this.#job), REFUSED_MS);
    const asking = new AbortController();
    try {
      const answer = await fetch("/v1/stream", { headers: { Accept: "application/json" }, signal: asking.signal });
      if (!answer.ok) this.#told.link("refused", String((await answer.json()).message), 0);
    } catch {
      this.#told.link("lost", "The coordinator cannot be reached", 0);
    } finally {
      asking.abort();
    }
  }

  #watch() {
    const silentMs = performance.now() - this.#heardAt;
    if (this.#source === null || silentMs < SILENT_MS) return;
    this.#told.link("lost", "The coordinator is silent", silentMs);
    this.open(this.#job);
  }

  #turn() {
    clearTimeout(this.#hiding);
    if (document.hidden) {
      this.#hiding = setTimeout(() => {
        this.#close();
        this.#told.link("paused", "", 0);
      }, HIDDEN_MS);
    } else if (this.#source === null) {
      this.open(this.#job);
    }
  }
}
